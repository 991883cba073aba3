"""Hypothesis strategies: networks, importance, masks, densities, schedules, recipes, part fields.

Tensors are drawn as shapes, a style and a seed, never number by number, so that they shrink to
something small and readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from gemkit.core.tensors import Tensors
from gemkit.parts.options import part_from
from gemkit.parts.part import Part
from gemkit.parts.recipe import PART_NAME, ROLES, Recipe, part_data
from gemkit.parts.schedule import FreezeSchedule
from gemkit.plugins.registry import KIND_OF_ROLE, Registry
from gemkit.testing.cases import Layers, Network
from gemkit.testing.fields import Fields
from gemkit.testing.fields import field_values as field_values
from gemkit.testing.tiny import NETWORKS

CPU = torch.device("cpu")
SHAPES = ((4, 3), (1,), (0, 4), (5,), (4, 3, 3, 3), (2, 50), (40, 7))
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


# --- tensors -------------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)


def densities(least: float = 1e-4) -> st.SearchStrategy[float]:
    """Draw a density."""
    return st.sampled_from([1.0, 0.5, 0.1]) | st.floats(least, 1)


def layers(
    styles: Sequence[str] = ("drawn", "ties", "equal"), device: torch.device = CPU
) -> st.SearchStrategy[Layers]:
    """Draw layers of any shapes, with values in a style and partly alive (see `Layers`)."""
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
    """Draw importance for a few layers, including one-element and empty ones."""
    return layers(styles).map(lambda drawn: drawn.values())


def masks() -> st.SearchStrategy[Tensors]:
    """Draw boolean masks for a few layers: all, half or nothing alive."""
    return layers().map(lambda drawn: drawn.masks())


def networks(device: torch.device = CPU) -> st.SearchStrategy[Network]:
    """Draw a network in any state that a score may meet (see `Network`)."""
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
    """Draw any part of a registry, with any fields, for every role, fitting together or not.

    A role without a default may stay empty.
    """
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
        **{role: drawn for role, drawn in roles.items() if ROLES[role].default},
    }
    moment = st.floats(0, allow_nan=False, allow_infinity=False)
    own = {
        **{role: drawn for role, drawn in roles.items() if not ROLES[role].default},
        "train": st.sampled_from(["scores", "weights", "both"]),
        "density": st.floats(0, 1, exclude_min=True),
        "rewind": st.fixed_dictionaries({}, optional={"weights": moment, "clock": moment}),
    }
    return st.fixed_dictionaries(data, optional=own).map(registry.recipe)


def schedules(registry: Registry) -> st.SearchStrategy[FreezeSchedule]:
    """Draw any registered freeze schedule with modest fields."""
    classes = [entry.thing for _, entry in sorted(registry.parts["schedules"].items())]
    parts: st.SearchStrategy[Any] = st.one_of([built(cls) for cls in classes])
    return parts


def built(cls: type[Part]) -> st.SearchStrategy[Part]:
    """Draw a part with modest fields."""
    return field_values(cls, modest=True).map(lambda fields: from_fields(cls, fields))


def from_fields(cls: type[Part], fields: Fields) -> Part:
    """Build a part from plain data, in which tuples are lists."""
    part, problems = part_from(cls, fields, cls.name)
    if part is None:
        raise AssertionError(f"its class refuses fields within their bounds: {'; '.join(problems)}")
    return part


def variants(part: Part) -> st.SearchStrategy[Part]:
    """Draw the part itself, or one of its class with other modest fields."""
    return st.just(part) | built(type(part)) if type(part).model_fields else st.just(part)


def named_fields(cls: type[Part]) -> st.SearchStrategy[Fields]:
    """Draw plain data for a part: its name and any of its fields."""
    return field_values(cls).map(lambda fields: {"name": cls.name, **_plain(fields)})


def _plain(fields: Fields) -> Fields:
    """Return fields with the data of a part in place of the part."""
    return {
        name: part_data(value) if isinstance(value, Part) else value
        for name, value in fields.items()
    }
