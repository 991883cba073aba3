"""The paper's figures and tables in its order, and what there is for each."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemkit.plugins.registry import Registry
from gemkit.reproduce.datasets import needs
from gemkit.reproduce.table import Table, by_name


class Item(BaseModel):
    """A figure or table of the paper: the tables that make it, or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: str = Field(description="its number in the paper")
    label: str = Field(description="its label in the paper's source")
    entries: tuple[str, ...] = Field(default=(), description="tables to run")
    instead: str = Field(default="", description="why there is none, and where to look")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.entries) == bool(self.instead):
            raise ValueError(f"{self.number}: give entries or a reason, and not both")
        return self


def paper() -> list[Item]:
    """Read the list of figures and tables."""
    text = Path(__file__).with_name("paper.toml").read_text(encoding="utf-8")
    return [Item.model_validate_json(json.dumps(one)) for one in tomllib.loads(text)["items"]]


Rows = list[tuple[str, str, str, str, str]]


def listing(known: Mapping[str, Table], registry: Registry, folder: Path | None) -> Rows:
    """List every figure and table: its number, entry, rows, what it needs, and what it shows."""
    rows: Rows = []
    items, names = paper(), by_name(known)
    for item in items:
        if item.instead:
            rows.append((item.number, "–", "", "", item.instead))
        for name in item.entries:
            rows.append((item.number, *_about(name, names[name], registry, folder)))
    listed = {name for item in items for name in item.entries}
    others = [name for name in known if name not in listed]
    return rows + [("–", *_about(name, known[name], registry, folder)) for name in others]


def _about(
    name: str, table: Table, registry: Registry, folder: Path | None
) -> tuple[str, str, str, str]:
    presets = [registry.preset(line.preset).thing for line in table.rows]
    wanted = ", ".join(
        what if there else f"{what} ✗" for what, there in needs(presets, folder).items()
    )
    title = f"{table.title} (plot only)" if table.plot_only else table.title
    return name, str(len(table.rows)), wanted, title
