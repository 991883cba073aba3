"""A preset: everything a run needs, written down once, as data; TOML in, TOML out."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, field_validator

from gemkit.collapse import CollapsePolicy
from gemkit.errors import OptionError, did_you_mean
from gemkit.options import from_data, report
from gemkit.plan import Plan
from gemkit.recipe import PART_NAME, ROLES, Recipe

if TYPE_CHECKING:
    from gemkit.registry import Registry

PRESET_NAME = r"[a-z0-9_]+/[a-z0-9][a-z0-9._-]*(@[a-z]+)?"
"""Who brings it, a stroke, what it is; @ and a word where sources disagree."""

VARIANTS = ("paper", "code")
"""What a name without @ stands for, the first of these that exists."""

PartData = str | dict[str, Any]


class Expected(BaseModel):
    """Accuracies that somebody published, in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    before: float | None = Field(
        default=None, ge=0, le=100, description="test accuracy before fine-tuning"
    )
    after: float | None = Field(default=None, ge=0, le=100, description="test accuracy after it")
    source: str = Field(min_length=1, description="where they are published")


class Preset(BaseModel):
    """One run as data: a pruner with changes, a network, images, and both plans.

    Seed and machine are left to whoever runs it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    help: str = Field(min_length=1, description="one line on what it is")
    pruner: str = Field(pattern=f"^{PART_NAME}$", description="the recipe it follows")
    density: float = Field(gt=0, le=1, description="fraction of the prunable weights to keep")
    model: PartData = Field(description="the network: its name, or a table with name and fields")
    dataset: PartData = Field(description="the images, in the same way")
    recipe: dict[str, Any] = Field(
        default_factory=dict,
        description="what differs from the pruner's own recipe: a table for every role, with "
        "fields, and with a name where it is another part",
    )
    search: Plan = Field(default=Plan(), description="how the search trains")
    finetune: Plan = Field(default=Plan(), description="how fine-tuning trains")
    on_collapse: CollapsePolicy = Field(default="error", description="when a layer is lost")
    expected: Expected | None = Field(default=None, description="what it should come to")
    note: str = Field(default="", description="what one should know, as where sources disagree")

    @field_validator("recipe")
    @classmethod
    def _known(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        """Refuse what no recipe has; fields of parts are checked when the recipe is made."""
        known = set(Recipe.model_fields) - {"pruner", "help", "density"}
        for key in recipe:
            if key not in known:
                raise ValueError(f"a recipe has no '{key}'{did_you_mean(key, known)}")
        return recipe

    def parts(self) -> dict[str, str]:
        """Return the parts that it puts into roles, by name."""
        return {
            role: name_of(part)
            for role, part in self.recipe.items()
            if role in ROLES and (isinstance(part, str) or "name" in part)
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
        own = {key: value for key, value in self.options().items() if of_recipe(key)}
        return registry.recipe(self.pruner, parts=self.parts(), options=own)

    def to_data(self) -> dict[str, Any]:
        """Return plain data: what the preset says, and nothing it leaves open."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def to_toml(self) -> str:
        """Return TOML that reads back as an equal preset."""
        return tomli_w.dumps(self.to_data())


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


def preset_from(name: str, data: object) -> Preset:
    """Validate the data of one preset; anything wrong is an OptionError that names it."""
    preset, problems = from_data(Preset, data, label="", title="a preset")
    if preset is None:
        raise report(f"preset '{name}'", problems)
    return preset


def presets_in(file: Path) -> dict[str, dict[str, Any]]:
    """Read a file of presets, each under the file's own name: `rare_gems.toml` has `rare_gems/…`.

    A table `[presets.NAME]` is one preset. What several have in common stands once, in a table
    `[families.NAME]` or in another preset, which they name with `like`; tables are joined, and
    everything else that a preset says itself wins. Where a preset has a table `paper` or `code`, it
    stands for presets `NAME@paper` and `NAME@code` with those differences; `code = false` takes
    back one that it has from its family.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"presets {file}: cannot be read, {error}") from error
    if unknown := set(tables) - {"families", "presets"}:
        raise OptionError(f"presets {file}: has tables {sorted(unknown)}; use families and presets")
    known = {**tables.get("families", {}), **tables.get("presets", {})}
    return {
        f"{file.stem}/{name}": data
        for table in tables.get("presets", {})
        for name, data in _variants(table, _joined_with_family(table, known, file))
    }


def _joined_with_family(name: str, known: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Put a table on top of those it is like, the most general one at the bottom."""
    data, seen = dict(known[name]), [name]
    while "like" in data:
        other = data.pop("like")
        if other not in known or other in seen:
            what = "itself" if other in seen else f"'{other}', which is not there"
            raise OptionError(f"presets {file}: '{name}' is like {what}")
        seen.append(other)
        data = joined(known[other], data)
    return data


def _variants(name: str, data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield one preset, or one for everybody who describes it."""
    differences = {word: data.pop(word) for word in VARIANTS if word in data}
    if not differences:
        yield name, data
    for word, own in differences.items():
        if own is not False:
            yield f"{name}@{word}", joined(data, own)


def joined(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another; tables within them are joined in the same way."""
    both = dict(under)
    for key, value in over.items():
        inner = both.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            both[key] = joined(inner, value)
        else:
            both[key] = value
    return both
