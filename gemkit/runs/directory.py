"""The folder of a run; each file in it is written as a whole or not at all."""

import fcntl
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Literal

import tomli_w

from gemkit.core.atomic_io import (
    is_temporary,
    list_folder,
    open_folder,
    open_plain,
    read,
    refuse_folders,
    remove_temporary,
    write_atomic,
)
from gemkit.core.errors import OptionError, StorageError
from gemkit.core.limits import MAX_CONFIG_BYTES
from gemkit.parts.options import from_data
from gemkit.runs.locks import hold, is_removed, try_lock
from gemkit.runs.metrics import last_line
from gemkit.runs.result import StoredResult

RunState = Literal["running", "interrupted", "failed", "done"]
_CONFIG, _LOCK = "config.toml", ".lock"
PICTURES = ("checks.svg", "checks.png")
"""What checks draw, in the folder of their results."""
_FILES = (
    *(_LOCK, _CONFIG, "environment.json", "metrics.jsonl", "log.txt", "result.json"),
    *("ticket.safetensors", "finetuned.safetensors", "checks.json", *PICTURES),
)
"""Names in a run's folder that must not be those of folders."""


@dataclass(frozen=True)
class RunDir:
    """The files of one run.

    config.toml           the configuration, with every default written out
    environment.json      machine and libraries, one entry for each start or resume
    metrics.jsonl         one line for each epoch, freeze, collapse and error, as they happen
    log.txt               the same as text, with the time
    checkpoints/          the last two checkpoints, until the run is done
    ladder/               the ticket of each level, if the search trains weights between freezes
    ticket.safetensors    the ticket that the search found
    finetuned.safetensors the same ticket with trained weights
    result.json           the result
    checks.json           sanity checks, if there are any, and a picture of them
    report/               what `gemkit report` wrote
    .lock                 held by the process that works on the run
    """

    path: Path  # may be a link; files inside are opened only if they are plain files

    @property
    def ticket(self) -> Path:
        """The file of the ticket."""
        return self.path / "ticket.safetensors"

    @property
    def finetuned(self) -> Path:
        """The file of the ticket with trained weights."""
        return self.path / "finetuned.safetensors"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """The file of the metrics."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """The file of the log."""
        return self.path / "log.txt"

    @property
    def ladder(self) -> Path:
        """The folder of the tickets of all levels."""
        return self.path / "ladder"

    def level_file(self, number: int, density: float) -> Path:
        """Return the file of a level's ticket, and make its folder; names sort dense to sparse."""
        self.ladder.mkdir(exist_ok=True)
        return self.ladder / f"{number:03d}-d{density:.4f}.safetensors"

    # --- configuration, environment and result ---

    def is_run(self) -> bool:
        """Return whether a run was started here; its files may still be unreadable."""
        return os.path.lexists(self.path / _CONFIG)

    def check_plain(self) -> None:
        """Refuse files that are links, pipes or folders, and hard links to those appended to."""
        for folder in (self.ladder, self.checkpoints):  # first, since these must be folders
            refuse_folders(folder, list_folder(folder, within=self.path))
        list_folder(self.path, within=self.path)
        refuse_folders(self.path, _FILES)
        for file in (self.path / _LOCK, self.log, self.metrics):
            with suppress(OSError):  # missing, or an error that shows when it is used
                open_plain(file, "r+b", within=self.path).close()

    def write_config(self, data: Mapping[str, Any]) -> None:
        """Write the configuration; TOML has no null, so unset values must be left out."""
        write(self.path / _CONFIG, tomli_w.dumps(data))

    def config(self) -> dict[str, Any]:
        """Read the configuration."""
        file = self.path / _CONFIG
        try:
            config = tomllib.loads(read(file, MAX_CONFIG_BYTES, within=self.path).decode())
            if isinstance(runtime := config.get("runtime"), dict):
                runtime.pop("lean", None)  # written by older versions
            return config
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OptionError(
                f"{self.path} is no run: there is no {_CONFIG}; start one with `gemkit run --out "
                f"{self.path}`"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise OptionError(
                f"{file} cannot be read: {error}; put it back, or start another run"
            ) from error

    def add_environment(self, now: Mapping[str, Any]) -> list[str]:
        """Append this environment, and return what differs from the one before."""
        file = self.path / "environment.json"
        starts = _json(file) if os.path.lexists(file) else []
        starts = starts if isinstance(starts, list) else []
        write(file, json.dumps([*starts, now], indent=2) + "\n")
        before = starts[-1] if starts and isinstance(starts[-1], dict) else now
        return [
            f"{name} {before.get(name)} then, {value} now"
            for name, value in now.items()
            if before.get(name) != value
        ]

    def write_result(self, data: Mapping[str, Any]) -> None:
        """Write the result."""
        write(self.path / "result.json", json.dumps(data, indent=2, allow_nan=False) + "\n")

    def has_result(self) -> bool:
        """Return whether the result was written."""
        return os.path.lexists(self.path / "result.json")

    def result(self) -> dict[str, Any] | None:
        """Read and validate the result, if there is one.

        The files it names are those in this folder, even if the folder was moved.
        """
        if not self.has_result():
            return None
        file = self.path / "result.json"
        again = "resume the run" if os.path.lexists(self.checkpoints) else "run all of it again"
        data = _json(file, f" to {again}")
        _, problems = from_data(StoredResult, data, label="result", title="a result")
        if problems or not isinstance(data, dict):
            raise OptionError(
                f"{file} holds no result ({problems[0]}); put it back, or remove it to {again}"
            )
        here = {"run_dir": self.path, "ticket": self.ticket, "finetuned": self.finetuned}
        levels = [
            {**level, "ticket": str(self.ladder / Path(level["ticket"]).name)}
            for level in data.get("ladder", [])
        ]
        return data | {name: str(path) for name, path in here.items()} | {"ladder": levels}

    def contents(self) -> list[str]:
        """Return the names of the files, without hidden ones."""
        names = (file.name for file in self.path.iterdir())
        return sorted(name for name in names if not name.startswith("."))

    # --- lock and state ---

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the run; the system releases it when the process dies."""
        with open_plain(self.path / _LOCK, "a+b", within=self.path) as file:
            hold(file, self.path)
            for folder in (self.path, self.ladder, self.checkpoints):
                remove_temporary(folder, within=self.path)
            try:
                yield
            except Exception as error:
                self._check_there(file, error)
                raise
            self._check_there(file)

    def _check_there(self, lock: BinaryIO, error: Exception | None = None) -> None:
        """Raise if the folder was removed, or replaced, while the lock was held."""
        if is_removed(lock) and (os.path.lexists(self.path / _LOCK) or not self.is_run()):
            raise StorageError(
                f"{self.path} was removed or replaced while this process worked in it, and what it "
                "wrote there is lost; start again"
            ) from error

    def state(self) -> RunState:
        """Return the state of the run, from its files alone."""
        if self.is_locked():
            return "running"
        if self.has_result() and not os.path.lexists(self.checkpoints):
            return "done"
        return "failed" if last_line(self.metrics).get("event") == "error" else "interrupted"

    def is_locked(self) -> bool:
        """Return whether a process works on the run."""
        try:
            with open_plain(self.path / _LOCK, within=self.path) as file:
                return not try_lock(file.fileno(), fcntl.LOCK_SH)
        except OSError:
            return False

    def has_nothing_saved(self) -> bool:
        """Return whether the run has saved no ticket and no checkpoint."""
        saved = os.path.lexists(self.ticket) or os.path.lexists(self.ladder)
        return not saved and not list_folder(self.checkpoints, within=self.path)

    def clear(self) -> None:
        """Remove the files of a run that has nothing saved."""
        for name in ("environment.json", "metrics.jsonl", "log.txt", _CONFIG):
            (self.path / name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove the checkpoints; the run is done."""
        with suppress(FileNotFoundError), open_folder(self.path) as folder:
            shutil.rmtree(self.checkpoints.name, dir_fd=folder)


def _json(file: Path, end: str = "") -> object:
    """Read a JSON file of a run's folder; `end` says why one that is damaged may be removed."""
    try:
        data: object = json.loads(read(file, within=file.parent))
        json.dumps(data, allow_nan=False)  # refuse 1e999, which is read as infinity
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{file} cannot be read: {error}; put it back, or remove it{end}"
        ) from error
    return data


