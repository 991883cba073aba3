"""The configuration of a run, as plain data."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)

from gemkit.core.bounded import Density, Name, Seed, Spec, WrittenDensity
from gemkit.core.errors import did_you_mean
from gemkit.data.fingerprint import Fingerprint
from gemkit.parts.objective import CrossEntropy, FunctionObjective, Objective
from gemkit.parts.recipe import PART_NAME, ROLES, TABLES, Recipe, part_data
from gemkit.training.plan import CollapsePolicy, Plan, Runtime

if TYPE_CHECKING:
    from gemkit.plugins.registry import Registry

PartData = str | Spec
"""A part's name, or a table with its name and fields."""

USUAL = "cross_entropy"
"""The objective of runs that name none."""
_USUAL_DATA = part_data(CrossEntropy())


class RunSettings(BaseModel):
    """Settings that do not change the ticket; a resumed run may have others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    data_dir: str | None = Field(default=None, description="where data sets are kept")
    observers: list[str] = Field(default=[], description="observers that listen")
    checks: list[str] = Field(default=[], description="controls and measurements of the ticket")
    check_seeds: int = Field(default=5, ge=1, le=10_000, description="seeds to compare over")
    checkpoint_minutes: float = Field(
        default=10.0, ge=0, description="the longest time between two checkpoints"
    )
    plugins: list[str] = Field(
        default=[], description="plugin files that were given; recorded, never loaded"
    )

    @property
    def folder(self) -> Path | None:
        """`data_dir` as a path."""
        return None if self.data_dir is None else Path(self.data_dir)

    def to_data(self) -> dict[str, Any]:
        """Return plain data, ready for TOML."""
        return self.model_dump(exclude_none=True)


class RunConfig(BaseModel):
    """The configuration of a run, for `gemkit.run`.

    A part is a name, or a table with a name and fields. A `recipe` with a `pruner` of its own is a
    complete recipe, as `gemkit show` prints it; any other is a table of changes to the recipe of
    the field `pruner`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pruner: Name = Field(
        default="gem_miner", pattern=f"^{PART_NAME}$", description="the recipe to follow"
    )
    density: WrittenDensity = Field(
        default=0.05, description="fraction of the prunable weights to keep, or a text such as '5%'"
    )
    model: PartData = Field(
        default="conv4", description="the network: its name, or a table with name and fields"
    )
    dataset: PartData = Field(default="digits", description="the images, in the same way")
    recipe: Spec = Field(
        default={},
        description="changes to the pruner's own recipe: a table for each role, with fields, and "
        "with a name if it is another part",
    )
    search: Plan = Field(default=Plan(), description="how the search trains")
    finetune: Plan = Field(
        default=Plan(),
        description="how fine-tuning trains; by default for as many epochs as the search",
    )
    on_collapse: CollapsePolicy = Field(default="error", description="when a layer is lost")
    seed: Seed = Field(default=0, description="draws weights, scores and data order")
    runtime: Runtime = Field(default=Runtime(), description="the machine")
    run: RunSettings = Field(default=RunSettings(), description="how the run is carried out")
    objective: PartData | Callable[..., Any] = Field(
        default=USUAL,
        exclude_if=lambda objective: objective in (USUAL, {"name": USUAL}, _USUAL_DATA),
        description="what is minimized: a name, a table, or a function of outputs and targets",
    )
    metric: Name | None = Field(
        default=None,
        exclude_if=lambda metric: metric is None,
        description="what is measured; by default the metric of the objective",
    )

    @field_validator("model", mode="before")
    @classmethod
    def _named(cls, model: object) -> object:
        """Refuse a network itself."""
        if callable(model):
            raise ValueError(
                "a run names its network by a string or a table ('conv4', 'timm:resnet18', "
                "'package.module:function'); `gemkit.search` takes a module"
            )
        return model

    @field_validator("recipe", mode="before")
    @classmethod
    def _as_data(cls, recipe: object) -> object:
        """Accept a `Recipe`."""
        return recipe.to_data() if isinstance(recipe, Recipe) else recipe

    @field_validator("recipe")
    @classmethod
    def _known(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        """Refuse keys that no recipe has; fields of parts are checked when the recipe is made."""
        for key in recipe:
            if key not in Recipe.model_fields:
                raise ValueError(f"a recipe has no '{key}'{did_you_mean(key, Recipe.model_fields)}")
        return recipe

    @field_validator("objective", mode="before")
    @classmethod
    def _plain(cls, objective: object) -> object:
        """Accept an `Objective`."""
        if isinstance(objective, type):
            raise ValueError(f"{objective.__name__} is a class; give an instance of it")
        if isinstance(objective, FunctionObjective):
            return objective.function
        return part_data(objective) if isinstance(objective, Objective) else objective

    @field_serializer("objective", when_used="json")
    def _recorded(self, objective: PartData | Callable[..., Any]) -> PartData:
        if isinstance(objective, str | Mapping):
            return objective
        return part_data(FunctionObjective(function=objective))

    @field_validator("recipe", "model", "dataset", "objective")
    @classmethod
    def _without_none(cls, table: Any) -> Any:  # noqa: ANN401 - a name or a table
        """Refuse None, which TOML cannot express."""
        if path := _path_of_none(table):
            raise ValueError(f"{path} is None, which TOML has no word for; leave it out")
        return table

    @model_validator(mode="after")
    def _one_pruner(self) -> Self:
        """Refuse a complete recipe together with the name of another pruner."""
        own = self.recipe.get("pruner", self.pruner)
        if "pruner" in self.model_fields_set and own != self.pruner:
            raise ValueError(f"the recipe is that of pruner {own!r}; leave out {self.pruner!r}")
        return self

    @property
    def finetuning(self) -> Plan:
        """The plan of fine-tuning, with as many epochs as the search if it sets none."""
        if "epochs" in self.finetune.model_fields_set:
            return self.finetune
        return self.finetune.model_copy(update={"epochs": self.search.epochs})

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - whatever the fields take
        """Return a copy with other values; they are validated."""
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**own, **changes})

    def parts(self) -> dict[str, Any]:
        """Return the names of the parts that replace those of the pruner, by role."""
        return {
            role: part["name"] if isinstance(part, Mapping) else part
            for role, part in self.recipe.items()
            if role in ROLES and (not isinstance(part, Mapping) or "name" in part)
        }

    def options(self) -> dict[str, Any]:
        """Return all fields that are set, each as `kind.field`; those of the recipe have no kind.

        Kinds are the roles, rewind, prunable, model, dataset, search and finetune, as on the
        command line.
        """
        plans = {
            phase: getattr(self, phase).model_dump(mode="json", exclude_unset=True)
            for phase in ("search", "finetune")
        }
        tables = {**self.recipe, "model": self.model, "dataset": self.dataset, **plans}
        return {
            path: value
            for kind, table in tables.items()
            if isinstance(table, Mapping) or kind in Recipe.model_fields
            for path, value in _paths(kind, table)
        }

    def made(self, registry: "Registry") -> Recipe:
        """Return the recipe."""
        if "pruner" in self.recipe:
            return registry.recipe(self.recipe)
        own = {key: value for key, value in self.options().items() if is_recipe_field(key)}
        return registry.recipe(self.pruner, parts=self.parts(), options=own)

    def to_data(self) -> dict[str, Any]:
        """Return plain data with every default written out that does not depend on the scores."""
        data = self.model_dump(mode="json", exclude_none=True)
        if "optimizer" not in self.search.model_fields_set:
            del data["search"]["optimizer"]
        data["finetune"] = self.finetuning.model_dump(mode="json", exclude_none=True)
        if "pruner" in self.recipe:
            del data["pruner"]
        return data

    def to_toml(self) -> str:
        """Return the configuration as TOML."""
        return tomli_w.dumps(self.to_data())


