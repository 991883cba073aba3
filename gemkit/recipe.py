"""A pruner as data: which part plays each role. TOML in, TOML out."""

from typing import Any, Literal, NamedTuple

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from gemkit.limits import LONGEST_TEXT
from gemkit.parts import (
    Allocation,
    FreezeSchedule,
    Initializer,
    Part,
    Regularizer,
    Rounding,
    Scores,
)

PART_NAME = r"[a-z][a-z0-9_]*"


class Rewind(BaseModel):
    """How far a search goes back after every freeze, counted in epochs of its first round.

    What is left out is not rewound: iterative magnitude pruning sets both fields to the same
    moment, learning-rate rewinding sets the clock alone, gradual pruning sets neither.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    weights: float | None = Field(
        default=None,
        ge=0,
        description="parameters and buffers return to what they were after these epochs",
    )
    clock: float | None = Field(
        default=None,
        ge=0,
        description="learning rate and order of the data go on as they did after these epochs",
    )

    @property
    def happens(self) -> bool:
        """Whether anything is rewound."""
        return self != Rewind()


class Recipe(BaseModel):
    """A named choice of parts: everything that makes one pruner different from another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pruner: str = Field(pattern=f"^{PART_NAME}$", description="the name people type")
    help: str = Field(
        default="", max_length=LONGEST_TEXT, description="one line on what it does, and its source"
    )
    scores: Scores
    rounding: Rounding
    allocation: Allocation
    schedule: FreezeSchedule
    regularizer: Regularizer
    init: Initializer
    rewind: Rewind = Field(
        default=Rewind(), description="how far weights and clock go back after every freeze"
    )
    finalize: Literal["rounded", "alive"] = Field(
        default="rounded",
        description="which mask is the ticket: 'rounded' (what the search evaluated) or 'alive' "
        "(everything not frozen)",
    )
    invert: bool = Field(
        default=False,
        description="keep the least important instead, by ranking −importance; roundings stay as "
        "they are, and the ticket is what selection kept, whatever finalize says",
    )
    density: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the density this pruner insists on, whatever is asked for",
    )

    def parts(self) -> dict[str, Part]:
        """Return the part in each role."""
        return {role: getattr(self, role) for role in ROLES}

    def to_data(self) -> dict[str, Any]:
        """Return plain data, ready for TOML or JSON, every default written out."""
        data = self.model_dump(exclude=set(ROLES), exclude_none=True)
        if not self.rewind.happens:
            del data["rewind"]
        for role, part in self.parts().items():
            data[role] = part_data(part)
        return data

    def to_toml(self) -> str:
        """Return the recipe as TOML text that reads back as an equal recipe."""
        return tomli_w.dumps(self.to_data())


class Role(NamedTuple):
    """A place in a recipe, the kind of part that may fill it, and who fills it by default."""

    kind: type[Part]
    default: str


ROLES: dict[str, Role] = {
    "scores": Role(Scores, "magnitude"),
    "rounding": Role(Rounding, "open"),
    "allocation": Role(Allocation, "global"),
    "schedule": Role(FreezeSchedule, "once"),
    "regularizer": Role(Regularizer, "none"),
    "init": Role(Initializer, "as_built"),
}


def part_data(part: Part) -> dict[str, Any]:
    """Return a part as plain data: its name, then its fields (unset optional ones left out)."""
    return {"name": part.name, **part.model_dump(mode="json", exclude_none=True)}
