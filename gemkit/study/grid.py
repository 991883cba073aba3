"""Grids: axes, zips, exclusions and named variants, as data; they make the cells of a study.

name = "lambda"
seeds = 3                                       # the axis seed = [0, 1, 2]
checks = ["shuffle"]
[base]                                          # fields of RunConfig
model = "conv4"
search.epochs = 10
[grid]                                          # every value with every other
pruner = ["gem_miner", "snip"]
"regularizer.weight" = [1e-4, 1e-3]
[[zip]]                                         # values that move together
density = [0.05, 0.02]
search.lr = [2.0, 4.0]
[[exclude]]
pruner = "snip"
regularizer.weight = 1e-3
[variant.wide]                                  # all of it, once for every variant
model.width = 64
[variant.usual]
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from gemkit.core.atomic_io import read
from gemkit.core.bounded import Name, Spec
from gemkit.core.density import density_of_sparsity
from gemkit.core.errors import OptionError, did_you_mean
from gemkit.core.limits import MAX_CONFIG_BYTES
from gemkit.parts.options import from_data, report
from gemkit.parts.recipe import ROLES, Recipe
from gemkit.runs.config import RunConfig

MAX_CELLS = 1_000_000
_TOP = set(RunConfig.model_fields)
_DEFAULTS = {name: RunConfig.model_fields[name].default for name in ("model", "dataset")}


class Point(NamedTuple):
    """One cell before it is looked up: the fields of its RunConfig, and its place on every axis."""

    data: dict[str, Any]
    axes: dict[str, Any]
    variant: str | None


class Grid(BaseModel):
    """A study as data: what all cells share, and what differs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: Name = Field(default="", description="the name of the study; by default its folder's")
    base: Spec = Field(default={}, description="fields of RunConfig that all cells share")
    grid: Spec = Field(default={}, description="axes: field = list of values, all combined")
    zip: list[Spec] = Field(default=[], description="axes whose values move together")
    exclude: list[Spec] = Field(default=[], description="cells to leave out, by their values")
    variant: dict[str, Spec] = Field(default={}, description="named changes to the base")
    seeds: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="how many seeds, 0 first"
    )
    checks: list[Name] = Field(default=[], description="controls and measurements of each ticket")

    def points(self) -> list[Point]:
        """List the cells, all of one seed before the next."""
        blocks, base = self._blocks(), _flat(self.base)
        variants: list[tuple[str | None, dict[str, Any]]] = [
            (name, _flat(own)) for name, own in self.variant.items()
        ]
        variants = variants or [(None, {})]
        size = len(variants)
        for block in blocks:
            size *= len(block)
        if size > MAX_CELLS:
            raise OptionError(f"this study has {size:,} cells, and {MAX_CELLS:,} is the most")
        points = [
            _point(base, name, changes, chosen)
            for chosen in product(*blocks)
            for name, changes in variants
        ]
        known = {axis for block in blocks for axis in block[0]}
        rules = [_rule(entry, known) for entry in self.exclude]
        left = [one for one in points if not any(_matches(one, rule) for rule in rules)]
        if not left:
            raise OptionError("this study has no cells: exclude leaves none")
        return left

    def _blocks(self) -> list[list[dict[str, Any]]]:
        """Return the axes, each as a list of assignments; seeds vary slowest."""
        blocks = [
            [{axis: value} for value in _values(axis, values)]
            for axis, values in _flat(self.grid).items()
        ]
        blocks += [_zipped(entry) for entry in self.zip]
        if self.seeds is not None:
            blocks.append([{"seed": seed} for seed in range(self.seeds)])
        axes = [axis for block in blocks for axis in block[0]]
        for axis in axes:
            if axes.count(axis) > 1:
                raise OptionError(f"axis '{axis}' is given twice; give it once")
        return sorted(blocks, key=lambda block: "seed" not in block[0])


def _point(
    base: Mapping[str, Any],
    variant: str | None,
    changes: Mapping[str, Any],
    chosen: Iterable[Mapping[str, Any]],
) -> Point:
    """Return one cell; a whole part is set before its fields, `model` before `model.width`."""
    axes = {axis: value for one in chosen for axis, value in one.items()}
    own, data = {**base, **changes, **axes}, dict[str, Any]()
    for path in sorted(own, key=lambda path: path.count(".")):
        _put(data, path, own[path])
    return Point(data, axes, variant)


def grid_from(data: Mapping[str, Any], title: str = "this study") -> Grid:
    """Validate a grid that is given as a table."""
    grid, problems = from_data(Grid, data, label="", title="a study")
    if grid is None:
        raise report(title, problems)
    return grid


