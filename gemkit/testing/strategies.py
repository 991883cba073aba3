"""Hypothesis strategies: networks, importance, masks, densities, schedules, recipes, part fields.

Everything shrinks to something small and readable: tensors are drawn as shapes, a style and a
seed, never number by number.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bound
import torch
from hypothesis import strategies as st

from gemkit.options import part_from
from gemkit.parts import FreezeSchedule, Part
from gemkit.recipe import PART_NAME, Recipe
from gemkit.registry import KIND_OF_ROLE, Registry
from gemkit.tensors import Tensors
from gemkit.testing.cases import Layers, Network
from gemkit.testing.tiny import NETWORKS

CPU = torch.device("cpu")
SHAPES = ((4, 3), (1,), (0, 4), (5,), (4, 3, 3, 3), (2, 50), (40, 7))
DTYPES = (torch.float32, torch.float64, torch.bfloat16)

Fields = dict[str, Any]


# --- tensors -------------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)


def densities(least: float = 1e-4) -> st.SearchStrategy[float]:
    """Draw a fraction of weights to keep."""
    return st.sampled_from([1.0, 0.5, 0.1]) | st.floats(least, 1)


def layers(
    styles: Sequence[str] = ("drawn", "ties", "equal"), device: torch.device = CPU
) -> st.SearchStrategy[Layers]:
    """Draw layers of any shapes with values in a style (see `Layers`), of which a part is alive."""
    return st.builds(
        Layers,
        shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=5).map(tuple),
        style=st.sampled_from(list(styles)),
        alive=st.sampled_from([1.0, 0.5, 0.0]),
        dtype=dtypes,
        seed=seeds,
        device=st.just(device),
    )


def importances(styles: Sequence[str] = ("drawn", "ties", "equal")) -> st.SearchStrategy[Tensors]:
    """Draw importance for a few layers, one-element and empty ones among them."""
    return layers(styles).map(lambda drawn: drawn.values())


def masks() -> st.SearchStrategy[Tensors]:
    """Draw boolean masks for a few layers: everything, a half, or nothing."""
    return layers().map(lambda drawn: drawn.masks())


def networks(device: torch.device = CPU) -> st.SearchStrategy[Network]:
    """Draw a network in any state a score may find one in (see `Network`)."""
    return st.builds(
        Network,
        name=st.sampled_from(list(NETWORKS)),
        weights=st.sampled_from(["drawn", "equal", "zero"]),
        pruned=st.sampled_from(["nothing", "half", "first layer"]),
        training=st.booleans(),
        dtype=dtypes,
        seed=seeds,
        device=st.just(device),
    )


# --- parts ---------------------------------------------------------------------------------------


def recipes(registry: Registry) -> st.SearchStrategy[Recipe]:
    """Draw any part of a registry, with any fields, for every role, fitting together or not."""
    roles = {
        role: st.one_of(
            [named_fields(entry.thing) for _, entry in sorted(registry.parts[kind].items())]
        )
        for role, kind in KIND_OF_ROLE.items()
    }
    data = {
        "pruner": st.from_regex(PART_NAME, fullmatch=True),
        "help": st.text(max_size=40),
        "finalize": st.sampled_from(["rounded", "alive"]),
        **roles,
    }
    moment = st.floats(0, allow_nan=False, allow_infinity=False)
    own = {
        "density": st.floats(0, 1, exclude_min=True),
        "rewind": st.fixed_dictionaries({}, optional={"weights": moment, "clock": moment}),
    }
    return st.fixed_dictionaries(data, optional=own).map(registry.recipe)


def schedules(registry: Registry) -> st.SearchStrategy[FreezeSchedule]:
    """Draw any freeze schedule of a registry with modest fields."""
    classes = [entry.thing for _, entry in sorted(registry.parts["schedules"].items())]
    parts: st.SearchStrategy[Any] = st.one_of([built(cls) for cls in classes])
    return parts


def built(cls: type[Part]) -> st.SearchStrategy[Part]:
    """Draw a part with modest fields."""
    return field_values(cls, modest=True).map(lambda fields: from_fields(cls, fields))


def from_fields(cls: type[Part], fields: Fields) -> Part:
    """Build a part from plain data, in which lists stand for tuples."""
    part, problems = part_from(cls, fields, cls.name)
    if part is None:
        raise AssertionError(f"its class refuses fields within their bounds: {'; '.join(problems)}")
    return part


def variants(part: Part) -> st.SearchStrategy[Part]:
    """Draw the part itself, or one of its class with other, modest fields."""
    return st.just(part) | built(type(part)) if type(part).model_fields else st.just(part)


def named_fields(cls: type[Part]) -> st.SearchStrategy[Fields]:
    """Draw plain data for a part: its name and any of its fields."""
    return field_values(cls).map(lambda fields: {"name": cls.name, **fields})


def field_values(cls: type[Part], *, modest: bool = False) -> st.SearchStrategy[Fields]:
    """Draw plain data (as JSON has it) for any subset of a part's fields, within their bounds.

    Modest numbers stay near the lower bound where there is no upper one, so that a part built
    of them is quick to use.
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
}


def _limits(metadata: Sequence[Any]) -> Fields:
    limits = {
        key: getattr(constraint, key)
        for constraint in metadata
        for cls, key in _BOUNDS.items()
        if isinstance(constraint, cls)
    }
    patterns = [found for one in metadata if (found := getattr(one, "pattern", None))]
    return {**limits, "pattern": patterns[0]} if patterns else limits


def _values(annotation: Any, limits: Fields, modest: bool) -> st.SearchStrategy[Any]:  # noqa: ANN401
    origin, arguments = get_origin(annotation), get_args(annotation)
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
) -> st.SearchStrategy[int]:
    lowest = ge if gt is None else gt + 1
    highest = le if lt is None else lt - 1
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
) -> st.SearchStrategy[float]:
    lowest = ge if gt is None else gt
    highest = le if lt is None else lt
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
