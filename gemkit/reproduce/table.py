"""Tables of the paper as data: their rows, and the published accuracies."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemkit.core.errors import UnknownNameError
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset, merged, preset_from
from gemkit.reproduce.scale import Scale, scaled
from gemkit.reproduce.synthetic import tried
from gemkit.study.store import Row

KEYS = ("setting", "seed", "checks", "tuning", "synthetic")
"""The fields that identify a run; a run that several tables share is run once."""

FIGURES = ("accuracy", "sanity", "layers", "convergence", "scatter")
"""The figures of a table that names none."""


class Published(BaseModel):
    """The paper's numbers for a row; accuracies are in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    before: float | None = Field(default=None, description="accuracy before fine-tuning")
    after: float | None = Field(default=None, description="accuracy after it")
    density: float | None = Field(default=None, description="actual density")
    epochs: int | None = Field(default=None, description="epochs of the search")
    checks: dict[str, float] = Field(
        default_factory=dict, description="accuracy of controls after fine-tuning, by check"
    )
    at_init: bool | None = Field(default=None, description="whether it prunes at initialization")
    finetunable: bool | None = Field(default=None, description="whether it can be fine-tuned")
    passes: bool | None = Field(default=None, description="whether it passes the sanity checks")


class Tuning(BaseModel):
    """A stage that tunes the layer densities of a random ticket before it is drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    by: Literal["search", "learn"] = Field(description="trials around them, or gradient descent")
    epochs: int = Field(ge=1, description="epochs of each trial, or of gradient descent")


class Line(BaseModel):
    """One row of a table: a method, its preset, and its controls."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: str = Field(description="the name of the row")
    preset: str = Field(description="the preset that is run")
    density: float | None = Field(default=None, gt=0, le=1, description="instead of the preset's")
    changes: dict[str, Any] = Field(default_factory=dict, description="changes to the preset")
    checks: tuple[str, ...] = Field(default=(), description="sanity checks of its ticket")
    tuning: tuple[Tuning, ...] = Field(default=(), description="stages before the ticket is drawn")
    paper: Published = Field(default=Published(), description="what the paper prints")

    def setting(self, registry: Registry, scale: Scale) -> Preset:
        """Return the run of this row at a scale."""
        usual = registry.preset(self.preset).thing
        changes = self.changes | ({"density": self.density} if self.density else {})
        preset = preset_from(self.preset, merged(usual.to_data(), changes))
        rate = 1.0
        if preset.search.lr and usual.search.lr:
            rate = preset.search.lr / usual.search.lr
        if scale.synthetic:
            return tried(preset, registry, rate)
        return scaled(preset, scale, registry, rate)

    def shortened(self, scale: Scale) -> "Line":
        """Return the row with as many epochs of tuning as the scale leaves."""
        time = 0.0 if scale.synthetic else scale.time
        tuning = tuple(
            Tuning(by=stage.by, epochs=max(1, round(stage.epochs * time))) for stage in self.tuning
        )
        return self.model_copy(update={"tuning": tuning})


class Table(BaseModel):
    """A table or figure of the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str = Field(description="one line on what it shows")
    source: str = Field(description="where the paper has it")
    aliases: tuple[str, ...] = Field(default=(), description="other names of the table")
    seeds: int = Field(default=1, ge=1, description="how many seeds to run by default")
    plot_only: bool = Field(default=False, description="whether the paper prints no numbers")
    columns: Literal["accuracies", "properties"] = Field(
        default="accuracies", description="what is shown of a row"
    )
    figures: tuple[str, ...] = Field(default=FIGURES, description="what to draw")
    text: tuple[str, ...] = Field(default=(), description="what the paper's text says of it")
    differences: tuple[str, ...] = Field(
        default=(), description="how its protocol differs from the paper's, even at full scale"
    )
    rows: tuple[Line, ...] = Field(min_length=1)

    def settings(self, registry: Registry, scale: Scale) -> list[tuple[Line, Preset]]:
        """Return the preset of every row at this scale."""
        return [(line.shortened(scale), line.setting(registry, scale)) for line in self.rows]

    def runs(self, registry: Registry, scale: Scale, seeds: int) -> Iterator[Row]:
        """List the runs, all rows of one seed before the next, as keys of the ledger."""
        settings = self.settings(registry, scale)
        for seed in range(seeds):
            for line, preset in settings:
                yield run_of(line, preset, seed, synthetic=scale.synthetic)


def run_of(line: Line, preset: Preset, seed: int, *, synthetic: bool = False) -> Row:
    """Return the keys of a run in the ledger, without texts that do not change it."""
    setting = preset.to_data()
    for text in ("help", "note", "expected"):
        setting.pop(text, None)
    run: Row = {"setting": setting, "seed": seed, "checks": list(line.checks)}
    if line.tuning:
        run["tuning"] = [stage.model_dump() for stage in line.tuning]
    if synthetic:
        run["synthetic"] = True
    return run


def tables() -> dict[str, Table]:
    """Read all tables."""
    text = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    return {name: _table(data) for name, data in tomllib.loads(text).items()}


def _table(data: dict[str, Any]) -> Table:
    rows = [line for row in data["rows"] for line in _lines(row)]
    return Table.model_validate_json(json.dumps({**data, "rows": rows}))


def _lines(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each of its `densities`, or for each text that fills the {} of its preset."""
    line = {key: value for key, value in row.items() if key not in ("densities", "each")}
    if "each" in row:
        yield from (line | {"preset": row["preset"].replace("{}", one)} for one in row["each"])
    elif "densities" in row:
        yield from (line | {"density": density} for density in row["densities"])
    else:
        yield line


def by_name(known: Mapping[str, Table]) -> dict[str, Table]:
    """Return tables by all their names."""
    return {other: table for table in known.values() for other in table.aliases} | dict(known)


def table_of(name: str) -> Table:
    """Return the table of this name."""
    names = by_name(tables())
    if name not in names:
        raise UnknownNameError(
            f"unknown table '{name}'{_suggestion(name, names)} `gemkit reproduce` lists all"
        )
    return names[name]


def _suggestion(name: str, names: Iterable[str]) -> str:
    """Suggest names that are similar as a whole, or up to their first hyphen."""
    forms: dict[str, list[str]] = {}
    for one in sorted(names):
        forms.setdefault(one, []).append(one)
        forms.setdefault(one.partition("-")[0], []).append(one)
    near = get_close_matches(name, forms)  # the closest first
    close = list(dict.fromkeys(one for form in near for one in forms[form]))
    return f"; did you mean {' or '.join(map(repr, close[:4]))}?" if close else ";"
