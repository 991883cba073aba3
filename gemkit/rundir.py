"""A run directory: everything one run leaves behind, each file written whole or not at all."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w

from gemkit.errors import GemkitError, OptionError
from gemkit.events import Collapsed, EpochEnded, Event, Froze
from gemkit.files import put

_NAMES = {EpochEnded: "epoch", Froze: "freeze", Collapsed: "collapse"}


@dataclass(frozen=True)
class RunDir:
    """The files of one run.

    config.toml           what was run, with every default written out
    metrics.jsonl         one line for every epoch, freeze, collapse and error, as they happen
    ladder/               the ticket of every density on the way, where weights are trained
    ticket.safetensors    what the search found
    finetuned.safetensors the same ticket with trained weights
    result.json           the outcome
    checks.json           sanity checks, where some were made, and a picture of them
    """

    path: Path

    @property
    def ticket(self) -> Path:
        """Where the ticket lies."""
        return self.path / "ticket.safetensors"

    def rung(self, number: int, density: float) -> Path:
        """Where a ticket of the ladder lies; names sort from dense to sparse."""
        folder = self.path / "ladder"
        folder.mkdir(exist_ok=True)
        return folder / f"{number:03d}-d{density:.4f}.safetensors"

    @property
    def finetuned(self) -> Path:
        """Where the ticket with trained weights lies."""
        return self.path / "finetuned.safetensors"

    def write_config(self, data: Mapping[str, Any]) -> None:
        """Write what is run; TOML has no null, so unset values must be left out."""
        write(self.path / "config.toml", tomli_w.dumps(data))

    def write_result(self, data: Mapping[str, Any]) -> None:
        """Write the outcome."""
        write(self.path / "result.json", json.dumps(data, indent=2, allow_nan=False) + "\n")

    @contextmanager
    def metrics(self) -> Iterator[Callable[[Event], None]]:
        """Yield a listener that writes metrics line by line, so that nothing is lost in a crash."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:

            def write_line(event: str, fields: Mapping[str, Any]) -> None:
                file.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
                file.flush()

            def listen(event: Event) -> None:
                if type(event) in _NAMES:
                    write_line(_NAMES[type(event)], asdict(event))

            try:
                yield listen
            except GemkitError as error:
                write_line("error", {"message": str(error)})
                raise

    def contents(self) -> list[str]:
        """Name the files that are there."""
        return sorted(file.name for file in self.path.iterdir())


def check_free(folder: Path) -> None:
    """Refuse a folder that a run would mix its files into."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
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
