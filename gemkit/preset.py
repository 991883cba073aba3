"""A preset: the configuration of a run under a name; TOML in, TOML out."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gemkit.bounded import Density
from gemkit.errors import OptionError, did_you_mean
from gemkit.options import from_data, report
from gemkit.recipe import PART_NAME, Recipe
from gemkit.runs.config import PartData, RunConfig

PRESET_NAME = r"[a-z0-9_]+/[a-z0-9][a-z0-9._-]*(@[a-z]+)?"
"""Who brings it, a stroke, what it is; @ and a word where sources disagree."""

VARIANTS = ("paper", "code")
"""What a name without @ stands for, the first of these that exists."""


class Expected(BaseModel):
    """Accuracies that somebody published, in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    before: float | None = Field(
        default=None, ge=0, le=100, description="test accuracy before fine-tuning"
    )
    after: float | None = Field(default=None, ge=0, le=100, description="test accuracy after it")
    source: str = Field(min_length=1, description="where they are published")


class Preset(RunConfig):
    """A run with a name and a line of help, and the accuracy to expect.

    It comes from a plugin, so it may name code and weights, as the plugin itself may.
    """

    pruner: str = Field(pattern=f"^{PART_NAME}$", description="the recipe it follows")
    density: Density = Field(description="fraction of the prunable weights to keep")
    model: PartData = Field(description="the network: its name, or a table with name and fields")
    dataset: PartData = Field(description="the images, in the same way")
    help: str = Field(min_length=1, description="one line on what it is")
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

    def to_data(self) -> dict[str, Any]:
        """Return plain data: what the preset says, and nothing it leaves open."""
        return {"help": self.help} | self.model_dump(
            mode="json", exclude_unset=True, exclude_none=True
        )


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
