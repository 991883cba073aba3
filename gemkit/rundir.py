"""A run directory: everything one run leaves behind, each file written whole or not at all."""

import fcntl
import json
import os
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import tomli_w

from gemkit.errors import OptionError
from gemkit.files import is_left_over, names, open_folder, open_plain, put, read, sweep
from gemkit.limits import LARGEST_CONFIG
from gemkit.metrics import last_line
from gemkit.options import from_data
from gemkit.outcome import Outcome

RunState = Literal["running", "interrupted", "failed", "done"]
_CONFIG, _LOCK = "config.toml", ".lock"
_PATIENCE = 20
"""How often to ask for a lock, a twentieth of a second apart; `gemkit runs` holds one briefly."""


@dataclass(frozen=True)
class RunDir:
    """The files of one run.

    config.toml           what was run, with every default written out
    environment.json      the machine and the libraries, once for every time the run was started
    metrics.jsonl         one line for every epoch, freeze, collapse and error, as they happen
    log.txt               the same for people, with the time
    checkpoints/          the last two, until the run is done
    ladder/               the ticket of every density on the way, where weights are trained
    ticket.safetensors    what the search found
    finetuned.safetensors the same ticket with trained weights
    result.json           the outcome
    checks.json           sanity checks, where some were made, and a picture of them
    .lock                 held by the process that is at work here
    """

    path: Path  # may be a link; what is inside is opened only if it is a plain file

    @property
    def ticket(self) -> Path:
        """Where the ticket lies."""
        return self.path / "ticket.safetensors"

    @property
    def finetuned(self) -> Path:
        """Where the ticket with trained weights lies."""
        return self.path / "finetuned.safetensors"

    @property
    def checkpoints(self) -> Path:
        """Where the state of the run lies until it is done."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Where the metrics lie."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """Where the log lies."""
        return self.path / "log.txt"

    @property
    def ladder(self) -> Path:
        """Where the tickets of all densities on the way lie."""
        return self.path / "ladder"

    def rung(self, number: int, density: float) -> Path:
        """Where a ticket of the ladder lies; names sort from dense to sparse."""
        self.ladder.mkdir(exist_ok=True)
        return self.ladder / f"{number:03d}-d{density:.4f}.safetensors"

    # --- what is run, on what, and what comes of it ---

    def is_run(self) -> bool:
        """Tell whether a run has begun here; its files may be unreadable all the same."""
        return os.path.lexists(self.path / _CONFIG)

    def check_plain(self) -> None:
        """Refuse links and pipes among the files of a run, and hard links where it appends."""
        for folder in (self.path, self.ladder, self.checkpoints):
            names(folder, within=self.path)
        for file in (self.path / _LOCK, self.log, self.metrics):
            with suppress(OSError):  # not there, or a fault that shows when it is used
                open_plain(file, "r+b", within=self.path).close()

    def write_config(self, data: Mapping[str, Any]) -> None:
        """Write what is run; TOML has no null, so unset values must be left out."""
        write(self.path / _CONFIG, tomli_w.dumps(data))

    def config(self) -> dict[str, Any]:
        """Read what is run."""
        file = self.path / _CONFIG
        try:
            config = tomllib.loads(read(file, LARGEST_CONFIG, within=self.path).decode())
            if isinstance(runtime := config.get("runtime"), dict):
                runtime.pop("lean", None)  # older versions wrote it down
            return config
        except FileNotFoundError as error:
            raise OptionError(
                f"{self.path} is no run: there is no {_CONFIG}; start one with `gemkit run --out "
                f"{self.path}`"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise OptionError(f"{file} cannot be read: {error}; start another run") from error

    def note_environment(self, now: Mapping[str, Any]) -> list[str]:
        """Add the environment of this start, and tell what was another at the start before."""
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
        """Write the outcome."""
        write(self.path / "result.json", json.dumps(data, indent=2, allow_nan=False) + "\n")

    def result(self) -> dict[str, Any] | None:
        """Read the outcome, if there is one; what is read of it is there, and within bounds.

        Files that it names are those in this folder, wherever it was when they were written.
        """
        file = self.path / "result.json"
        if not os.path.lexists(file):
            return None
        data = _json(file)
        _, problems = from_data(Outcome, data, label="result", title="a result")
        if problems or not isinstance(data, dict):
            raise OptionError(
                f"{file} holds no result ({problems[0]}); remove it to go on with the run"
            )
        here = {"run_dir": self.path, "ticket": self.ticket, "finetuned": self.finetuned}
        rungs = [
            {**rung, "ticket": str(self.ladder / Path(rung["ticket"]).name)}
            for rung in data.get("ladder", [])
        ]
        return data | {name: str(path) for name, path in here.items()} | {"ladder": rungs}

    def contents(self) -> list[str]:
        """Name the files that are there for people to look at."""
        names = (file.name for file in self.path.iterdir())
        return sorted(name for name in names if not name.startswith("."))

    # --- who works here, and how far the run is ---

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out; the system ends this when the process dies."""
        with open_plain(self.path / _LOCK, "a+b", within=self.path) as file:
            if not _lock(file.fileno(), fcntl.LOCK_EX, _PATIENCE):
                file.seek(0)
                holder = file.read(100).decode("utf-8", "replace").strip()
                raise OptionError(
                    f"{self.path} is in use by another process ({holder}); wait for it, or stop it"
                )
            for folder in (self.path, self.ladder, self.checkpoints):
                sweep(folder, within=self.path)
            file.truncate(0)
            file.write(f"process {os.getpid()}\n".encode())
            file.flush()
            yield

    def state(self) -> RunState:
        """Tell how far the run is, from its files alone."""
        if self._is_locked():
            return "running"
        if os.path.lexists(self.path / "result.json") and not os.path.lexists(self.checkpoints):
            return "done"
        return "failed" if last_line(self.metrics).get("event") == "error" else "interrupted"

    def _is_locked(self) -> bool:
        try:
            with open_plain(self.path / _LOCK, within=self.path) as file:
                return not _lock(file.fileno(), fcntl.LOCK_SH, 1)
        except OSError:
            return False

    def is_bare(self) -> bool:
        """Tell whether the run has saved nothing: no ticket, no checkpoint."""
        saved = os.path.lexists(self.ticket) or os.path.lexists(self.ladder)
        return not saved and not names(self.checkpoints, within=self.path)

    def start_over(self) -> None:
        """Remove what a run has told so far that has saved nothing."""
        for name in (_CONFIG, "environment.json", "metrics.jsonl", "log.txt"):
            (self.path / name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove what nobody needs any more; from then on the run is done."""
        with suppress(FileNotFoundError), open_folder(self.path) as folder:
            shutil.rmtree(self.checkpoints.name, dir_fd=folder)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, if it is a run's."""
    run = RunDir(folder)
    with run.locked() if run.is_run() else nullcontext():
        yield


def _lock(handle: int, kind: int, patience: int) -> bool:
    """Try a few times to get a lock."""
    for attempt in range(patience):
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05 * (attempt + 1 < patience))
        else:
            return True
    return False


