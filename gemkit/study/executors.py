"""The executors that gemkit has: processes of this machine, and Parsl for clusters."""

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import ClassVar

from pydantic import Field

from gemkit.parts.executor import StudyExecutor
from gemkit.plugins.markers import hookimpl
from gemkit.study.pool import LocalPool

MANY = 64
"""Stages to submit at once to an executor that does not say how many it has room for."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Local(StudyExecutor):
    """Processes of this machine, with GPUs of their own if there are any."""

    name = "local"

    def jobs(self, threads: int, devices: int) -> int:
        """One for each GPU or group of GPUs, or as many as the cores have room for."""
        gpus = visible_gpus()
        if len(gpus) >= devices:
            return len(gpus) // devices
        return max(1, cores() // (threads * devices))

    def start(self, jobs: int, threads: int, devices: int) -> Executor:
        """Start a pool; its processes start when they are needed."""
        return LocalPool([environment(place, threads, devices) for place in range(jobs)])


class Parsl(StudyExecutor):
    """Parsl: `parsl:local`, `parsl:slurm`, or `parsl:FILE.py` with a variable `config`.

    Needs the extra `gemkit[cluster]`. The folder of the study has to be on a disk that all nodes
    share. With a file of your own, all other fields are ignored.
    """

    name = "parsl"
    argument: ClassVar[str | None] = "site"

    site: str = Field(
        examples=["local"], description="local, slurm, or a Python file with a Parsl config"
    )
    workers: int = Field(default=1, ge=1, le=4096, description="stages at once on each node")
    nodes: int = Field(default=1, ge=1, le=100_000, description="nodes of each Slurm job")
    blocks: int = Field(default=1, ge=1, le=100_000, description="Slurm jobs at once, at most")
    gpus: int = Field(default=0, ge=0, le=1024, description="GPUs of each node, shared by workers")
    cores: int | None = Field(default=None, ge=1, description="cores of each node")
    partition: str | None = Field(default=None, description="Slurm partition")
    account: str | None = Field(default=None, description="Slurm account")
    qos: str | None = Field(default=None, description="Slurm quality of service")
    walltime: str = Field(
        default="01:00:00", pattern=r"^(\d+-)?\d+:\d\d:\d\d$", description="of a Slurm job"
    )
    options: str = Field(default="", description="further #SBATCH lines, separated by newlines")
    setup: str = Field(default="", description="shell commands before a worker starts")
    deadline: float = Field(
        default=120.0, gt=0, description="seconds for the first local worker to start"
    )

    def jobs(self, threads: int, devices: int) -> int:
        """Workers of all nodes of all blocks; with a file of your own, Parsl has the queue."""
        own = self.site not in ("local", "slurm")
        return MANY if own else self.workers * self.nodes * self.blocks

    def start(self, jobs: int, threads: int, devices: int) -> Executor:
        """Start Parsl, and check that a local worker answers."""
        from gemkit.study.parsl_pool import start

        return start(self, jobs, threads, devices)


def environment(place: int, threads: int, devices: int) -> Mapping[str, str]:
    """Return the variables of the process at a place of the pool: its threads and its GPUs."""
    own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    gpus = visible_gpus()
    if len(gpus) >= devices:
        first = place % (len(gpus) // devices) * devices
        own[_VISIBLE] = ",".join(gpus[first : first + devices])
    return own


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if _VISIBLE in os.environ:
        return [name for name in os.environ[_VISIBLE].split(",") if name and name != "-1"]
    import torch

    return [str(place) for place in range(torch.cuda.device_count())]


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@hookimpl
def gemkit_executors() -> list[type[StudyExecutor]]:
    """Register the executors."""
    return [Local, Parsl]
