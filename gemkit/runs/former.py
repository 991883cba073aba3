"""Earlier runs: those of the same configuration that are finished, or were interrupted."""

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from gemkit.core.errors import DataError, OptionError, StorageError
from gemkit.data.fingerprint import check_same
from gemkit.runs.differences import differences
from gemkit.runs.directory import RunDir
from gemkit.runs.progress import Progress
from gemkit.runs.resolved import ResolvedRun, recorded_data
from gemkit.runs.setup import Setup


def finished(run: ResolvedRun, setup: Setup, progress: Progress) -> Path | None:
    """Return the folder in `runs` in which this same run is finished, if there is one."""
    for former in _named(run.name):
        with suppress(OptionError, DataError, StorageError):  # another run, or one that is damaged
            if former.is_run() and former.state() == "done":
                former.check_plain()
                check_same_run(former.path, former.config(), run, setup)
                progress.note("this is the result of an earlier run; --new makes another one")
                return former.path
    return None


def note_unfinished(run_dir: RunDir, name: str, progress: Progress) -> None:
    """Report an interrupted run of the same name, since this is a new one."""
    former = RunDir(run_dir.path.with_name(name))
    with suppress(StorageError):  # files of another run's folder that are not plain
        if former != run_dir and former.is_run() and former.state() == "interrupted":
            progress.note(
                f"{former.path} was interrupted, and this is a new run in {run_dir.path}; "
                f"`gemkit resume {former.path}` would resume that one"
            )


def _named(name: str) -> list[RunDir]:
    """Return the folders `runs/NAME`, `runs/NAME-2`, … that exist, as `create` numbers them."""
    found: list[RunDir] = []
    for number in count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir refuses long names
            return found
        found.append(RunDir(folder))
    raise AssertionError("unreachable: counting does not end")


def check_same_run(folder: Path, config: Mapping[str, Any], run: ResolvedRun, setup: Setup) -> None:
    """Refuse a folder with another configuration, or with the same one on other data."""
    there = {name: value for name, value in config.items() if name not in {"data", "run"}}
    known, now = recorded_data(config), setup.data.fingerprint
    if other := differences(there, run.to_data()):
        # Learning rates that were left open may differ because the data do.
        other += [f"data: {words}" for words in (known.differences(now) if known else ())]
        raise OptionError(
            f"{folder} holds another run, and nothing was changed there:\n  - "
            + "\n  - ".join(other)
            + "\ngive another --out, or what that run was started with"
        )
    check_same(
        known,
        now,
        f"the run in {folder} began with",
        "restore them, name the folder they moved to with --data-dir, or start another run",
    )
