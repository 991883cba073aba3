"""checks.json: what was measured and how, so that more seeds and checks can be added later."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, JsonValue

from gemkit import rundir
from gemkit.checks import TICKET, Trial, Unmade
from gemkit.data.fingerprint import Fingerprint, check_same
from gemkit.errors import CheckError, OptionError
from gemkit.files import read
from gemkit.lab import Lab
from gemkit.models.custom import model_data
from gemkit.parts import DatasetPart, ModelPart, SanityCheck
from gemkit.plan import Plan
from gemkit.provenance import versions_of
from gemkit.recipe import part_data
from gemkit.registry import Registry
from gemkit.report.verdicts import CONFIDENCE, verdicts
from gemkit.ticket import Ticket

NAME = "checks.json"


class _Known(BaseModel):
    """What is read back from a file; verdicts and the like are made anew."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    setting: dict[str, JsonValue]
    checks: dict[str, dict[str, JsonValue]]
    trials: list[Trial]
    unmade: list[Unmade] = []
    data: Fingerprint | None = None


@dataclass(frozen=True)
class CheckFile:
    """The trials of one ticket, all fine-tuned by one plan; `setting` tells which and how."""

    setting: Mapping[str, Any]
    checks: Mapping[str, Mapping[str, Any]]
    trials: tuple[Trial, ...]
    path: Path
    unmade: tuple[Unmade, ...] = ()
    data: Fingerprint | None = None

    @classmethod
    def about(
        cls, ticket: Ticket, plan: Plan, lab: Lab, model: ModelPart, dataset: DatasetPart
    ) -> "CheckFile":
        """Begin a file for a ticket, a plan of fine-tuning, and a network and data."""
        plugins = versions_of([*lab.recipe.parts().values(), model, dataset], lab.registry)
        setting = {
            "ticket": ticket.digest(),
            "finetune": plan.model_dump(mode="json"),
            "model": model_data(model),
            "dataset": part_data(dataset),
            "device": lab.fabric.device.type if lab.fabric else lab.runtime.device,
            "precision": lab.runtime.precision,
            "versions": {"gemkit": version("gemkit"), "torch": torch.__version__, **plugins},
        }
        return cls(setting, {}, (), Path(NAME), data=lab.data.fingerprint)

    def continued(self, folder: Path, *, force: bool) -> "CheckFile":
        """Go on with the file in a folder; one that was made another way is kept unless forced."""
        path = folder / NAME
        if force or not os.path.lexists(path):
            _make(folder)
            return replace(self, path=path)
        way_out = "replace it with --force, or give another --out"
        try:
            known = _Known.model_validate_json(read(path, within=folder))
            if not {trial.check for trial in known.trials} <= {TICKET, *known.checks}:
                raise ValueError("trials of checks that are not described")
        except (OSError, ValueError) as error:  # what is not valid is a ValueError, too
            raise CheckError(f"{path} cannot be read as checks; {way_out}") from error
        if known.setting != self.setting:
            other = rundir.differences(known.setting, self.setting)
            raise CheckError(
                f"{path} holds checks made another way, which cannot be compared:\n  - "
                + "\n  - ".join(other)
                + f"\n{way_out}"
            )
        if self.data is not None:
            check_same(known.data, self.data, f"{path} was measured on", way_out)
        return replace(
            self,
            checks=known.checks,
            trials=tuple(known.trials),
            unmade=tuple(known.unmade),
            path=path,
        )

    def asking(self, checks: Mapping[str, SanityCheck], registry: Registry) -> "CheckFile":
        """Note how these checks are made, and forget trials in which they were made otherwise."""
        asked = {
            name: part_data(check) | {"versions": versions_of([check], registry)}
            for name, check in checks.items()
        }
        changed = {name for name in asked if self.checks.get(name, asked[name]) != asked[name]}
        trials = tuple(trial for trial in self.trials if trial.check not in changed)
        unmade = tuple(one for one in self.unmade if one.check not in asked)  # tried again
        return replace(self, checks={**self.checks, **asked}, trials=trials, unmade=unmade)

    def with_trial(self, trial: Trial | Unmade) -> "CheckFile":
        """Add a trial, or a control that could not be made."""
        if isinstance(trial, Unmade):
            return replace(self, unmade=(*self.unmade, trial))
        return replace(self, trials=(*self.trials, trial))

    def write(self, margin: float) -> dict[str, Any]:
        """Write everything, with the verdicts so far, and return it."""
        order = [TICKET, *self.checks]
        ordered = sorted(self.trials, key=lambda trial: (trial.seed, order.index(trial.check)))
        data = {
            "setting": self.setting,
            **({} if self.data is None else {"data": self.data.model_dump()}),
            "checks": self.checks,
            "margin": margin,
            "confidence": CONFIDENCE,
            "trials": [trial.model_dump() for trial in ordered],
            "unmade": [one.model_dump() for one in self.unmade],
            "verdicts": [verdict._asdict() for verdict in verdicts(ordered, margin)],
        }
        rundir.write(self.path, json.dumps(data, indent=2, allow_nan=False) + "\n")
        return data


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"cannot make the folder {folder}: {error.strerror}; choose another with --out"
        ) from error
