"""The contract of every part: named, described, and equal after a round trip through data."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from gemkit.parts.options import part_from
from gemkit.parts.part import Part
from gemkit.parts.recipe import part_data
from gemkit.plugins.validate_part import part_problems
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import field_values


def own_fields(part: Part, device: torch.device) -> st.SearchStrategy[dict[str, Any]]:
    """Draw plain data for the fields of a part's class."""
    return field_values(type(part))


@clause(Part)
def it_can_be_registered(part: Part, case: None) -> None:
    """The class has a valid name and a docstring, and can be built from its fields."""
    problems = part_problems(type(part))
    require(not problems, f"it {', and '.join(problems)}")


@clause(Part)
def every_field_is_described(part: Part, case: None) -> None:
    """Every field has a description, which is shown as help."""
    missing = [name for name, info in type(part).model_fields.items() if not info.description]
    require(not missing, f"these have none: {', '.join(missing)}")


@clause(Part, own_fields)
def it_round_trips_through_plain_data(part: Part, case: dict[str, Any]) -> None:
    """Any fields within their bounds build a part, which reads back from its data as equal."""
    cls = type(part)
    made, problems = part_from(cls, case, "part")
    require(made is not None, f"these fields are refused: {'; '.join(problems)}")
    assert made is not None
    again = read_back(made, part_data(made))
    require(again == made, f"{made!r} reads back as {again!r}")


def read_back(part: Part, data: dict[str, Any]) -> Part | None:
    """Build a part from plain data, and the parts within it from theirs."""
    require(data.pop("name") == part.name, "its data has another name")
    inner = {
        name: read_back(own, data[name])
        for name in type(part).model_fields
        if isinstance(own := getattr(part, name), Part)
    }
    again, _ = part_from(type(part), data | inner, "part")
    return again