class RecordedConfig(RunConfig):
    """config.toml of a run's folder: all fields, and the versions and data it was run with."""

    density: Density
    seed: Seed
    on_collapse: CollapsePolicy
    recipe: Spec
    model: Spec
    dataset: Spec
    search: Plan
    finetune: Plan
    runtime: Runtime
    versions: dict[str, str]
    data: Fingerprint | None = None


def name_of(part: str | Mapping[str, Any]) -> str:
    """Return the name of a part, given as a name or as a table."""
    return part if isinstance(part, str) else str(part["name"])


def _paths(kind: str, table: object) -> Iterator[tuple[str, Any]]:
    """Yield `kind.field` and value; anything but a table is a recipe field or a part's name."""
    if isinstance(table, Mapping):
        yield from ((f"{kind}.{field}", value) for field, value in table.items() if field != "name")
    elif kind not in ROLES:
        yield kind, table


def _path_of_none(value: object) -> str:
    """Return where the first None in tables and lists is, or an empty text."""
    if isinstance(value, Mapping):
        inner = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, list):
        inner = [(str(place), one) for place, one in enumerate(value)]
    else:
        return ""
    found = ((key, None if one is None else _path_of_none(one)) for key, one in inner)
    return next((f"{key}.{path}" if path else key for key, path in found if path != ""), "")


def is_recipe_field(path: str) -> bool:
    """Return whether a field belongs to the recipe."""
    return path.rpartition(".")[0] in (*ROLES, *TABLES, "")