def check_free(folder: Path) -> None:
    """Refuse a folder that holds anything but a run, or a run whose files are not plain."""
    if RunDir(folder).is_run():
        RunDir(folder).check_plain()
        return
    if not os.path.lexists(folder):  # or its name is too long, which `create` reports
        return
    if folder.is_dir() and all(f.name == _LOCK or is_temporary(f.name) for f in folder.iterdir()):
        return  # empty, or a run was killed before it wrote anything
    what = "is not empty" if folder.is_dir() else "is not a folder"
    raise OptionError(
        f"--out {folder} exists and {what}; nothing was overwritten: give another folder, or move "
        "this one away"
    )


def create(out: Path | None, name: str) -> RunDir:
    """Create the folder `out`, or `runs/NAME` with the first free number appended."""
    try:
        if out is None:
            return RunDir(_numbered(Path("runs"), name))
        check_free(out)
        out.mkdir(parents=True, exist_ok=True)
        return RunDir(out)
    except OSError as error:
        where = error.filename or out
        raise OptionError(
            f"cannot create the folder {where}: {error.strerror}; choose another with --out"
        ) from error


def _numbered(parent: Path, name: str) -> Path:
    """Create `name`, or the first of `name-2`, `name-3`, … that does not exist."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable: counting does not end")


def write(path: Path, text: str) -> None:
    """Write a text as a whole or not at all."""
    write_atomic(text.encode(), path)
