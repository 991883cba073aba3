"""How far a study is: its cells and stages by state, and an estimate of the time left."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemkit.core.errors import StorageError
from gemkit.study.cell import CellInfo
from gemkit.study.records import record_of, state_of
from gemkit.study.stage_store import StageResult, StageStore

Sort = tuple[str, ...]
"""What stages that take a similar time have in common, the most telling first."""


@dataclass(frozen=True)
class Status:
    """A look at the store of a study."""

    name: str
    cells: Sequence[CellInfo]
    results: Mapping[str, StageResult] = field(repr=False)
    failures: Mapping[str, str]
    running: Mapping[str, str]
    """The last line in the log of each stage at work."""

    @classmethod
    def of(
        cls,
        name: str,
        cells: Sequence[CellInfo],
        store: StageStore,
        unrecorded: Mapping[str, str] | None = None,
    ) -> "Status":
        """Read the store; `unrecorded` are failures that a full disk kept out of it."""
        results: dict[str, StageResult] = {}
        failures: dict[str, str] = {}
        running = dict[str, str]()
        wanted = dict.fromkeys(stage for cell in cells for stage in cell.stages())
        for stage in wanted.keys() & store.present():
            try:
                result = store.result(stage)
            except StorageError as error:
                failures[stage] = str(error)
                continue
            if result is not None:
                results[stage] = result
            elif store.is_running(stage):
                running[stage] = store.last_said(stage)
            elif (reason := store.failure(stage)) is not None:
                failures[stage] = reason
        known = {*results, *running, *failures}
        lost = {stage: why for stage, why in (unrecorded or {}).items() if stage not in known}
        return cls(name, cells, results, {**failures, **lost}, running)

    @property
    def states(self) -> dict[str, int]:
        """Count the cells by state."""
        counted = Counter(state_of(cell, self.results, self.failures) for cell in self.cells)
        return {state: counted[state] for state in ("done", "partial", "failed", "missing")}

    @property
    def stages(self) -> dict[str, int]:
        """Count the stages by state."""
        wanted = {stage for cell in self.cells for stage in cell.stages()}
        counts = {
            "done": len(self.results),
            "running": len(self.running),
            "failed": len(self.failures),
        }
        return {"total": len(wanted), **counts}

    def progress(self) -> list[str]:
        """Return how far the stages at work are, in the order of the cells."""
        titles = {stage: title for cell in self.cells for stage, title in cell.titles().items()}
        return [
            f"{title}: {self.running[stage]}"
            for stage, title in titles.items()
            if stage in self.running
        ]

    def problems(self) -> dict[str, int]:
        """Count the cells by the first reason that failed them."""
        found = [record_of("", cell, self.results, self.failures)["problem"] for cell in self.cells]
        return dict(Counter(problem for problem in found if problem))

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "study": self.name,
            "cells": self.states,
            "stages": self.stages,
            "progress": self.progress(),
            "seconds_left": seconds_left(self.cells, self.results),
            "problems": self.problems(),
        }


def sorts_of(cells: Iterable[CellInfo]) -> dict[str, Sort]:
    """Return the sort of every stage."""
    sorts: dict[str, Sort] = {}
    for cell in cells:
        about = (cell.pruner, cell.model, cell.dataset, _epochs(cell))
        named = {cell.search: "search", cell.finetune: "finetune"}
        for stage, kind in {**named, **{one: name for name, one in cell.checks.items()}}.items():
            sorts.setdefault(stage, (kind, *about))
    return sorts


def seconds_left(cells: Sequence[CellInfo], results: Mapping[str, StageResult]) -> float | None:
    """Estimate the time of all missing stages, one after the other."""
    return Estimate(cells, results).seconds()


class Estimate:
    """The time that missing stages take, from the finished ones.

    A stage takes as long as those of the same kind, pruner, model, data and epochs did on average,
    or else those of its kind.
    """

    def __init__(self, cells: Sequence[CellInfo], results: Mapping[str, StageResult]) -> None:
        self._sorts = sorts_of(cells)
        self._needing: dict[str, list[str]] = defaultdict(list)
        for cell in cells:
            self._needing[cell.search] += cell.stages()[1:]
        self._left = Counter(self._sorts.values())
        self._void: set[str] = set()
        self._known: dict[Sort, tuple[float, int]] = {}
        for stage, result in results.items():
            self.add(stage, result)

    def add(self, stage: str, result: StageResult) -> None:
        """Take note of a stage that is done."""
        sort = self._sorts.get(stage)
        if sort is None:
            return
        self._left[sort] -= 1
        for key in (sort, sort[:1]):
            total, count = self._known.get(key, (0.0, 0))
            self._known[key] = total + result.seconds, count + 1
        if result.kind == "search" and result.ticket is None:
            self.drop(stage)

    def drop(self, stage: str) -> None:
        """Expect nothing more of the stages that need this one."""
        for one in set(self._needing[stage]) - self._void:
            self._void.add(one)
            self._left[self._sorts[one]] -= 1

    def seconds(self) -> float | None:
        """Return the estimate, or None while there is a kind of which none is finished."""
        total = 0.0
        for sort, count in self._left.items():
            if count > 0:
                seconds, known = self._known.get(sort) or self._known.get(sort[:1]) or (0.0, 0)
                if known == 0:
                    return None
                total += count * seconds / known
        return total


def _epochs(cell: CellInfo) -> str:
    plans = (cell.config.get(phase) for phase in ("search", "finetune"))
    return " ".join(str(plan.get("epochs")) if isinstance(plan, dict) else "" for plan in plans)
