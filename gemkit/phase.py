"""One phase of a run, search or fine-tuning: its data, device and seed, and who is told."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric

from gemkit import events
from gemkit.data.source import Data
from gemkit.events import EpochEnded, Event, PhaseStarted, StepEnded
from gemkit.plan import Plan, Runtime
from gemkit.tensors import density_of
from gemkit.training import Trainer, accuracy, endless, make_fabric

Listener = Callable[[Event], None]


class Phase:
    """Trains a network as planned and tells its observers what happens."""

    def __init__(
        self,
        name: events.Phase,
        data: Data,
        seed: int,
        runtime: Runtime,
        observers: Sequence[Listener],
        fabric: Fabric | None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.runtime = runtime
        self.fabric = fabric or make_fabric(runtime)
        self.data = data.to(self.fabric.device)
        self.observers = observers

    def tell(self, event: Event) -> None:
        """Pass an event on to every observer."""
        for observer in self.observers:
            observer(event)

    def train(self, trainer: Trainer) -> Iterator[int]:
        """Train as planned, yielding the step count before every step and after the last.

        The caller acts between steps; that is where freezes happen.
        """
        plan, per_epoch = trainer.plan, self.steps_per_epoch(trainer.plan)
        batches = endless(self.data.train, plan.batch_size, seed=self.seed, fabric=self.fabric)
        self.tell(PhaseStarted(self.name, plan.epochs, per_epoch))
        trainer.module.train()
        began = time.perf_counter()
        for step in range(plan.epochs * per_epoch):
            yield step
            trainer.step(next(batches), lr := plan.lr_at(step, per_epoch))
            self.tell(StepEnded(self.name, step + 1))
            if (step + 1) % per_epoch == 0:
                self._end_epoch(trainer, (step + 1) // per_epoch, lr, began)
        yield plan.epochs * per_epoch

    def steps_per_epoch(self, plan: Plan) -> int:
        """Count the optimizer steps of one epoch."""
        return self.data.train.steps(plan.batch_size)

    def _end_epoch(self, trainer: Trainer, epoch: int, lr: float, began: float) -> None:
        """Measure and tell how the epoch went: the only moment that waits for the device."""
        event = EpochEnded(
            phase=self.name,
            epoch=epoch,
            loss=trainer.mean_loss(),
            accuracy=accuracy(trainer.module, self.data.validation, self.fabric, self.data.classes),
            density=density_of(trainer.net.mask),
            lr=lr,
            seconds=time.perf_counter() - began,
        )
        self.tell(event)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random numbers (dropout draws from them) and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
