"""Types for the fields of untrusted files, each with its bounds; see `gemkit.limits`."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, PositiveInt

from gemkit.limits import (
    DEEPEST,
    LARGEST_SEED,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_CLASSES,
    MOST_VALUES,
)


def _drawable(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape of an image, unless no image has so many values."""
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"an image may have {MOST_VALUES:,} values, not {math.prod(shape):,}")
    return shape


def _modest(data: dict[str, Any]) -> dict[str, Any]:
    """Return JSON data, unless it nests too deeply or has a very long text in it."""
    pending: list[tuple[int, object]] = [(1, data)]
    while pending:
        depth, value = pending.pop()
        if depth > DEEPEST:
            raise ValueError(f"tables and lists may nest {DEEPEST} levels deep, not more")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise ValueError(f"a text may have {LONGEST_TEXT:,} characters, not {len(value):,}")
        if isinstance(value, dict):
            pending += [(depth, key) for key in value]
            pending += [(depth + 1, one) for one in value.values()]
        elif isinstance(value, list | tuple):
            pending += [(depth + 1, one) for one in value]
    return data


Count = Annotated[int, Field(ge=0, lt=2**63)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Classes = Annotated[int, Field(gt=0, le=MOST_CLASSES)]
Density = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Spec = Annotated[dict[str, JsonValue], AfterValidator(_modest)]
ImageShape = Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], AfterValidator(_drawable)]
