"""The description of a run: plain data, TOML in and out."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gemkit.bounded import Density, Name, Seed, Spec
from gemkit.collapse import CollapsePolicy
from gemkit.data.fingerprint import Fingerprint
from gemkit.errors import OptionError
from gemkit.files import read
from gemkit.limits import LARGEST_CONFIG
from gemkit.options import from_data, report
from gemkit.plan import Plan, Runtime
from gemkit.recipe import PART_NAME, ROLES, Recipe

if TYPE_CHECKING:
    from gemkit.registry import Registry

PartData = str | Spec
"""A part's name, or a table with its name and fields."""


class RunSettings(BaseModel):
    """How a run is carried out; nothing here changes the ticket, so a resumed run may differ."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    data_dir: str | None = Field(default=None, description="where data sets are kept")
    observers: list[str] = Field(default=[], description="observers that listen")
    checks: list[str] = Field(default=[], description="controls to compare with afterwards")
    check_seeds: int = Field(default=5, ge=1, le=10_000, description="seeds to compare over")
    checkpoint_minutes: float = Field(
        default=10.0, ge=0, description="the longest time between two checkpoints"
    )
    plugins: list[str] = Field(
        default=[], description="plugin files that were given; they are named, never loaded"
    )

    @property
    def folder(self) -> Path | None:
        """Where data sets are kept, as a path."""
        return None if self.data_dir is None else Path(self.data_dir)

    def to_data(self) -> dict[str, Any]:
        """Return plain data, ready for TOML."""
        return self.model_dump(exclude_none=True)


class RunConfig(BaseModel):
    """Everything that `gemkit.run` needs to know.

    Parts are named, or given as tables with a name and fields. A recipe that has a `pruner` of its
    own is a whole recipe, as `gemkit show` prints it; any other recipe is a table of changes to the
    registered one that the field `pruner` names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pruner: Name = Field(
        default="gem_miner", pattern=f"^{PART_NAME}$", description="the recipe to follow"
    )
    density: Density = Field(default=0.05, description="fraction of the prunable weights to keep")
    model: PartData = Field(
        default="conv4", description="the network: its name, or a table with name and fields"
    )
    dataset: PartData = Field(default="digits", description="the images, in the same way")
    recipe: Spec = Field(
        default={},
        description="what differs from the pruner's own recipe: a table for every role, with "
        "fields, and with a name where it is another part",
    )
    search: Plan = Field(default=Plan(), description="how the search trains")
    finetune: Plan = Field(
        default=Plan(),
        description="how fine-tuning trains; as many epochs as the search, unless it says another",
    )
    on_collapse: CollapsePolicy = Field(default="error", description="when a layer is lost")
    seed: Seed = Field(default=0, description="draws weights, scores and data order")
    runtime: Runtime = Field(default=Runtime(), description="the machine")
    run: RunSettings = Field(default=RunSettings(), description="how the run is carried out")

    @field_validator("recipe", mode="before")
    @classmethod
    def _as_data(cls, recipe: object) -> object:
        """Take a recipe that is made already."""
        return recipe.to_data() if isinstance(recipe, Recipe) else recipe

    @model_validator(mode="after")
    def _one_pruner(self) -> Self:
        """Refuse a whole recipe beside the name of another pruner."""
        own = self.recipe.get("pruner", self.pruner)
        if "pruner" in self.model_fields_set and own != self.pruner:
            raise ValueError(f"the recipe is that of pruner {own!r}; leave out {self.pruner!r}")
        return self

    @property
    def finetuning(self) -> Plan:
        """How fine-tuning trains, with its epochs decided."""
        if "epochs" in self.finetune.model_fields_set:
            return self.finetune
        return self.finetune.model_copy(update={"epochs": self.search.epochs})

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - whatever the fields take
        """Return the configuration with other values, which are validated."""
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**own, **changes})

    def parts(self) -> dict[str, Any]:
        """Return the parts that it puts into the pruner's roles, by name."""
        return {
            role: part["name"] if isinstance(part, Mapping) else part
            for role, part in self.recipe.items()
            if role in ROLES and (not isinstance(part, Mapping) or "name" in part)
        }

    def options(self) -> dict[str, Any]:
        """Return all fields that it sets, each as `kind.field`; those of the recipe have no kind.

        Kinds are the roles, rewind, model, dataset, search and finetune, as on the command line.
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
        """Make its recipe."""
        if "pruner" in self.recipe:
            return registry.recipe(self.recipe)
        own = {key: value for key, value in self.options().items() if of_recipe(key)}
        return registry.recipe(self.pruner, parts=self.parts(), options=own)

    def to_data(self) -> dict[str, Any]:
        """Return plain data with every default written out."""
        data = self.model_dump(mode="json", exclude_none=True)
        data["finetune"] = self.finetuning.model_dump(mode="json", exclude_none=True)
        if "pruner" in self.recipe:
            del data["pruner"]
        return data

    def to_toml(self) -> str:
        """Return TOML that describes the same run."""
        return tomli_w.dumps(self.to_data())


class RecordedConfig(RunConfig):
    """What config.toml in a run's folder holds: a whole configuration, and what it was run with."""

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


def config_from_toml(text: str) -> RunConfig:
    """Read a configuration as `RunConfig.to_toml` or a run's folder has it.

    A file alone runs no code: a network in it is a table, never the address of a function.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"this configuration is not valid TOML: {error}") from error
    if isinstance(data.get("model"), str):
        data["model"] = {"name": data["model"]}
    kind = RecordedConfig if "versions" in data else RunConfig
    config, problems = from_data(kind, data, label="", title="a run")
    if config is None:
        raise report("this configuration", problems)
    return config


def load_config(file: Path | str) -> RunConfig:
    """Read a configuration from a TOML file, for example config.toml in the folder of a run."""
    try:
        return config_from_toml(read(Path(file), LARGEST_CONFIG).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} cannot be read: {error}") from error
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from error


def name_of(part: str | Mapping[str, Any]) -> str:
    """Return the name of a part that is given as a name, or as a table with name and fields."""
    return part if isinstance(part, str) else str(part["name"])


def _paths(kind: str, table: object) -> Iterator[tuple[str, Any]]:
    """Yield `kind.field` and value; what is no table is a field of the recipe, or a part's name."""
    if isinstance(table, Mapping):
        yield from ((f"{kind}.{field}", value) for field, value in table.items() if field != "name")
    elif kind not in ROLES:
        yield kind, table


def of_recipe(path: str) -> bool:
    """Tell whether a field belongs to the recipe, and so to the pruner."""
    return path.rpartition(".")[0] in (*ROLES, "rewind", "")
