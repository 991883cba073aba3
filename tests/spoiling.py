"""Spoiled files for tests: damaged bytes, and sound files that say something else.

GEMKIT_FUZZ=1000 tries so many on every reader instead of a few.
"""

import copy
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gemkit.core.errors import GemkitError

CASES = int(os.environ.get("GEMKIT_FUZZ", "12"))
bounded = settings(
    max_examples=CASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["../../etc/passwd", "name", "os:system", "\x00", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)


@st.composite
def spoiled(draw: st.DrawFn, whole: bytes) -> bytes:
    """Cut, flip, insert, repeat, or make something else altogether."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["cut", "flip", "insert", "repeat", "other"])):
            case "cut":
                del content[at : at + draw(st.integers(1, 1 + len(content)))]
            case "flip" if at < len(content):
                content[at] = draw(st.integers(0, 255))
            case "insert":
                content[at:at] = draw(st.binary(max_size=20))
            case "repeat":
                content[at:at] = content[at : at + 40] * draw(st.integers(1, 50))
            case "other":
                content = bytearray(draw(st.binary(max_size=60)))
    return bytes(content)


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """Put something else into a few places of nested data, or take them away."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        owner: Any = tree
        while True:
            keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = owner[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
                owner = inner
                continue
            if draw(st.booleans()):
                owner[key] = draw(JSON)
            else:
                del owner[key]
            break
    return tree


def without_none(data: Any) -> Any:
    """TOML has no null, and its integers have an end."""
    if isinstance(data, dict):
        return {name: without_none(value) for name, value in data.items() if value is not None}
    if isinstance(data, list):
        return [without_none(value) for value in data if value is not None]
    return data


def accepts(read: Callable[[], object]) -> None:
    """Read; only gemkit's own errors may come of it, in words that are not endless."""
    said = "nothing"
    try:
        read()
    except GemkitError as error:
        said = str(error)
    assert 0 < len(said) < 20_000
