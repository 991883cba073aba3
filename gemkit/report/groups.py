"""Records grouped over seeds, and the series that a figure or a table shows them as."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gemkit.report.records import Moment, Record, leaves
from gemkit.report.spread import Spread, spread_of
from gemkit.training.metrics import Metric

_USUAL = {"pruner", "variant", "density", "model", "dataset", "seed"}
"""Axes that have a field of their own."""
_LONGEST = 80
_RANK = {"done": 0, "partial": 1, "failed": 2, "missing": 3}


class Place(NamedTuple):
    """What can be compared: the same network, data and metric."""

    model: str
    dataset: str
    metric: str

    def text(self) -> str:
        """Return a title."""
        usual = "" if self.metric == "accuracy" else f", {self.metric}"
        return f"{self.model} · {self.dataset}{usual}"


@dataclass(frozen=True)
class Group:
    """The seeds of one cell, which differ in nothing else."""

    label: str
    records: tuple[Record, ...]
    """One for each seed, in their order, whatever their state."""
    settings: Mapping[str, str]

    @property
    def place(self) -> Place:
        """Where it can be compared."""
        first = self.records[0]
        return Place(first.model, first.dataset, first.metric)

    @property
    def density(self) -> float:
        """The target density."""
        return self.records[0].density

    @cached_property
    def metric(self) -> Metric:
        """What was measured."""
        return self.records[0].kind()

    @cached_property
    def measured(self) -> tuple[Record, ...]:
        """The seeds with a result after fine-tuning."""
        return tuple(one for one in self.records if one.after is not None)

    @property
    def states(self) -> Counter[str]:
        """How many seeds are done, collapsed, partial, failed and missing."""
        return Counter("collapsed" if one.collapsed else one.state for one in self.records)

    @property
    def lacking(self) -> str:
        """What a mean over its seeds leaves out, such as `1 failed, 2 collapsed`."""
        return ", ".join(f"{count} {one}" for one, count in self.states.items() if one != "done")

    @property
    def collapsed(self) -> str:
        """How many seeds lost a layer or every path and were measured all the same, in words."""
        count = sum(one.collapse is not None for one in self.measured)
        return f"{count} collapsed, measured" if count else ""

    def by_seed(self, moment: str) -> dict[int, float]:
        """Return `before` or `after` of every seed that has it."""
        values = {one.seed: getattr(one, moment) for one in self.records}
        return {seed: value for seed, value in values.items() if value is not None}

    def spread(self, value: str) -> Spread | None:
        """Return mean and interval of a field of the records, such as `after` or `actual`."""
        values = [getattr(one, value) for one in self.records]
        return spread_of([one for one in values if one is not None])

    @cached_property
    def actual(self) -> float:
        """The mean actual density, or the target if none is known."""
        spread = self.spread("actual")
        return self.density if spread is None else spread.mean

    def checks(self) -> list[str]:
        """Return the controls that were made for any seed."""
        return list(dict.fromkeys(name for one in self.records for name in one.controls))

    def layers(self) -> list[tuple[str, float]]:
        """Return the mean density of every layer, over the seeds that have the same layers."""
        known = [one.layers for one in self.records if one.layers]
        if not known:
            return []
        names = [name for name, _, _ in known[0]]
        same = [one for one in known if [name for name, _, _ in one] == names]
        shares = [
            [kept / prunable if prunable else 0.0 for _, kept, prunable in one] for one in same
        ]
        means = [sum(column) / len(column) for column in zip(*shares, strict=True)]
        return list(zip(names, means, strict=True))

    def curve(
        self, phase: str, value: Callable[[Moment], float | None]
    ) -> list[tuple[float, Spread]]:
        """Return mean and interval after every epoch of a phase, over the seeds that have it."""
        at: dict[float, list[float]] = {}
        for one in self.records:
            for moment in getattr(one.curves, phase):
                if (number := value(moment)) is not None:
                    at.setdefault(moment.epoch, []).append(number)
        known = ((epoch, spread_of(values)) for epoch, values in sorted(at.items()))
        return [(epoch, spread) for epoch, spread in known if spread is not None]

    def bound(self) -> list[tuple[float, float]]:
        """Return the densities of the freezes by epoch, of the first seed that has any.

        Before the first freeze every weight is allowed.
        """
        known = next((list(one.bound) for one in self.records if one.bound), [])
        return [(0.0, 1.0), *known] if known and known[0][0] > 0 else known


def group(records: Iterable[Record]) -> list[Group]:
    """Group records over seeds; cells whose configurations differ are never pooled."""
    cells: dict[tuple[object, ...], dict[int, Record]] = {}
    for one in records:
        seeds = cells.setdefault(_key(one), {})
        seeds[one.seed] = _merged(seeds[one.seed], one) if one.seed in seeds else one
    made = [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in cells.values()]
    labels = _labels([one[0] for one in made])
    return [Group(label, own, _settings(own[0])) for label, own in zip(labels, made, strict=True)]


def series_of(groups: Sequence[Group]) -> list[str]:
    """Return the labels in the order in which they appear."""
    return list(dict.fromkeys(one.label for one in groups))


def places_of(groups: Sequence[Group]) -> list[Place]:
    """Return the places in the order in which they appear."""
    return list(dict.fromkeys(one.place for one in groups))


def densities_of(groups: Iterable[Group]) -> list[float]:
    """Return the target densities, from dense to sparse."""
    return sorted({one.density for one in groups}, reverse=True)


def _settings(record: Record) -> dict[str, str]:
    """Return the configuration without the seed."""
    flat = leaves(record.config)
    return {path: value for path, value in flat.items() if path != "seed"}


def _axes(record: Record) -> dict[str, str]:
    """Return the axes that have no field of their own."""
    return leaves({name: value for name, value in record.axes.items() if name not in _USUAL})


def _key(record: Record) -> tuple[object, ...]:
    family = (record.variant, record.pruner, record.model, record.dataset, record.metric)
    settings = (*_settings(record).items(), "axes", *_axes(record).items())
    return (*family, record.density, tuple(sorted(map(str, settings))))


def _merged(one: Record, other: Record) -> Record:
    """Return the more complete of two records of a seed, with what only the other one has."""
    first, second = sorted((one, other), key=lambda own: (own.after is None, _RANK[own.state]))
    return first.model_copy(
        update={
            "controls": {**second.controls, **first.controls},
            "measurements": {**second.measurements, **first.measurements},
            "unmade": {**second.unmade, **first.unmade},
            **{
                name: getattr(second, name)
                for name in ("layers", "bound", "ticket", "kept", "prunable", "before")
                if getattr(first, name) in (None, [])
            },
        }
    )


def _labels(records: Sequence[Record]) -> list[str]:
    """Name the series: the pruner and its variant, and what distinguishes otherwise equal cells."""
    families: dict[tuple[str | None, str], list[Record]] = {}
    for one in records:
        families.setdefault((one.variant, one.pruner), []).append(one)
    differing = {family: _differing(own) for family, own in families.items()}
    labels, taken = [], Counter[tuple[object, ...]]()
    for one in records:
        varied = differing[one.variant, one.pruner]
        known = _axes(one) | _settings(one)
        parts = [f"{_short(path)} {known.get(path, '–')}" for path in varied]
        named = [one.pruner, *([one.variant] if one.variant not in (None, one.pruner) else [])]
        label = ", ".join([*map(str, named), *parts])
        label = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
        taken[cell := (label, _cell(one))] += 1
        labels.append(label if taken[cell] == 1 else f"{label} #{taken[cell]}")
    return labels


def _short(path: str) -> str:
    """Return the name of a setting for a label."""
    return path.removeprefix("recipe.").removesuffix(".name")


def _cell(record: Record) -> tuple[object, ...]:
    return record.model, record.dataset, record.metric, record.density


def _differing(records: Sequence[Record]) -> list[str]:
    """Return the fewest axes, or else settings, that distinguish the records of every cell."""
    cells: dict[tuple[object, ...], list[Record]] = {}
    for one in records:
        cells.setdefault(_cell(one), []).append(one)
    crowded = [own for own in cells.values() if len(own) > 1]
    for settings in (_axes, _settings, lambda one: _axes(one) | _settings(one)):
        tables = [[settings(one) for one in own] for own in crowded]
        paths = distinguishing(tables)
        if _kinds(tables, paths) == sum(map(len, crowded)):
            break
    return paths


def distinguishing(tables: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
    """Choose paths one by one, each time the one that distinguishes most, names first."""
    every = dict.fromkeys(path for own in tables for table in own for path in table)
    names = sorted(every, key=lambda path: not path.endswith(".name"))
    chosen: list[str] = []
    while names:
        best = max(names, key=lambda path: _kinds(tables, [*chosen, path]))
        if _kinds(tables, [*chosen, best]) == _kinds(tables, chosen):
            break
        chosen.append(best)
    return chosen


def _kinds(tables: Sequence[Sequence[Mapping[str, str]]], paths: Sequence[str]) -> int:
    """Count what some paths distinguish, over all cells."""
    return sum(len({tuple(one.get(path) for path in paths) for one in own}) for own in tables)
