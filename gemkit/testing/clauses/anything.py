"""The contract of every part: named, described, and the same after being written down."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from gemkit.examine_part import part_problems
from gemkit.options import part_from
from gemkit.parts import Part
from gemkit.recipe import part_data
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import field_values


def own_fields(part: Part, device: torch.device) -> st.SearchStrategy[dict[str, Any]]:
    """Draw plain data for the fields of a part's class."""
    return field_values(type(part))


@clause(Part)
def it_can_be_registered(part: Part, case: None) -> None:
    """The class has a name people can type and a docstring, and can be built from its fields."""
    problems = part_problems(type(part))
    require(not problems, f"it {', and '.join(problems)}")


@clause(Part)
def every_field_is_described(part: Part, case: None) -> None:
    """Every field says in its description what it means; it is all the help people get."""
    silent = [name for name, info in type(part).model_fields.items() if not info.description]
    require(not silent, f"these say nothing: {', '.join(silent)}")


@clause(Part, own_fields)
def it_survives_being_written_down(part: Part, case: dict[str, Any]) -> None:
    """Any fields within their bounds build a part that reads back from plain data as its equal."""
    cls = type(part)
    made, problems = part_from(cls, case, "part")
    require(made is not None, f"these fields are refused: {'; '.join(problems)}")
    assert made is not None
    data = part_data(made)
    require(data.pop("name") == cls.name, "its data has another name")
    again, _ = part_from(cls, data, "part")
    require(again == made, f"{made!r} reads back as {again!r}")