def read_grid(file: Path) -> Grid:
    """Read a study file; networks in it are tables, since a file alone runs no code."""
    try:
        data = tomllib.loads(read(file, MAX_CONFIG_BYTES).decode())
    except OSError as error:
        raise OptionError(
            f"study {file} cannot be read: {error.strerror or error}; give a TOML file "
            "(docs/studies.md), or options"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"study {file} is not valid TOML: {error}") from error
    return grid_from({"name": file.stem, **data}, f"study {file}")


def replaced(grid: Grid, axes: Mapping[tuple[str, ...], Sequence[Any]]) -> Grid:
    """Return a grid with other values for some fields, by the fields that move together.

    A single value is one of the base; several are an axis.
    """
    base, blocks, zips, seeds = _flat(grid.base), _flat(grid.grid), list(grid.zip), grid.seeds
    for paths, values in axes.items():
        own = _flat({path: list(values) for path in paths})
        for path in own:
            blocks.pop(path, None)
            seeds = None if path == "seed" else seeds
            if any(path in _flat(entry) for entry in grid.zip):
                raise OptionError(f"'{path}' is in a zip of the study file; change it there")
        if len(values) == 1:
            base |= {path: one[0] for path, one in own.items()}
        elif len(own) == 1:
            blocks |= own
        else:
            zips.append(own)
    changed = {"base": base, "grid": blocks, "zip": zips, "seeds": seeds}
    return grid_from({**grid.model_dump(), **changed})


def canonical(path: str) -> str:
    """Return an axis as a field of RunConfig; fields of a recipe may come without `recipe.`."""
    first = path.partition(".")[0]
    if first in _TOP or first == "sparsity":
        return path
    if first in (*ROLES, *Recipe.model_fields):
        return f"recipe.{path}"
    known = [*_TOP, *Recipe.model_fields, "sparsity"]
    raise OptionError(f"'{path}' is no field of a run{did_you_mean(first, known)}")


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table as dotted fields; a table with a `name` is a whole part."""
    flat: dict[str, Any] = {}
    for path, value in _leaves(table):
        axis = canonical(path)
        if axis == "sparsity":
            axis, value = "density", _as_densities(value)
        if axis in flat:
            raise OptionError(f"'{axis}' is given twice; give it once")
        flat[axis] = value
    return flat


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value and "name" not in value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _as_densities(value: Any) -> Any:  # noqa: ANN401 - a number, a text, or a list of them
    try:
        if isinstance(value, list):
            return [density_of_sparsity(one) for one in value]
        return density_of_sparsity(value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"sparsity = {value!r}: {error}") from error


def _values(axis: str, values: object) -> list[Any]:
    """Check the values of an axis, and drop those that are there twice."""
    if not isinstance(values, list) or not values:
        raise OptionError(f"axis {axis} = {values!r}: should be a list of values, not an empty one")
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _zipped(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    flat = _flat(entry)
    lengths = {
        axis: len(values) if isinstance(values, list) else 0 for axis, values in flat.items()
    }
    if not flat or len(set(lengths.values())) != 1 or 0 in lengths.values():
        found = ", ".join(f"{axis} has {length}" for axis, length in lengths.items())
        raise OptionError(
            f"the axes of a zip need lists of the same length: {found or 'there is none'}"
        )
    return [dict(zip(flat, values, strict=True)) for values in zip(*flat.values(), strict=True)]


def _rule(entry: Mapping[str, Any], known: set[str]) -> dict[str, list[Any]]:
    """Return the values that exclude a cell, by axis."""
    own = {key: value for key, value in entry.items() if key == "variant"}
    flat = own | _flat({key: value for key, value in entry.items() if key != "variant"})
    for axis in flat:
        if axis not in known | {"variant"}:
            raise OptionError(
                f"exclude: '{axis}' is no axis of this study{did_you_mean(axis, known)}"
            )
    if not flat:
        raise OptionError("exclude: an empty entry would leave out every cell")
    return {axis: value if isinstance(value, list) else [value] for axis, value in flat.items()}


def _matches(point: Point, rule: Mapping[str, Sequence[Any]]) -> bool:
    own = {**point.axes, "variant": point.variant}
    return all(own[axis] in values for axis, values in rule.items())


def _put(table: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401 - any field's
    """Set a field; tables on the way are copied, and a part's name becomes a table."""
    *above, last = path.split(".")
    inside = _DEFAULTS if above else {}
    for step in above:
        inner = table.get(step, inside.get(step, {}))
        if not isinstance(inner, str | Mapping):
            raise OptionError(f"'{path}' cannot be set: '{step}' is {inner!r}, not a table")
        table[step] = {"name": inner} if isinstance(inner, str) else dict(inner)
        table, inside = table[step], {}
    table[last] = value
