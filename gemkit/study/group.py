"""A stage on several devices: processes that share every batch, as those of `gemkit run --devices`.

A worker starts `python -m gemkit.study.group FILE PARENT`. That process starts the others,
with the same command. Only the first one touches the folder of the stage.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemkit.core.atomic_io import write_atomic
from gemkit.core.errors import GemkitError, StudyError
from gemkit.plugins.faults import FAULT, exits_are_faults, fault_of
from gemkit.runs import signals
from gemkit.training.processes import FIRST_PROCESS, end_with, rank, report, report_own

_LOOK = 0.2
"""Seconds between two looks at the processes of a stage."""
_TAIL = 600
"""Characters of the last words of the processes."""
_OUTER = ("SLURM_", "TORCHELASTIC_", "JSM_NAMESPACE_", "OMPI_", "PMI_", "PMIX_", "MASTER_")
_OUTER_NAMES = {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", FIRST_PROCESS}
"""Variables of processes that share a run, by which Fabric would expect some from outside."""


def carry_out_together(task: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a stage in processes of its own, and return how that ended."""
    with tempfile.TemporaryDirectory() as folder, signals.deferred() as stop:
        file, words = Path(folder) / "task.json", Path(folder) / "words"
        file.write_text(json.dumps(task))
        with words.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "gemkit.study.group", str(file), str(os.getpid())],
                env={**_surroundings(), "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        try:
            _wait(process, stop)
        finally:
            with suppress(ProcessLookupError):  # others may wait for the first one
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        try:
            outcome: dict[str, Any] = json.loads(_answer(file).read_bytes())
        except FileNotFoundError as error:
            last = " ".join(words.read_text(errors="replace").split())[-_TAIL:]
            code = process.returncode
            raise StudyError(
                f"the first of its processes ended with code {code}: {last}"
            ) from error
        return outcome


def _surroundings() -> dict[str, str]:
    """Return the environment of a first process, which no other has started."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OUTER_NAMES and not name.startswith(_OUTER)
    }


def _wait(process: "subprocess.Popen[bytes]", stop: signals.StopRequest) -> None:
    """Wait for the first process; ask it to save and stop when this one is asked to."""
    asked = False
    while process.poll() is None:
        if stop.signal is not None and not asked:
            process.send_signal(signal.SIGTERM)
            asked = True
        time.sleep(_LOOK)


def _answer(file: Path) -> Path:
    return file.with_name("outcome.json")


def main(file: Path, parent: int) -> None:
    """Be one of the processes of a stage."""
    first = rank() == 0
    if first:  # the others end with the first one, when they have joined it
        end_with(parent)
    from gemkit.study.work import work_on

    task = json.loads(file.read_bytes())
    if not first:
        _join(task)
        return
    try:
        write_atomic(json.dumps(work_on(task)).encode(), _answer(file))
    except GemkitError as error:
        sys.exit(f"gemkit: {error}")


def _join(task: Mapping[str, Any]) -> None:
    """Be another process than the first, which only sees that this one ended."""
    from gemkit.study.work import join

    try:
        with exits_are_faults():
            join(task)
    except GemkitError as error:
        report_own(error)
        sys.exit(2)
    except Exception as error:
        if (fault := fault_of(error)) is None:
            raise
        report(fault)
        sys.exit(FAULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
