"""Drawing values for the fields of a part, within their bounds."""

from __future__ import annotations

import types
from collections.abc import Iterable
from functools import cache
from math import ceil, floor
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bound
from hypothesis import strategies as st

from gemkit.parts.part import Part
from gemkit.parts.recipe import ROLES
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import KINDS, Registry

Fields = dict[str, Any]


@cache
def own_parts() -> Registry:
    """Load gemkit's own parts."""
    return load_plugins(only=())


_SOME = {"scores": ("magnitude", "snip")}


def inner_parts(kind: type[Part]) -> list[Part]:
    """Build parts that a field of this kind may hold, those that need batches among them."""
    name = next(name for name, known in KINDS.items() if known.base is kind)
    defaults = [role.default for role in ROLES.values() if role.kind is kind and role.default]
    registered = [*own_parts().parts[name]][:1]
    return [own_parts().build(name, one) for one in _SOME.get(name, defaults or registered)]


def field_values(cls: type[Part], *, modest: bool = False) -> st.SearchStrategy[Fields]:
    """Draw plain data (as JSON has it) for any subset of a part's fields, within their bounds.

    A field for a part takes one that is built. Modest numbers stay near the lower bound where
    there is no upper one, so that a part built of them is quick to use.
    """
    values = {
        # A field that only takes known names gives some of them as examples.
        name: st.sampled_from(info.examples)
        if info.examples
        else _values(info.annotation, _limits(info.metadata), modest)
        for name, info in cls.model_fields.items()
    }
    required = {name for name, info in cls.model_fields.items() if info.is_required()}
    return st.fixed_dictionaries(
        {name: values[name] for name in sorted(required)},
        optional={name: values[name] for name in values if name not in required},
    )


_MODEST = 40
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    type(None): st.none(),
}
_BOUNDS = {
    bound.Ge: "ge",
    bound.Gt: "gt",
    bound.Le: "le",
    bound.Lt: "lt",
    bound.MinLen: "min_length",
    bound.MaxLen: "max_length",
    bound.MultipleOf: "multiple_of",
}


def _limits(metadata: Iterable[Any]) -> Fields:
    single: list[Any] = []
    for one in metadata:  # an interval, for example, is two bounds
        single += one if isinstance(one, bound.GroupedMetadata) else [one]
    limits = {
        key: getattr(constraint, key)
        for constraint in single
        for cls, key in _BOUNDS.items()
        if isinstance(constraint, cls) and getattr(constraint, key) is not None
    }
    patterns = [found for one in metadata if (found := getattr(one, "pattern", None))]
    return {**limits, "pattern": patterns[0]} if patterns else limits


def is_part(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether a field of this type holds a part."""
    return isinstance(annotation, type) and issubclass(annotation, Part)


def _values(annotation: Any, limits: Fields, modest: bool) -> st.SearchStrategy[Any]:  # noqa: ANN401
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_part(annotation):
        return st.sampled_from(inner_parts(annotation))
    if origin in (Union, types.UnionType):
        return st.one_of([_values(argument, limits, modest) for argument in arguments])
    if origin is Annotated:
        inner = _limits(getattr(arguments[1], "metadata", arguments[1:]))
        return _values(arguments[0], inner, modest)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return _tuples(arguments, limits, modest)
    if annotation is int:
        return _integers(modest, **limits)
    if annotation is float:
        return _floats(modest, **limits)
    if annotation is str:
        return _texts(**limits)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    raise TypeError(f"no strategy for {annotation}; contracts draw numbers, text, choices, tuples")


def _tuples(
    arguments: tuple[Any, ...], limits: Fields, modest: bool
) -> st.SearchStrategy[list[Any]]:
    if arguments[-1] is not Ellipsis:
        return st.tuples(*(_values(argument, {}, modest) for argument in arguments)).map(list)
    shortest = limits.get("min_length", 0)
    longest = limits.get("max_length", shortest + 4)
    return st.lists(_values(arguments[0], {}, modest), min_size=shortest, max_size=longest)


def _texts(
    min_length: int = 0, max_length: int | None = None, pattern: str | None = None
) -> st.SearchStrategy[str]:
    if pattern is not None:
        # Python and pydantic differ: in letters and digits beyond ASCII, and in a "$" before "\n".
        drawn = st.from_regex(pattern, alphabet=st.characters(codec="ascii"))
        return drawn.filter(lambda text: not text.endswith("\n"))
    return st.text(min_size=min_length, max_size=max_length or min_length + 20)


def _integers(
    modest: bool,
    ge: int | None = None,
    gt: int | None = None,
    le: int | None = None,
    lt: int | None = None,
    multiple_of: int = 1,
) -> st.SearchStrategy[int]:
    lowest = ge if gt is None else gt + 1
    highest = le if lt is None else lt - 1
    if multiple_of != 1:
        return _multiples(multiple_of, lowest, highest)
    if modest:
        lowest = -_MODEST if lowest is None else lowest
        highest = min(lowest + _MODEST, lowest + _MODEST if highest is None else highest)
    return st.integers(lowest, highest)


def _floats(
    modest: bool,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    multiple_of: float | None = None,
) -> st.SearchStrategy[float]:
    lowest = ge if gt is None else gt
    highest = le if lt is None else lt
    if multiple_of is not None:
        drawn = _multiples(multiple_of, lowest, highest)
        return drawn.filter(lambda value: value not in (gt, lt))
    if modest:
        lowest = -_MODEST if lowest is None else lowest
        highest = lowest + _MODEST if highest is None else highest
    return st.floats(
        min_value=lowest,
        max_value=highest,
        exclude_min=gt is not None,
        exclude_max=lt is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _multiples(unit: float, lowest: float | None, highest: float | None) -> st.SearchStrategy[Any]:
    """Draw multiples of a unit, a few where there is no bound."""
    first = -_MODEST if lowest is None else ceil(lowest / unit)
    last = first + 2 * _MODEST if highest is None else floor(highest / unit)
    return st.integers(first, last).map(lambda count: count * unit)
