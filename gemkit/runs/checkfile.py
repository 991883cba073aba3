"""checks.json: all results and their settings; more seeds and checks can be added later."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, JsonValue

from gemkit.core.atomic_io import read, refuse_folders
from gemkit.core.errors import CheckError, OptionError
from gemkit.data.fingerprint import Fingerprint, check_same
from gemkit.data.part import DatasetPart
from gemkit.models.custom import model_data
from gemkit.models.part import ModelPart
from gemkit.parts.lookup import Lookup
from gemkit.parts.recipe import part_data
from gemkit.plugins.provenance import versions_of
from gemkit.runs import directory as rundir
from gemkit.runs.differences import differences
from gemkit.runs.locks import check_target, reserved
from gemkit.sanity.check import Expected, SanityCheck
from gemkit.sanity.context import CheckContext
from gemkit.sanity.trials import TICKET, Check, Measured, Result, Trial, Unmade
from gemkit.sanity.verdicts import CONFIDENCE, summaries, verdicts
from gemkit.tickets.ticket import Ticket
from gemkit.training.metrics import ACCURACY, METRICS

NAME = "checks.json"


class _Saved(BaseModel):
    """The part of a file that is read back; verdicts are computed again."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    setting: dict[str, JsonValue]
    checks: dict[str, dict[str, JsonValue]]
    trials: list[Trial]
    measurements: list[Measured] = []  # older files have none
    unmade: list[Unmade] = []
    data: Fingerprint | None = None


@dataclass(frozen=True)
class CheckFile:
    """Trials and measurements of one ticket, all with one plan; `setting` records both."""

    setting: Mapping[str, Any]
    checks: Mapping[str, Mapping[str, Any]]
    trials: tuple[Trial, ...]
    path: Path
    measurements: tuple[Measured, ...] = ()
    unmade: tuple[Unmade, ...] = ()
    data: Fingerprint | None = None
    metric: str = ACCURACY.name

    @classmethod
    def new(
        cls,
        ticket: Ticket,
        context: CheckContext,
        model: ModelPart,
        dataset: DatasetPart,
    ) -> "CheckFile":
        """Start a file for a ticket, a network and data."""
        parts = [*context.recipe.parts().values(), model, dataset, context.task.objective]
        plugins = versions_of(parts, context.registry)
        setting = {
            "ticket": ticket.digest(),
            "finetune": context.finetune_plan.model_dump(mode="json"),
            "model": model_data(model),
            "dataset": part_data(dataset),
            "device": context.fabric.device.type if context.fabric else context.runtime.device,
            "precision": context.runtime.precision,
            "versions": {"gemkit": version("gemkit"), "torch": torch.__version__, **plugins},
            **context.task.to_data(),
        }
        metric = context.task.metric.name
        return cls(setting, {}, (), Path(NAME), data=context.data.fingerprint, metric=metric)

    def resumed(self, folder: Path, *, force: bool) -> "CheckFile":
        """Read the file in a folder; one with other settings is refused unless `force` is set."""
        path = folder / NAME
        if force or not os.path.lexists(path):
            _create(folder)
            return replace(self, path=path)
        way_out = "replace it with --force, or give another --out"
        try:
            saved = _Saved.model_validate_json(read(path, within=folder))
            results: list[Trial | Measured] = [*saved.trials, *saved.measurements]
            if not {one.check for one in results} <= {TICKET, *saved.checks}:
                raise ValueError("results of unknown checks")
        except (OSError, ValueError) as error:  # pydantic raises ValueError, too
            raise CheckError(f"{path} cannot be read as checks; {way_out}") from error
        if saved.setting != self.setting:
            other = differences(saved.setting, self.setting)
            raise CheckError(
                f"{path} holds checks with other settings, which cannot be compared:\n  - "
                + "\n  - ".join(other)
                + f"\n{way_out}"
            )
        if self.data is not None:
            check_same(saved.data, self.data, f"{path} was measured on", way_out)
        return replace(
            self,
            checks=saved.checks,
            trials=tuple(saved.trials),
            measurements=tuple(saved.measurements),
            unmade=tuple(saved.unmade),
            path=path,
        )

    def with_checks(self, checks: Mapping[str, Check], registry: Lookup) -> "CheckFile":
        """Record these checks, and drop results of other fields or versions of them."""
        given = {
            name: part_data(check) | {"versions": versions_of([check], registry)} | _expects(check)
            for name, check in checks.items()
        }
        changed = {name for name in given if self.checks.get(name, given[name]) != given[name]}
        trials = tuple(trial for trial in self.trials if trial.check not in changed)
        measured = tuple(one for one in self.measurements if one.check not in changed)
        unmade = tuple(one for one in self.unmade if one.check not in given)  # tried again
        return replace(
            self,
            checks={**self.checks, **given},
            trials=trials,
            measurements=measured,
            unmade=unmade,
        )

    @property
    def done(self) -> tuple[Trial | Measured, ...]:
        """All results that need not be measured again."""
        return (*self.trials, *self.measurements)

    def with_result(self, result: Result) -> "CheckFile":
        """Add a result."""
        if isinstance(result, Unmade):
            return replace(self, unmade=(*self.unmade, result))
        if isinstance(result, Measured):
            return replace(self, measurements=(*self.measurements, result))
        return replace(self, trials=(*self.trials, result))

    def _expected(self) -> dict[str, Expected]:
        """Name the positive controls."""
        return {name: "same" for name, own in self.checks.items() if own.get("expects") == "same"}

    def write(self, margin: float) -> dict[str, Any]:
        """Write the file with verdicts and summaries so far, and return its content."""
        order = [TICKET, *self.checks]

        def place(one: Trial | Measured) -> tuple[int, int]:
            return one.seed, order.index(one.check)

        ordered, measured = sorted(self.trials, key=place), sorted(self.measurements, key=place)
        metric = METRICS[self.metric]
        judged = verdicts(ordered, margin, self._expected(), metric)
        data = {
            "setting": self.setting,
            **({} if self.data is None else {"data": self.data.model_dump()}),
            "checks": self.checks,
            "metric": metric.name,
            "higher_is_better": metric.higher_is_better,
            "margin": margin,
            "confidence": CONFIDENCE,
            "trials": [trial.model_dump() for trial in ordered],
            "measurements": [one.model_dump() for one in measured],
            "unmade": [one.model_dump() for one in self.unmade],
            "verdicts": [verdict._asdict() for verdict in judged],
            "summaries": [summary._asdict() for summary in summaries(measured)],
        }
        rundir.write(self.path, json.dumps(data, indent=2, allow_nan=False) + "\n")
        return data


def _expects(check: Check) -> dict[str, str]:
    """Return what a file says about a positive control; files say nothing about others."""
    positive = isinstance(check, SanityCheck) and check.expects == "same"
    return {"expects": "same"} if positive else {}


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder for checks, and hold its run if it is a run's, else the file of the checks."""
    _create(folder)
    with suppress(OSError):  # it is reported where the file is opened
        check_target(folder / NAME)
    refuse_folders(folder, rundir.PICTURES)
    run = rundir.RunDir(folder)
    with run.locked() if run.is_run() else reserved(folder / NAME):
        yield


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"cannot create the folder {folder}: {error.strerror}; choose another with --out"
        ) from error
