"""Hypothesis strategies for the fields of any part, read off their types and bounds."""

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bound
from hypothesis import strategies as st

from gemkit.parts import Part

_PLAIN = {bool: st.booleans(), type(None): st.none()}


def field_values(part: type[Part]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw plain data (as JSON has it) for any subset of a part's fields, within their bounds."""
    values = {
        # A field that only takes known names gives some of them as examples.
        name: st.sampled_from(info.examples)
        if info.examples
        else _values(info.annotation, _limits(info.metadata))
        for name, info in part.model_fields.items()
    }
    required = {name for name, info in part.model_fields.items() if info.is_required()}
    return st.fixed_dictionaries(
        {name: values[name] for name in required},
        optional={name: values[name] for name in values.keys() - required},
    )


def _limits(metadata: list[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for constraint in metadata:
        for cls, key in (
            (bound.Ge, "ge"),
            (bound.Gt, "gt"),
            (bound.Le, "le"),
            (bound.Lt, "lt"),
            (bound.MinLen, "min_length"),
            (bound.MaxLen, "max_length"),
        ):
            if isinstance(constraint, cls):
                limits[key] = getattr(constraint, key)
    return limits


def _values(annotation: Any, limits: dict[str, Any]) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return st.one_of([_values(argument, limits) for argument in arguments])
    if origin is Annotated:
        return _values(arguments[0], _limits(getattr(arguments[1], "metadata", arguments[1:])))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return _tuples(arguments, limits)
    if annotation is int:
        return _integers(**limits)
    if annotation is float:
        return _floats(**limits)
    if annotation is str:
        return _texts(**limits)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    raise TypeError(f"no strategy for {annotation}; add one here")


def _tuples(arguments: tuple[Any, ...], limits: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    if arguments[-1] is not Ellipsis:
        return st.tuples(*(_values(argument, {}) for argument in arguments)).map(list)
    shortest = limits.get("min_length", 0)
    longest = limits.get("max_length", shortest + 4)
    return st.lists(_values(arguments[0], {}), min_size=shortest, max_size=longest)


def _texts(min_length=0, max_length=None) -> st.SearchStrategy[str]:
    longest = min_length + 20 if max_length is None else max_length
    return st.text(min_size=min_length, max_size=longest)


def _integers(ge=None, gt=None, le=None, lt=None) -> st.SearchStrategy[int]:
    lowest = ge if gt is None else gt + 1
    highest = le if lt is None else lt - 1
    return st.integers(lowest, highest)


def _floats(ge=None, gt=None, le=None, lt=None) -> st.SearchStrategy[float]:
    return st.floats(
        min_value=ge if gt is None else gt,
        max_value=le if lt is None else lt,
        exclude_min=gt is not None,
        exclude_max=lt is not None,
        allow_nan=False,
        allow_infinity=False,
    )
