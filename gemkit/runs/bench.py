"""What a run works with: the images, the network built for them, and the machine."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit import engine
from gemkit.compaction import finetune
from gemkit.data.source import Data
from gemkit.errors import GemkitError
from gemkit.keeping import Keeper
from gemkit.models.blocks import Shape
from gemkit.models.custom import model_data
from gemkit.parts import DatasetPart, ModelPart
from gemkit.phase import Listener
from gemkit.plan import Plan, Runtime
from gemkit.recipe import part_data
from gemkit.tensors import seeded
from gemkit.ticket import Ticket
from gemkit.training import make_fabric

Split = Literal["train", "validation", "test"]
Build = Callable[[Shape, int], nn.Module]
"""Makes a network for the shape of an image and a number of classes."""


@dataclass(frozen=True)
class Bench:
    """Images, a network with freshly drawn weights, where to compute, and what a ticket records."""

    data: Data
    model: nn.Module
    runtime: Runtime
    fabric: Fabric
    origin: Mapping[str, Any]

    def label(self, ticket: Ticket, versions: Mapping[str, str]) -> Ticket:
        """Write into a ticket which network and data it belongs to, and which plugins made it."""
        return ticket.with_info(
            **self.origin,
            data=self.data.fingerprint,
            versions={**ticket.info.versions, **versions},
        )

    def measure(self, ticket: Ticket, split: Split = "test") -> float:
        """Return the accuracy of a ticket on one split."""
        return engine.evaluate(
            ticket, self.model, self.data, split=split, runtime=self.runtime, fabric=self.fabric
        )

    def finetune(
        self,
        ticket: Ticket,
        plan: Plan,
        seed: int,
        listeners: Sequence[Listener],
        keeper: Keeper | None = None,
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
            keeper=keeper,
        )


def open_fabric(runtime: Runtime) -> Fabric:
    """Open the machine; with several devices, this starts the processes that share the work."""
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
) -> Bench:
    """Load the data and build the network for it, its weights drawn from the seed.

    `build` makes the network instead of `model.build`.
    """
    data = load_data(dataset, fabric, data_dir, download=download)
    with seeded(seed, torch.device("cpu")):
        network = (build or model.build)(data.shape, data.classes)
    origin = {
        "model": model_data(model),
        "dataset": part_data(dataset),
        "shape": data.shape,
        "classes": data.classes,
    }
    return Bench(data, network, runtime, fabric, origin)


def load_data(
    dataset: DatasetPart, fabric: Fabric, folder: Path | None, *, download: bool = False
) -> Data:
    """Load the data; the first process goes first, and the others find files and caches ready."""
    data, problem = None, None
    if fabric.is_global_zero:
        try:
            if download:
                dataset.download(folder)
            data = dataset.load(folder)
        except GemkitError as error:
            problem = error  # raised after the others are let go
    fabric.barrier()
    if problem:
        raise problem
    return data or dataset.load(folder)


@contextmanager
def together(fabric: Fabric | None) -> Iterator[None]:
    """Stop every process where the first one, which alone sees the files of a run, has an error."""
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
def place_for(fabric: Fabric, out: Path | None) -> Iterator[Path | None]:
    """Yield where a process writes: the first one to `out`, the others to a temporary folder.

    Every process does the same work; this keeps them from doing it on the same files.
    """
    if fabric.is_global_zero:
        yield out
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
