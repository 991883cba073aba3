"""Device, precision and memory layout, through Lightning Fabric."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.lsf import LSFEnvironment
from lightning_fabric.plugins.environments.mpi import MPIEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import nn

from gemkit.core.errors import TrainingError
from gemkit.core.text import number_of
from gemkit.training import processes
from gemkit.training.plan import Runtime

# Fabric's "64-true" returns logits in float32; a double model under "32-true" stays double.
_PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}
_LAUNCHERS: dict[str, type[ClusterEnvironment]] = {
    "torchrun": TorchElasticEnvironment,
    "srun": SLURMEnvironment,
    "jsrun": LSFEnvironment,
    "mpirun": MPIEnvironment,
}
"""What may have started the processes of a run, as Fabric knows it."""


def make_fabric(runtime: Runtime, *, start_processes: bool = False) -> Fabric:
    """Return a launched Fabric for the requested device, or raise if it is not available.

    Several devices need one process each. Starting them runs the program again from its beginning,
    so a library call must not do it; existing processes (of torchrun or srun) are joined.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(runtime.device, True):
        raise TrainingError(
            f"device '{runtime.device}' is not available here; use --device auto or --device cpu"
        )
    launcher = _launcher() if runtime.devices > 1 else None
    alone = launcher is None and not LightningEnvironment().creates_processes_externally
    starts = runtime.devices > 1 and alone
    if starts:
        _check_count(runtime, available)
    if starts and not start_processes:
        raise TrainingError(
            f"{runtime.devices} devices need as many processes: start your script with `torchrun "
            f"--nproc-per-node {runtime.devices} SCRIPT`, use `gemkit run --devices "
            f"{runtime.devices}`, or pass a launched Fabric as fabric="
        )
    if launcher is not None:
        _check_processes(runtime, *launcher)
    half = runtime.precision == "fp16"
    plugins: list[Any] = [Half(_chosen(runtime, available))] if half else []
    if launcher is None:
        plugins.append(LightningEnvironment())  # without it, Fabric would ask Slurm
    with _explained(KeyError, RuntimeError, ValueError):
        fabric = Fabric(
            accelerator=runtime.device,
            devices=runtime.devices,
            precision=None if half else _PRECISIONS[runtime.precision],
            plugins=plugins,
        )
    if starts:
        processes.start(runtime.devices)
    processes.watch_first()
    with _explained(ValueError):
        fabric.launch()
    return fabric


class Half(MixedPrecision):
    """Forward passes in fp16; the trainer scales the loss.

    Fabric would scale it inside its own optimizers, after the update has used the gradients, and
    takes bf16 instead on a CPU.
    """

    def __init__(self, device: str) -> None:
        super().__init__("16-mixed", device)
        self.scaler = None


def _launcher() -> tuple[str, int] | None:
    """Return what has started the processes of this run, and how many there are.

    Fabric asks the same environments. A Slurm job with one task has only this process.
    """
    for name, environment in _LAUNCHERS.items():
        if environment.detect() and (name != "srun" or os.environ["SLURM_NTASKS"] != "1"):
            with _explained(KeyError, RuntimeError, ValueError):
                count = environment().world_size()
            if name == "srun" and os.environ.get("SLURM_STEP_NUM_TASKS") != str(count):
                raise TrainingError(
                    f"this Slurm job has {number_of(count, 'task')}, but srun has not started "
                    "them: write srun before the command, or ask for one task (--ntasks=1), and "
                    "gemkit starts the other processes"
                )
            return name, count
    return None


def _check_processes(runtime: Runtime, name: str, count: int) -> None:
    """Refuse another number of processes than devices."""
    if count != runtime.devices:
        way_out = f"let it start {runtime.devices}, all on one node"
        if name == "srun":
            way_out = (
                f"ask for --nodes=1 --ntasks-per-node={runtime.devices}, or for --ntasks=1, and "
                "gemkit starts the others"
            )
        raise TrainingError(
            f"{name} has started {number_of(count, 'process', 'processes')}, and --devices is "
            f"{runtime.devices}; {way_out}"
        )


@contextmanager
def _explained(*errors: type[Exception]) -> Iterator[None]:
    """Turn what Fabric finds wrong with its surroundings into an error of gemkit's."""
    try:
        yield
    except errors as error:
        missing = isinstance(error, KeyError)
        problem = f"the variable {error} is not set" if missing else " ".join(str(error).split())
        raise TrainingError(f"several processes cannot work together here: {problem}") from error


def _chosen(runtime: Runtime, available: dict[str, bool]) -> str:
    """Return the kind of device that a run uses."""
    accelerators = (name for name, there in available.items() if there)
    return next(accelerators, "cpu") if runtime.device == "auto" else runtime.device


def _check_count(runtime: Runtime, available: dict[str, bool]) -> None:
    """Refuse more devices than there are; on the CPU, at most one process per core."""
    device = _chosen(runtime, available)
    cores = os.cpu_count() or 1
    count = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": max(2, cores)}[device]
    if runtime.devices > count:
        has = {"cpu": number_of(cores, "core") + " for a process each"}
        raise TrainingError(
            f"{runtime.devices} devices of kind '{device}' are more than this machine has "
            f"({has.get(device, count)}); use --devices {count} at most"
        )


def place(model: nn.Module, fabric: Fabric, runtime: Runtime) -> nn.Module:
    """Move a model to the device, memory layout and precision of the run."""
    if runtime.precision == "64":
        model = model.double()
    return model.to(fabric.device).to(memory_format=layout_of(model, runtime))


def layout_of(model: nn.Module, runtime: Runtime) -> torch.memory_format:
    """Choose the memory layout of images and kernels.

    With channels-last, oneDNN writes out of bounds in the weight gradient of strided 1×1
    convolutions with few input channels (uxlfoundation/oneDNN#6035); such networks stay contiguous.
    """
    dangerous = any(
        module.kernel_size == (1, 1) and max(module.stride) > 1 and module.in_channels < 16
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    )
    volumes = any(parameter.ndim == 5 for parameter in model.parameters())
    if runtime.channels_last and not dangerous and not volumes:
        return torch.channels_last
    return torch.contiguous_format
