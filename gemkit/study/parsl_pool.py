"""Parsl as an executor of studies: this machine, Slurm, or a configuration of your own.

Parsl's traps are handled here: workers find the environment and the path of the driver, a local
pool listens on 127.0.0.1, its heartbeats are short, so that a killed driver leaves no workers for
long, and a local worker that does not start is an error after a deadline instead of silence.
"""

import os
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.core.errors import OptionError, StudyError

if TYPE_CHECKING:
    from gemkit.study.executors import Parsl

LOCAL, SLURM = "local", "slurm"
_PERIOD, _THRESHOLD = 2, 6
"""Seconds between heartbeats of a local pool, and without one until it is given up."""


class ParslPool(Executor):
    """A running Parsl; shutting it down does not wait for tasks, which the store survives."""

    def __init__(self, config: Any, temporary: Path | None = None) -> None:  # noqa: ANN401 - Parsl's
        from parsl.concurrent import ParslPoolExecutor

        self._temporary = temporary
        self._pool: Any = ParslPoolExecutor(config)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401
        """Run a function on a worker."""
        future: Future[Any] = self._pool.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers; stages at work continue from their checkpoints another time."""
        self._pool.shutdown(wait=wait and not cancel_futures)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def start(part: "Parsl", jobs: int, threads: int) -> Executor:
    """Start Parsl for an executor part."""
    try:
        import parsl  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise OptionError(
            "Parsl is not installed; `pip install gemkit[cluster]`, or use --on local"
        ) from error
    if part.site == LOCAL:
        return _started_local(part, jobs, threads)
    return ParslPool(slurm_config(part, threads) if part.site == SLURM else _config_in(part.site))


def _started_local(part: "Parsl", jobs: int, threads: int) -> Executor:
    """Start workers on this machine, and wait until one of them answers."""
    folder = Path(tempfile.mkdtemp(prefix="gemkit-parsl-"))
    pool = ParslPool(local_config(part, jobs, threads, folder), folder)
    try:
        pool.submit(os.getpid).result(timeout=part.deadline)
    except TimeoutError as error:
        pool.shutdown(cancel_futures=True)
        raise StudyError(
            f"no worker of Parsl has started within {part.deadline:g} s; set -o "
            "executor.deadline to wait longer, or use --on local"
        ) from error
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return pool


def local_config(part: "Parsl", jobs: int, threads: int, folder: Path) -> Any:  # noqa: ANN401
    """Return a configuration for this machine."""
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    _find_programs()
    executor = HighThroughputExecutor(
        label="gemkit",
        address="127.0.0.1",
        max_workers_per_node=jobs,
        cores_per_worker=1e-6,  # jobs says how many workers there are
        available_accelerators=part.gpus or (),
        heartbeat_period=_PERIOD,
        heartbeat_threshold=_THRESHOLD,
        provider=LocalProvider(
            init_blocks=1, max_blocks=1, worker_init=worker_init(threads, part.setup)
        ),
    )
    return Config(
        executors=[executor], run_dir=str(folder), initialize_logging=False, strategy="none"
    )


def slurm_config(part: "Parsl", threads: int) -> Any:  # noqa: ANN401 - Parsl's
    """Return a configuration for Slurm; its run folder is on the disk that nodes share."""
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.launchers import SrunLauncher
    from parsl.providers import SlurmProvider

    _find_programs()
    provider = SlurmProvider(
        partition=part.partition,
        account=part.account,
        qos=part.qos,
        nodes_per_block=part.nodes,
        cores_per_node=part.cores,
        gpus_per_node=part.gpus or None,
        init_blocks=1,
        max_blocks=part.blocks,
        walltime=part.walltime,
        scheduler_options=part.options,
        worker_init=worker_init(threads, part.setup),
        exclusive=False,
        launcher=SrunLauncher(),
    )
    executor = HighThroughputExecutor(
        label="gemkit",
        max_workers_per_node=part.workers,
        cores_per_worker=1e-6,
        available_accelerators=part.gpus or (),
        provider=provider,
    )
    return Config(executors=[executor])


def worker_init(threads: int, setup: str) -> str:
    """Return the shell commands before a worker starts: it finds what this process finds."""
    here = str(Path.cwd())
    path = os.pathsep.join(entry or here for entry in sys.path)
    lines = [
        f"export PATH={shlex.quote(_programs())}:$PATH",
        f"export PYTHONPATH={shlex.quote(path)}",
        f"export OMP_NUM_THREADS={threads} OMP_WAIT_POLICY=passive",
        setup,
    ]
    return "\n".join(line for line in lines if line)


def _config_in(file: str) -> Any:  # noqa: ANN401 - Parsl's
    """Run a file that the user named, and return its variable `config`."""
    from parsl.config import Config

    if not file.endswith(".py") or not Path(file).is_file():
        raise OptionError(
            f"parsl:{file} is neither parsl:local nor parsl:slurm nor a Python file; write "
            "parsl:FILE.py, with a variable `config` in the file"
        )
    _find_programs()
    config = runpy.run_path(file).get("config")
    if not isinstance(config, Config):
        raise OptionError(f"{file} has no variable `config` of type parsl.config.Config")
    return config


def _programs() -> str:
    return str(Path(sys.executable).parent)


def _find_programs() -> None:
    """Let Parsl find its own programs, which are beside this Python."""
    if _programs() not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = f"{_programs()}{os.pathsep}{os.environ.get('PATH', '')}"
