"""A pruner as data: which part plays each role. TOML in, TOML out."""

from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from gemkit.core.bounded import WrittenDensity
from gemkit.core.limits import MAX_TEXT_LENGTH
from gemkit.core.prunable import KINDS, Kind
from gemkit.parts.allocation import Allocation
from gemkit.parts.initializer import Initializer
from gemkit.parts.objective import Objective
from gemkit.parts.part import Part
from gemkit.parts.regularizer import Regularizer
from gemkit.parts.rounding import Rounding
from gemkit.parts.schedule import FreezeSchedule
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.parts.structure import Structure

PART_NAME = r"[a-z][a-z0-9_]*"


class Rewind(BaseModel):
    """What a search rewinds after every freeze, and to which epoch of its first round.

    Iterative magnitude pruning sets both fields to the same epoch, learning-rate rewinding sets
    only the clock, gradual pruning neither.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    weights: float | None = Field(
        default=None,
        ge=0,
        description="parameters and buffers return to their values after these epochs",
    )
    clock: float | None = Field(
        default=None,
        ge=0,
        description="learning rate and order of the data continue as after these epochs",
    )

    @property
    def happens(self) -> bool:
        """Whether anything is rewound."""
        return self != Rewind()


Pattern = Annotated[str, Field(min_length=1, max_length=1000)]


class Scope(BaseModel):
    """Which weights may be pruned, by shell patterns on their names and by kinds of layers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    include: tuple[Pattern, ...] = Field(
        default=("*",), max_length=1000, description="names to prune, such as 'layer4.*'"
    )
    skip: tuple[Pattern, ...] = Field(
        default=(), max_length=1000, description="names to leave alone"
    )
    kinds: tuple[Kind, ...] = Field(
        default=KINDS,
        description="kinds of layers; embeddings and recurrent layers are pruned only if named",
    )


Trained = Literal["scores", "weights", "both"]


class Recipe(BaseModel):
    """A named choice of parts: everything that distinguishes one pruner from another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pruner: str = Field(pattern=f"^{PART_NAME}$", description="the name that users type")
    help: str = Field(
        default="",
        max_length=MAX_TEXT_LENGTH,
        description="one line on what it does, and its source",
    )
    scores: Scores
    rounding: Rounding
    allocation: Allocation
    schedule: FreezeSchedule
    regularizer: Regularizer
    init: Initializer
    structure: Structure
    grow: Scores | None = None
    objective: Objective | None = None
    train: Trained | None = Field(
        default=None,
        description="what a search trains: learned scores, weights, or both together; unset: "
        "scores where they are learned, and weights where they are measured",
    )
    prunable: Scope = Field(default=Scope(), description="which weights may be pruned")
    rewind: Rewind = Field(default=Rewind(), description="what is rewound after every freeze")
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
    density: WrittenDensity | None = Field(
        default=None,
        description="a fixed density, which overrides that of the run",
    )

    @property
    def trained(self) -> Trained:
        """What a search trains."""
        natural: Trained = "scores" if isinstance(self.scores, LearnedScores) else "weights"
        return self.train or natural

    def parts(self) -> dict[str, Part]:
        """Return the part in each role that is filled."""
        found = {role: getattr(self, role) for role in ROLES}
        return {role: part for role, part in found.items() if part is not None}

    def to_data(self) -> dict[str, Any]:
        """Return plain data for TOML or JSON, with every default written out.

        Fields that were added later are left out at their default, so that a recipe keeps its text
        and its hash.
        """
        data = self.model_dump(exclude=set(ROLES), exclude_none=True, mode="json")
        if not self.rewind.happens:
            del data["rewind"]
        if self.prunable == Scope():
            del data["prunable"]
        for role, part in self.parts().items():
            if role != "structure" or part_data(part) != {"name": ROLES[role].default}:
                data[role] = part_data(part)
        return data

    def to_toml(self) -> str:
        """Return the recipe as TOML text that reads back as an equal recipe."""
        return tomli_w.dumps(self.to_data())


class Role(NamedTuple):
    """A role in a recipe: the kind of part it takes, and its default part."""

    kind: type[Part]
    default: str | None


ROLES: dict[str, Role] = {
    "scores": Role(Scores, "magnitude"),
    "rounding": Role(Rounding, "open"),
    "allocation": Role(Allocation, "global"),
    "schedule": Role(FreezeSchedule, "once"),
    "regularizer": Role(Regularizer, "none"),
    "init": Role(Initializer, "as_built"),
    "structure": Role(Structure, "weights"),
    "grow": Role(Scores, None),
    "objective": Role(Objective, None),
}


TABLES: dict[str, type[BaseModel]] = {"rewind": Rewind, "prunable": Scope}
"""Fields of a recipe that have fields of their own, without being parts."""


def part_data(part: Part) -> dict[str, Any]:
    """Return a part as plain data: its name, then its fields (unset optional ones left out)."""
    data = {"name": part.name, **part.model_dump(mode="json", exclude_none=True)}
    return data | {name: part_data(own) for name, own in part.inner().items()}
