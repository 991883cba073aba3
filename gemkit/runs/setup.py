"""What a run works with: the data, the network built for them, and the device."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.compaction import finetune
from gemkit.core.errors import DataError, GemkitError
from gemkit.core.memory import during
from gemkit.core.tensors import seeded
from gemkit.data.checks import not_finite
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data
from gemkit.data.tensor_source import TensorSource
from gemkit.models.blocks import Shape
from gemkit.models.custom import model_data
from gemkit.models.part import ModelPart
from gemkit.parts.recipe import part_data
from gemkit.pruning import finetune as pruning
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.device import make_fabric
from gemkit.training.loop import Listener
from gemkit.training.plan import Plan, Runtime
from gemkit.training.task import Task

Split = Literal["train", "validation", "test"]
Build = Callable[[Shape, int], nn.Module]
"""Builds a network for the shape of an input and a number of classes, or other outputs."""


@dataclass(frozen=True)
class Setup:
    """The data, a network with its initial weights, the device, and what tickets record of them."""

    data: Data
    model: nn.Module
    runtime: Runtime
    fabric: Fabric
    origin: Mapping[str, Any]
    task: Task = field(default_factory=Task)

    def label(self, ticket: Ticket, versions: Mapping[str, str]) -> Ticket:
        """Record in a ticket its network, its data and the versions of its plugins."""
        return ticket.with_info(
            **self.origin,
            data=self.data.fingerprint,
            versions={**ticket.info.versions, **versions},
        )

    def measure(self, ticket: Ticket, split: Split = "test") -> float:
        """Return the metric of a ticket on one split."""
        return pruning.evaluate(
            ticket,
            self.model,
            self.data,
            split=split,
            runtime=self.runtime,
            fabric=self.fabric,
            task=self.task,
        )

    def finetune(
        self,
        ticket: Ticket,
        plan: Plan,
        seed: int,
        listeners: Sequence[Listener],
        checkpointer: Checkpointer | None = None,
    ) -> Ticket:
        """Train a ticket's weights."""
        return finetune(
            ticket,
            self.model,
            self.data,
            plan=plan,
            seed=seed,
            runtime=self.runtime,
            observers=listeners,
            fabric=self.fabric,
            checkpointer=checkpointer,
            task=self.task,
        )


def open_fabric(runtime: Runtime) -> Fabric:
    """Open the device; with several devices, start the processes that share the work."""
    return make_fabric(runtime, start_processes=True)


def set_up(
    model: ModelPart,
    dataset: DatasetPart,
    seed: int,
    runtime: Runtime,
    fabric: Fabric,
    *,
    data_dir: Path | None,
    download: bool = False,
    build: Build | None = None,
    task: Task | None = None,
) -> Setup:
    """Load the data and build the network for them, with weights drawn from the seed.

    `build` replaces `model.build`.
    """
    task = task or Task()
    data = load_data(dataset, fabric, data_dir, download=download)
    task.check_data(data)
    model.check_data(data)
    _check_finite(data)
    with during("building the network"), seeded(seed, torch.device("cpu")):
        network = (build or model.build)(data.shape, task.outputs(data))
    origin = {
        "model": model_data(model),
        "dataset": part_data(dataset),
        "shape": data.shape,
        "classes": data.classes,
    }
    return Setup(data, network, runtime, fabric, origin, task)


def _check_finite(data: Data) -> None:
    """Refuse values that are not finite where networks are measured: a search would be in vain.

    Streams are too long to read for that. Training data are watched step by step (`on_nan`).
    """
    for split, source in {"validation": data.validation, "test": data.test}.items():
        floats = isinstance(source, TensorSource) and source.images.is_floating_point()
        if floats and (problem := not_finite(source, split)):
            raise DataError(problem)


@during("loading the data")
def load_data(
    dataset: DatasetPart, fabric: Fabric, folder: Path | None, *, download: bool = False
) -> Data:
    """Load the data, in the first process first: the others find files and caches ready."""
    data: Data | None = None
    problem: Exception | None = None
    if fabric.is_global_zero:
        try:
            if download:
                dataset.download(folder)
            data = dataset.load(folder)
        except Exception as error:
            problem = error  # raised after the barrier, or the others would wait
    fabric.barrier()
    if problem:
        raise problem
    return data or dataset.load(folder)


@contextmanager
def with_threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads until the end of the block; None changes nothing."""
    former = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(former)


@contextmanager
def together(fabric: Fabric | None) -> Iterator[None]:
    """Stop every process when the first one, which alone sees the run's files, has an error."""
    problem = None
    try:
        yield
    except GemkitError as error:
        problem = error
    if fabric is not None and fabric.broadcast(problem is not None) and problem is None:
        raise GemkitError("the first process has an error, and reports it")
    if problem is not None:
        raise problem


@contextmanager
def output_folder(fabric: Fabric, out: Path | None) -> Iterator[Path | None]:
    """Yield `out` in the first process, and a temporary folder in the others.

    Every process does the same work, but may not write the same files.
    """
    if fabric.is_global_zero:
        yield out
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
