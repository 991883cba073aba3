"""Presets: named run configurations, read from and written to TOML."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gemkit.core.bounded import WrittenDensity
from gemkit.core.errors import OptionError, did_you_mean
from gemkit.parts.options import from_data, report
from gemkit.parts.recipe import PART_NAME, Recipe
from gemkit.runs.config import PartData, RunConfig
from gemkit.runs.read_config import with_density

PRESET_NAME = r"[a-z0-9_]+/[a-z0-9][a-z0-9._-]*(@[a-z]+)?"
"""Plugin, slash, name; @ and a variant if sources disagree."""

VARIANTS = ("paper", "code")
"""A name without @ means the first of these that exists."""


class Expected(BaseModel):
    """Published accuracies in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    before: float | None = Field(
        default=None, ge=0, le=100, description="test accuracy before fine-tuning"
    )
    after: float | None = Field(default=None, ge=0, le=100, description="test accuracy after it")
    source: str = Field(min_length=1, description="where they are published")


class Preset(RunConfig):
    """A run configuration with a line of help and the expected accuracy.

    It comes from a plugin, so it is trusted to name code and weights.
    """

    pruner: str = Field(pattern=f"^{PART_NAME}$", description="name of the pruner")
    density: WrittenDensity = Field(
        description="fraction of the prunable weights to keep, or a text such as '5%'"
    )
    model: PartData = Field(description="network: its name, or a table with name and fields")
    dataset: PartData = Field(description="data set: its name, or a table with name and fields")
    help: str = Field(min_length=1, description="one-line description")
    expected: Expected | None = Field(default=None, description="expected accuracies")
    note: str = Field(default="", description="remarks, such as differences between sources")

    @field_validator("recipe")
    @classmethod
    def _known(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        """Refuse unknown keys; fields of parts are checked when the recipe is built."""
        known = set(Recipe.model_fields) - {"pruner", "help", "density"}
        for key in recipe:
            if key not in known:
                raise ValueError(f"a recipe has no '{key}'{did_you_mean(key, known)}")
        return recipe

    def to_data(self) -> dict[str, Any]:
        """Return the fields that the preset sets, as plain data."""
        return {"help": self.help} | self.model_dump(
            mode="json", exclude_unset=True, exclude_none=True
        )


def preset_from(name: str, data: object) -> Preset:
    """Validate the data of one preset; problems are an OptionError that names the preset."""
    try:
        own = with_density(data) if isinstance(data, Mapping) else data
    except OptionError as error:
        raise report(f"preset '{name}'", [str(error)]) from error
    preset, problems = from_data(Preset, own, label="", title="a preset")
    if preset is None:
        raise report(f"preset '{name}'", problems)
    return preset


def presets_in(file: Path) -> dict[str, dict[str, Any]]:
    """Read a file of presets, named after the file: `rare_gems.toml` has `rare_gems/…`.

    A table `[presets.NAME]` is one preset. With `like`, it extends a table `[families.NAME]` or
    another preset: tables are merged, and other values of the preset win. A preset with a table
    `paper` or `code` becomes the presets `NAME@paper` and `NAME@code` with those differences;
    `code = false` removes one that the family has.
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
        for name, data in _variants(table, _with_family(table, known, file))
    }


def _with_family(name: str, known: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Merge a table with those it is like; the more specific table wins."""
    data, seen = dict(known[name]), [name]
    while "like" in data:
        other = data.pop("like")
        if other not in known or other in seen:
            what = "itself" if other in seen else f"'{other}', which does not exist"
            raise OptionError(f"presets {file}: '{name}' is like {what}")
        seen.append(other)
        data = merged(known[other], data)
    return data


def _variants(name: str, data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the preset, or one preset for each of its variants."""
    variants = {variant: data.pop(variant) for variant in VARIANTS if variant in data}
    if not variants:
        yield name, data
    for variant, changes in variants.items():
        if changes is not False:
            yield f"{name}@{variant}", merged(data, changes)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`; nested tables are merged recursively."""
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            result[key] = merged(inner, value)
        else:
            result[key] = value
    return result
