"""Tables of the paper as data: rows that name presets, and the published accuracies."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from gemkit.core.errors import UnknownNameError, did_you_mean
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset
from gemkit.reproduce.scale import Scale, scaled
from gemkit.study.store import Row

KEYS = ("setting", "seed", "checks")
"""The fields that identify a run; a run that several tables share is run once."""


class Published(BaseModel):
    """The paper's numbers for a row; accuracies are in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    before: float | None = Field(default=None, description="accuracy before fine-tuning")
    after: float | None = Field(default=None, description="accuracy after it")
    epochs: int | None = Field(default=None, description="epochs of the search")
    checks: dict[str, float] = Field(
        default_factory=dict, description="accuracy of controls after fine-tuning, by check"
    )


class Line(BaseModel):
    """One row of a table: a method, its preset, and its controls."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: str = Field(description="the name of the row")
    preset: str = Field(description="the preset that is run")
    density: float | None = Field(default=None, gt=0, le=1, description="instead of the preset's")
    checks: tuple[str, ...] = Field(default=(), description="sanity checks of its ticket")
    paper: Published = Field(default=Published(), description="what the paper prints")


class Table(BaseModel):
    """A table or figure of the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str = Field(description="one line on what it shows")
    source: str = Field(description="where the paper has it")
    seeds: int = Field(default=1, ge=1, description="how many seeds to run by default")
    differences: tuple[str, ...] = Field(
        default=(), description="how its protocol differs from the paper's, even at full scale"
    )
    rows: tuple[Line, ...] = Field(min_length=1)

    def settings(self, registry: Registry, scale: Scale) -> list[tuple[Line, Preset]]:
        """Return the preset of every row at this scale."""
        return [(line, scaled(_preset(registry, line), scale, registry)) for line in self.rows]

    def runs(self, registry: Registry, scale: Scale, seeds: int) -> Iterator[Row]:
        """List the runs, all rows of one seed before the next, as keys of the ledger."""
        settings = self.settings(registry, scale)
        for seed in range(seeds):
            for line, preset in settings:
                yield run_of(line, preset, seed)


def run_of(line: Line, preset: Preset, seed: int) -> Row:
    """Return the keys of a run in the ledger, without texts that do not change it."""
    setting = preset.to_data()
    for text in ("help", "note", "expected"):
        setting.pop(text, None)
    return {"setting": setting, "seed": seed, "checks": list(line.checks)}


def _preset(registry: Registry, line: Line) -> Preset:
    preset = registry.preset(line.preset).thing
    return preset.model_copy(update={"density": line.density} if line.density else {})


def tables() -> dict[str, Table]:
    """Read all tables."""
    text = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    return {name: _table(data) for name, data in tomllib.loads(text).items()}


def _table(data: object) -> Table:
    return Table.model_validate_json(json.dumps(data))


def table_of(name: str) -> Table:
    """Return the table of this name."""
    known = tables()
    if name not in known:
        raise UnknownNameError(f"unknown table '{name}'{did_you_mean(name, known)}")
    return known[name]