def _json(file: Path) -> object:
    """Read a JSON file of a run's folder."""
    try:
        data: object = json.loads(read(file, within=file.parent))
        json.dumps(data, allow_nan=False)  # 1e999 is infinite, and could not be written again
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{file} cannot be read: {error}") from error
    return data


def differences(there: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> list[str]:
    """Say which settings two configurations do not share."""
    found = []
    for name in dict.fromkeys([*there, *here]):
        one, other = there.get(name), here.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{path}{name}.")
        elif one != other:
            old, new = ("not set" if value is None else repr(value) for value in (one, other))
            found.append(f"{path}{name} is {old} there and {new} here")
    return found


def check_free(folder: Path) -> None:
    """Refuse a folder that a run would mix its files into, or whose files are not plain."""
    if RunDir(folder).is_run():
        RunDir(folder).check_plain()
        return
    if folder.is_dir() and all(f.name == _LOCK or is_left_over(f.name) for f in folder.iterdir()):
        return  # empty, or a run was killed before it had written anything
    if folder.exists() or folder.is_symlink():
        what = "is not empty" if folder.is_dir() else "is not a folder"
        raise OptionError(
            f"--out {folder} exists and {what}; nothing was overwritten: give another folder, "
            "or move this one away"
        )


def create(out: Path | None, name: str) -> RunDir:
    """Make the folder `out`, or `runs/NAME` with the first free number appended."""
    try:
        if out is None:
            return RunDir(_numbered(Path("runs"), name))
        check_free(out)
        out.mkdir(parents=True, exist_ok=True)
        return RunDir(out)
    except OSError as error:
        where = error.filename or out
        raise OptionError(
            f"cannot make the run directory {where}: {error.strerror}; choose another with --out"
        ) from error


def _numbered(parent: Path, name: str) -> Path:
    """Make `name`, or the first of `name-2`, `name-3`, … that nobody else has made."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable: counting does not end")


def write(path: Path, text: str) -> None:
    """Write a text whole or not at all."""
    put(text.encode(), path)
