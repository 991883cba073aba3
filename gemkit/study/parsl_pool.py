"""Parsl as an executor of studies: this machine, Slurm, or a configuration of your own.

Parsl's traps are handled here. Workers find the environment and the path of the driver. A local
pool listens on 127.0.0.1, and its processes end with the driver. A block that is lost is replaced.
Whatever would wait forever is an error instead: a local worker that does not start, blocks that
fail one after the other, and the end of the interchange, the process that hands out tasks.
"""

import os
import runpy
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.core.errors import OptionError, StudyError

if TYPE_CHECKING:
    from gemkit.study.executors import Parsl

LOCAL, SLURM = "local", "slurm"
_PERIOD, _THRESHOLD = 2, 30
"""Seconds between heartbeats of a local pool, and without one until a block is given up."""
_BLOCKS = 3
"""So many blocks that fail one after the other, with no end of a stage between, end a study."""
_LEASH = (
    '( trap "" TERM INT; '
    "while kill -0 $$; do kill -0 {driver} || {{ kill -TERM 0; break; }}; sleep 1; done; "
    "sleep {grace}; kill -KILL 0 ) 2> /dev/null &"
)
"""Ends a local block, which is a process group, when its script or the driver is gone.

Cancelling a block ends its script and signals the group; another signal would not let stages save.
"""
_GRACE = 5
"""Seconds for stages to save."""
_TAIL = 300
"""Characters of the last words of a block."""


class ParslPool(Executor):
    """A running Parsl; shutting it down does not wait for tasks, which the store survives."""

    def __init__(self, config: Any, temporary: Path | None = None) -> None:  # noqa: ANN401 - Parsl's
        from parsl.concurrent import ParslPoolExecutor

        self._temporary = temporary
        self._executors: list[Any] = list(config.executors)
        self._pool: Any = ParslPoolExecutor(config)
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401
        """Run a function on a worker; if Parsl has stopped, say why and how to continue."""
        for executor in self._executors:
            if getattr(executor, "bad_state_is_set", False):
                raise StudyError(
                    f"Parsl has stopped: {executor.executor_exception}; finished stages are kept, "
                    "and the same command continues"
                )
        future: Future[Any] = self._pool.submit(fn, *args, **kwargs)
        future.add_done_callback(self._forgive)
        return future

    def _forgive(self, future: "Future[Any]") -> None:
        """Let blocks that failed before a stage ended count no longer."""
        for executor in self._executors:
            handler = getattr(executor, "block_error_handler", None)
            if isinstance(handler, GiveUp) and future.exception() is None:
                handler.forgive()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers; stages at work continue from their checkpoints another time."""
        self._closed.set()
        if any(_has_no_interchange(executor) for executor in self._executors):
            self._abandon()
        else:
            self._pool.shutdown(wait=wait and not cancel_futures)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _watch(self) -> None:
        """Fail all tasks when the interchange ends: Parsl would wait for them forever."""
        while not self._closed.wait(1):
            for executor in self._executors:
                if _has_no_interchange(executor) and not executor.bad_state_is_set:
                    lost = StudyError("its interchange, the process that hands out tasks, ended")
                    executor.set_bad_state_and_fail_all(lost)

    def _abandon(self) -> None:
        """Cancel all blocks without the interchange, whose answers Parsl would wait for."""
        import parsl

        for executor in self._executors:
            if (provider := getattr(executor, "provider", None)) is not None:
                provider.cancel(list(executor.blocks_to_job_id.values()))
        parsl.clear()


def _has_no_interchange(executor: Any) -> bool:  # noqa: ANN401 - Parsl's
    """Return whether an executor had an interchange that has ended."""
    process = getattr(executor, "interchange_proc", None)
    return process is not None and process.poll() is not None


class GiveUp:
    """Stops an executor whose last blocks have all failed, if no stage has ended in between."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._forgiven: set[str] = set()

    def forgive(self) -> None:
        """Count no block that has failed until now."""
        self._forgiven = self._failed

    def __call__(self, executor: Any, status: Mapping[str, Any]) -> None:  # noqa: ANN401 - Parsl's
        """Decide, for Parsl to call after every look at its blocks."""
        from parsl.jobs.states import JobState

        last = sorted(status, key=int)[-_BLOCKS:]
        bad = (JobState.FAILED, JobState.MISSING)
        self._failed = {block for block in last if status[block].state in bad}
        if len(self._failed - self._forgiven) == _BLOCKS and not executor.bad_state_is_set:
            end = status[last[-1]]
            words = " ".join(f"{end.stderr_summary or end.message or ''}".split())[-_TAIL:]
            problem = f"{_BLOCKS} blocks failed one after the other, the last with code "
            problem += f"{end.exit_code}" + (f": {words}" if words else "")
            executor.set_bad_state_and_fail_all(StudyError(problem))


