"""Bounded types for the fields of untrusted files; see `gemkit.core.limits`."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, PositiveInt

from gemkit.core.density import density_from
from gemkit.core.limits import (
    MAX_CLASSES,
    MAX_DEPTH,
    MAX_DIMENSIONS,
    MAX_IMAGE_VALUES,
    MAX_NAME_LENGTH,
    MAX_SEED,
    MAX_TEXT_LENGTH,
)


def _check_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse the shape of an input that is too large."""
    if math.prod(shape) > MAX_IMAGE_VALUES:
        raise ValueError(f"an image may have {MAX_IMAGE_VALUES:,} values, not {math.prod(shape):,}")
    return shape


def _check_json(data: dict[str, Any]) -> dict[str, Any]:
    """Refuse JSON data that nests too deeply or holds a very long text."""
    pending: list[tuple[int, object]] = [(1, data)]
    while pending:
        depth, value = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"tables and lists may nest at most {MAX_DEPTH} levels deep")
        if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
            raise ValueError(f"a text may have {MAX_TEXT_LENGTH:,} characters, not {len(value):,}")
        if isinstance(value, dict):
            pending += [(depth, key) for key in value]
            pending += [(depth + 1, one) for one in value.values()]
        elif isinstance(value, list | tuple):
            pending += [(depth + 1, one) for one in value]
    return data


def _read_text(density: object) -> object:
    """Accept a text such as `5%` or `0.05`."""
    return density_from(density) if isinstance(density, str) else density


Count = Annotated[int, Field(ge=0, lt=2**63)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Classes = Annotated[int, Field(gt=0, le=MAX_CLASSES)]
Density = Annotated[float, Field(gt=0, le=1)]
WrittenDensity = Annotated[Density, BeforeValidator(_read_text)]
"""A density as users write it: a number, or a text such as `5%` or `0.05`."""
Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
Spec = Annotated[dict[str, JsonValue], AfterValidator(_check_json)]
ImageShape = Annotated[
    tuple[PositiveInt, ...],
    Field(min_length=1, max_length=MAX_DIMENSIONS),
    AfterValidator(_check_image),
]
