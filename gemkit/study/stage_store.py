"""The store of a study: one folder for each stage, whose result is written as the last act.

    study.json                       the cells, and the stages of each
    stages/KIND-KEY/stage.json       what the stage is made with, every default written out
                   /result.json      its result
                   /failed.json      why it failed, until it is tried again
                   /ticket.safetensors, metrics.jsonl, log.txt, checkpoints/, levels/, .lock

A folder can be copied into the store of another machine. All of it is untrusted input.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gemkit.core.atomic_io import list_folder, open_plain, read, remove, write_atomic
from gemkit.core.bounded import Count, Name
from gemkit.core.errors import GemkitError, OptionError, StorageError
from gemkit.core.limits import MAX_TEXT_LENGTH
from gemkit.core.text import escaped
from gemkit.data.fingerprint import Fingerprint
from gemkit.parts.options import attempt
from gemkit.runs.directory import RunDir
from gemkit.runs.result import Seconds, Value
from gemkit.study.cell import CellInfo, Stage
from gemkit.study.keys import changed

_STRICT = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)
_RESULT, _FAILED, _STAGE, _STUDY = "result.json", "failed.json", "stage.json", "study.json"
_MAX_STUDY_BYTES = 1 << 30
Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]


class Epoch(BaseModel):
    """The end of an epoch, as a point of a curve."""

    model_config = _STRICT

    epoch: Count
    metric: Value
    density: Annotated[float, Field(ge=0, le=1)]
    loss: Value | None = None
    lr: Value | None = None
    strength: Value | None = None


class StageResult(BaseModel):
    """The result of a stage; which fields there are depends on its kind. New ones are optional."""

    model_config = _STRICT

    format: Literal[1] = 1
    stage: Name
    metric: Name
    higher_is_better: bool
    before: Value | None = None
    after: Value | None = None
    kept: Count | None = None
    prunable: Count | None = None
    alive: Count | None = None
    layers: list[tuple[Name, Count, Count]] = []
    epochs: Count | None = None
    curve: list[Epoch] = []
    bound: list[tuple[float, float]] = []
    numbers: dict[Name, Value] = {}
    unmade: Text | None = None
    collapse: Text | None = None
    ticket: Name | None = None
    data: Fingerprint | None = None
    seconds: Seconds
    cpu_seconds: Seconds
    device: Name = ""
    versions: dict[Name, Name] = {}

    @property
    def kind(self) -> str:
        """What kind of stage it is."""
        return self.stage.partition("-")[0]

    def measured(self) -> dict[str, Any]:
        """Return what must be equal wherever the stage is carried out: all but time and place."""
        return self.model_dump(exclude={"seconds", "cpu_seconds", "device", "versions"})


class _Study(BaseModel):
    """What is in study.json."""

    model_config = _STRICT

    format: Literal[1] = 1
    name: Name
    cells: list[CellInfo]


class _Failure(BaseModel):
    """What is in failed.json."""

    model_config = _STRICT

    reason: str = Field(max_length=100_000)


@dataclass(frozen=True)
class StageStore:
    """The folder of a study."""

    path: Path

    def folder(self, stage: str) -> RunDir:
        """Return the folder of a stage."""
        return RunDir(self.path / "stages" / stage)

    def check_free(self) -> None:
        """Refuse a folder that holds something else."""
        if self.path.is_dir() and not self.is_study():
            others = {entry.name for entry in self.path.iterdir()} - {"stages", "report"}
            if any(not name.startswith(".") for name in others):
                raise OptionError(
                    f"--out {self.path} exists and is no study; nothing was overwritten: give "
                    "another folder, or move this one away"
                )

    def make(self) -> None:
        """Make the folder, or say why that is not possible."""
        self.check_free()
        try:
            (self.path / "stages").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"cannot create the folder {self.path}: {error.strerror}; choose another with --out"
            ) from error
        list_folder(self.path / "stages", within=self.path)

    def is_study(self) -> bool:
        """Return whether a study was started here."""
        return os.path.lexists(self.path / _STUDY)

    def write_cells(self, name: str, cells: list[CellInfo]) -> None:
        """Record the cells."""
        text = _Study(name=name, cells=cells).model_dump_json(exclude_defaults=False)
        write_atomic(text.encode(), self.path / _STUDY)

    def cells(self) -> tuple[str, list[CellInfo]]:
        """Read the name and the cells of the study."""
        file = self.path / _STUDY
        try:
            text = read(file, _MAX_STUDY_BYTES, within=self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OptionError(
                f"{self.path} is no study: there is no {_STUDY}; start one with `gemkit study "
                f"--out {self.path}`"
            ) from error
        except OSError as error:
            raise OptionError(f"{file} cannot be read as a study: {error}") from error
        study, problems = attempt(
            lambda: _Study.model_validate_json(text), _Study, label="study", title="a study"
        )
        if study is None:
            raise OptionError(
                f"{file} cannot be read as a study ({problems[0]}); remove it, and repeat the "
                "`gemkit study` command that made it: finished stages are kept"
            )
        return study.name, study.cells

    # --- results ---

    def result(self, stage: str) -> StageResult | None:
        """Read the result of a stage, if there is one."""
        folder = self.folder(stage).path
        file = folder / _RESULT
        try:
            text = read(file, within=self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"{file} cannot be read: {error}; remove it to measure again"
            ) from error
        result, problems = attempt(
            lambda: StageResult.model_validate_json(text),
            StageResult,
            label="result",
            title="a result",
        )
        if result is None or result.stage != stage:
            flaw = problems[0] if problems else f"it is that of {result and result.stage}"
            raise StorageError(f"{file} holds no result ({flaw}); remove it to measure again")
        return result

    def write_result(self, result: StageResult) -> None:
        """Write the result of a stage: from here on it is done."""
        folder = self.folder(result.stage).path
        text = result.model_dump_json(exclude_none=True)
        write_atomic(text.encode(), folder / _RESULT, within=self.path)

    def check_same(self, stage: Stage) -> None:
        """Refuse a stage that was made with other defaults than those of today."""
        if other := self.changes(stage.name, stage.about):
            raise OptionError(
                f"{self.folder(stage.name).path} was made when a default was another: "
                f"{escaped('; '.join(other))}; set it to what it was, or give another --out"
            )

    def changes(self, stage: str, about: Mapping[str, JsonValue]) -> list[str]:
        """List the settings of a stage that have changed since it was started."""
        try:
            recorded = json.loads(read(self.folder(stage).path / _STAGE, within=self.path))
        except (OSError, ValueError, RecursionError):
            return []  # the result alone says enough; files of a folder may be lost on the way
        known = recorded.get("about") if isinstance(recorded, dict) else None
        return changed(known, json.loads(json.dumps(about))) if known else []

    def tidy(self, stages: Iterable[str]) -> None:
        """Remove the checkpoints of finished stages whose process was killed before it did so."""
        for stage in stages:
            folder = self.folder(stage)
            if os.path.lexists(folder.checkpoints) and not folder.is_locked():
                with suppress(OSError, StorageError):
                    folder.finish()

    def begin(self, stage: str, about: Mapping[str, JsonValue]) -> None:
        """Record what a stage is made with, and forget that it failed."""
        folder = self.folder(stage).path
        text = json.dumps({"stage": stage, "about": about}, indent=1)
        write_atomic(text.encode(), folder / _STAGE, within=self.path)
        remove(folder / _FAILED, within=self.path)

    def write_failure(self, stage: str, reason: str) -> None:
        """Record why a stage failed; it is tried again by the next run."""
        folder = self.folder(stage).path
        folder.mkdir(parents=True, exist_ok=True)
        text = _Failure(reason=reason[:100_000]).model_dump_json()
        write_atomic(text.encode(), folder / _FAILED, within=self.path)

    def failure(self, stage: str) -> str | None:
        """Return why a stage failed, if it did."""
        file = self.folder(stage).path / _FAILED
        try:
            return _Failure.model_validate_json(read(file, 1 << 20, within=self.path)).reason
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, GemkitError) as error:
            return f"{file} cannot be read: {type(error).__name__}"

    def last_said(self, stage: str) -> str:
        """Return the last line in the log of a stage, without its time; empty if there is none."""
        try:
            with open_plain(self.folder(stage).log, within=self.path) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_TEXT_LENGTH))
                [*_, last] = [b"", *file.read(MAX_TEXT_LENGTH).splitlines()]
        except (OSError, StorageError):
            return ""
        return escaped(last.decode(errors="replace").partition("  ")[2])

    def last_saved(self, stage: str) -> int:
        """Return when a stage last saved a checkpoint, in nanoseconds; 0 if it has none."""
        folder = self.folder(stage).checkpoints
        try:
            names = list_folder(folder, within=self.path)
            return max((os.lstat(folder / name).st_mtime_ns for name in names), default=0)
        except (OSError, StorageError):
            return 0

    def is_running(self, stage: str) -> bool:
        """Return whether a process works on a stage."""
        return self.folder(stage).is_locked()

    def present(self) -> set[str]:
        """Return the names of all stages that have a folder."""
        return set(list_folder(self.path / "stages", within=self.path))
