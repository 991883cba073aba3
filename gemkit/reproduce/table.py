"""Tables of the paper as data: rows that name presets, and the figures that were published."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from gemkit.errors import UnknownNameError, did_you_mean
from gemkit.preset import Preset
from gemkit.registry import Registry
from gemkit.report.ledger import Row
from gemkit.reproduce.scale import Scale, scaled

KEYS = ("setting", "seed", "checks")
"""What makes one run different from another; runs that tables share are made once."""


class Published(BaseModel):
    """What the paper prints for a row: accuracies in percent, after fine-tuning if not said."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    before: float | None = Field(default=None, description="accuracy before fine-tuning")
    after: float | None = Field(default=None, description="accuracy after it")
    epochs: int | None = Field(default=None, description="epochs of the search")
    checks: dict[str, float] = Field(
        default_factory=dict, description="accuracy of controls after fine-tuning, by check"
    )


class Line(BaseModel):
    """One row of a table: a method, the preset that stands for it, and its controls."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: str = Field(description="what the row is called")
    preset: str = Field(description="the preset that is run")
    density: float | None = Field(default=None, gt=0, le=1, description="instead of the preset's")
    checks: tuple[str, ...] = Field(default=(), description="sanity checks of its ticket")
    paper: Published = Field(default=Published(), description="what the paper prints")


class Table(BaseModel):
    """A table or figure of the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str = Field(description="one line on what it shows")
    source: str = Field(description="where the paper has it")
    seeds: int = Field(default=1, ge=1, description="how many seeds to run, if nobody says")
    differences: tuple[str, ...] = Field(
        default=(), description="how its protocol differs from the paper's, even at full scale"
    )
    rows: tuple[Line, ...] = Field(min_length=1)

    def settings(self, registry: Registry, scale: Scale) -> list[tuple[Line, Preset]]:
        """Return what every row runs at this scale."""
        return [(line, scaled(_preset(registry, line), scale, registry)) for line in self.rows]

    def runs(self, registry: Registry, scale: Scale, seeds: int) -> Iterator[Row]:
        """List the runs, all rows of one seed before the next, as keys of the ledger."""
        settings = self.settings(registry, scale)
        for seed in range(seeds):
            for line, preset in settings:
                yield run_of(line, preset, seed)


def run_of(line: Line, preset: Preset, seed: int) -> Row:
    """Say in plain data what is run; what only people read is no part of it."""
    setting = preset.to_data()
    for told in ("help", "note", "expected"):
        setting.pop(told, None)
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
    """Look one up."""
    known = tables()
    if name not in known:
        raise UnknownNameError(f"unknown table '{name}'{did_you_mean(name, known)}")
    return known[name]