def start(part: "Parsl", jobs: int, threads: int, devices: int = 1) -> Executor:
    """Start Parsl for an executor part."""
    try:
        import parsl  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise OptionError(
            "Parsl is not installed; `pip install gemkit[cluster]`, or use --on local"
        ) from error
    if part.site == LOCAL:
        return _started_local(part, jobs, threads, devices)
    if part.site == SLURM:
        return ParslPool(slurm_config(part, threads, devices))
    return ParslPool(_config_in(part.site))


def _started_local(part: "Parsl", jobs: int, threads: int, devices: int) -> Executor:
    """Start workers on this machine, and wait until one of them answers."""
    folder = Path(tempfile.mkdtemp(prefix="gemkit-parsl-"))
    pool = ParslPool(local_config(part, jobs, threads, devices, folder), folder)
    try:
        pool.submit(os.getpid).result(timeout=part.deadline)
    except BaseException as error:
        pool.shutdown(cancel_futures=True)
        if not isinstance(error, Exception):
            raise
        why = f"({' '.join(str(error).split())}); mend that"
        if isinstance(error, TimeoutError):
            why = f"within {part.deadline:g} s; set -o executor.deadline to wait longer"
        raise StudyError(f"no worker of Parsl has started {why}, or use --on local") from error
    return pool


def local_config(part: "Parsl", jobs: int, threads: int, devices: int, folder: Path) -> Any:  # noqa: ANN401
    """Return a configuration for this machine."""
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    _find_programs()
    leash = _LEASH.format(driver=os.getpid(), grace=_GRACE)
    executor = HighThroughputExecutor(
        label="gemkit",
        address="127.0.0.1",
        max_workers_per_node=jobs,
        cores_per_worker=1e-6,  # jobs says how many workers there are
        available_accelerators=accelerators(part.gpus, devices),
        heartbeat_period=_PERIOD,
        heartbeat_threshold=_THRESHOLD,
        block_error_handler=GiveUp(),
        interchange_launch_cmd=_interchange(),
        provider=LocalProvider(
            init_blocks=1,
            min_blocks=1,
            max_blocks=1,
            worker_init=f"{leash}\n{worker_init(threads, part.setup)}",
        ),
    )
    return Config(executors=[executor], run_dir=str(folder), initialize_logging=False)


def slurm_config(part: "Parsl", threads: int, devices: int = 1) -> Any:  # noqa: ANN401 - Parsl's
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
        available_accelerators=accelerators(part.gpus, devices),
        block_error_handler=GiveUp(),
        interchange_launch_cmd=_interchange(),
        provider=provider,
    )
    return Config(executors=[executor])


def accelerators(gpus: int, devices: int) -> list[str]:
    """Return the GPUs of each worker of a node, as CUDA_VISIBLE_DEVICES names them."""
    groups = [range(first, first + devices) for first in range(0, gpus - devices + 1, devices)]
    return [",".join(map(str, group)) for group in groups]


def _interchange() -> list[str]:
    """Return the command of an interchange that ends with this process."""
    program = Path(__file__).with_name("interchange.py")
    return [sys.executable, "-P", str(program), str(os.getpid())]


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
