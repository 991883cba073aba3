"""The context of a search or fine-tuning, and the loop that trains in it."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from lightning_fabric import Fabric

from gemkit.core import events
from gemkit.core.errors import TicketError, TrainingError
from gemkit.core.events import EpochEnded, Event, Noted, PhaseStarted, StepEnded, View
from gemkit.core.memory import during
from gemkit.core.probe import Batch
from gemkit.core.state import StateDict, Stateful, checked_count
from gemkit.core.tensors import Tensors, density_of
from gemkit.core.text import number_of
from gemkit.data.fingerprint import Fingerprint, check_same
from gemkit.data.source import Data, Source, size_of_batches
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.device import make_fabric
from gemkit.training.evaluation import measure
from gemkit.training.plan import Plan, Runtime
from gemkit.training.task import Task
from gemkit.training.trainer import Trainer

Listener = Callable[[Event], None]
_FEW = 3  # steps of an epoch that fp16 may skip without a note


def agreed(data: Data, fabric: Fabric | None) -> Fingerprint:
    """Return the first process's fingerprint of the data, so that all processes agree."""
    if fabric is None:
        return data.fingerprint
    first = fabric.broadcast(data.fingerprint if fabric.is_global_zero else None)
    assert first is not None
    return first


def steps_in_epoch(source: Source, size: int, world: int) -> int:
    """Count the batches of an epoch.

    A last batch too small to give every process two images, which batch statistics need, is left
    out.
    """
    size = size_of_batches(source, size)
    return max(1, source.steps(size) - (0 < len(source) % size < 2 * world))


def endless(
    source: Source, size: int, *, seed: int, fabric: Fabric, start: int = 0
) -> Iterator[Batch]:
    """Yield augmented training batches without end; every epoch has its own order.

    Skip the first `start` batches. Of several processes, each gets its share of every batch.
    """
    world = fabric.world_size
    whole = steps_in_epoch(source, size, world)
    first, passed = divmod(start, whole)
    for epoch in itertools.count(first):
        shares = source.batches(
            size, seed=seed, epoch=epoch, augment=True, rank=fabric.global_rank, world=world
        )
        yield from itertools.islice(shares, passed if epoch == first else 0, whole)


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


class RunContext:
    """Data, seed, device, observers and checkpointer of a search or fine-tuning."""

    def __init__(
        self,
        name: events.Phase,
        data: Data,
        seed: int,
        runtime: Runtime,
        observers: Sequence[Listener],
        fabric: Fabric | None,
        checkpointer: Checkpointer | None = None,
        task: Task | None = None,
        ticket_digest: Callable[[], str] = lambda: "",
    ) -> None:
        self.name = name
        self.task = task or Task()
        self.seed = seed
        self.runtime = runtime
        self.fabric = fabric or make_fabric(runtime)
        with during("loading the data"):
            self.data = data.to(self.fabric.device)
        self._loaded = data
        self.observers = observers
        self.checkpointer = checkpointer or Checkpointer()
        self._ticket_digest = ticket_digest

    @cached_property
    def ticket(self) -> str:
        """The digest of the ticket that is fine-tuned; empty in a search."""
        return self._ticket_digest()

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the data; all processes must ask for it together."""
        return agreed(self._loaded, self.fabric)

    def emit(self, event: Event) -> None:
        """Send an event to every observer."""
        for observer in self.observers:
            observer(event)

    def begin(self, **parts: Stateful) -> None:
        """Restore the saved state of these parts, if there is one."""
        self.checkpointer.begin(self.name, self.fabric, parts)

    def steps_per_epoch(self, plan: Plan) -> int:
        """Count the optimizer steps of one epoch."""
        return steps_in_epoch(self.data.train, plan.batch_size, self.fabric.world_size)


class TrainLoop:
    """Trains a network by a clock, which rewinding sets back.

    The clock alone determines the learning rate and the batch of a step. `steps` counts all steps
    that were taken, and is never set back.
    """

    def __init__(self, context: RunContext, trainer: Trainer, segments: Sequence[range]) -> None:
        self.context = context
        self.trainer = trainer
        if any(segments) and not trainer.net.trainable():
            raise TrainingError(
                f"every parameter of {type(trainer.net.model).__name__} is frozen "
                "(requires_grad=False), so there is nothing to train; unfreeze some, with "
                "requires_grad_(True)"
            )
        self.steps = 0
        self.steps_per_epoch = context.steps_per_epoch(trainer.plan)
        self._epochs = 0
        self.set_clock(0)
        ends = (
            part.stop // self.steps_per_epoch - part.start // self.steps_per_epoch
            for part in segments
        )
        self.stopped = False
        self._asked: str | None = None
        view = View(
            masks=lambda: _copied(trainer.net.mask),
            scores=lambda: _copied(trainer.net.scores),
            stop=self.stop,
        )
        self._planned = sum(map(len, segments))
        context.emit(PhaseStarted(context.name, epochs=sum(ends), steps=self._planned, view=view))
        self._note_batch_size()
        trainer.module.train()
        self._began = time.perf_counter()

    def _note_batch_size(self) -> None:
        """Note that a given batch size has no effect, where a loader makes its own batches."""
        size, own = self.trainer.plan.batch_size, size_of_batches(self.context.data.train, 0)
        if own and size not in (own, Plan.model_fields["batch_size"].default):
            sentence = f"batch_size = {size} has no effect: the loader makes batches of {own}"
            self.context.emit(Noted(sentence))

    def set_clock(self, step: int) -> None:
        """Continue as after this many steps: with that learning rate and those batches."""
        self.clock = step
        plan, context = self.trainer.plan, self.context
        self._batches = endless(
            context.data.train,
            plan.batch_size,
            seed=context.seed,
            fabric=context.fabric,
            start=step,
        )

    def stop(self, reason: str) -> None:
        """Take no more steps; with several processes, the first one decides, after an epoch."""
        self._asked = reason if self._asked is None else self._asked
        if self.context.fabric.world_size == 1:
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._asked is not None and not self.stopped:
            self.stopped = True
            self.context.emit(Noted(f"stopped after step {self.steps}: {self._asked}"))

    @property
    def ended_early(self) -> bool:
        """Whether an observer stopped training before its last step."""
        return self.stopped and self.steps < self._planned

    def run_until(self, step: int) -> None:
        """Train until the clock shows this step, or until an observer asks to stop."""
        while self.clock < step and not self.stopped:
            lr = self.trainer.plan.lr_at(self.clock, self.steps_per_epoch)
            self.clock += 1
            self.steps += 1
            if not self.trainer.step(next(self._batches), lr, self.steps):
                self.context.emit(Noted(f"step {self.steps} was left out: its loss is not finite"))
            self.context.emit(StepEnded(self.context.name, self.steps))
            ends = self.clock % self.steps_per_epoch == 0
            if ends:
                self._end_epoch(lr)
                if self.context.fabric.world_size > 1:  # all processes stop together
                    self._asked = self.context.fabric.broadcast(self._asked)
                    self._stop_if_asked()
            self.context.checkpointer.maybe_save(epoch_ended=ends)

    def state_dict(self) -> StateDict:
        """Return clock, counts, elapsed time, and what identifies the data and the ticket."""
        return {
            "clock": self.clock,
            "steps": self.steps,
            "epochs": self._epochs,
            "seconds": self._seconds(),
            "stopped": self.stopped,
            "data": self.context.fingerprint.model_dump(),
            "ticket": self.context.ticket,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state; refuse one from other data or of another ticket."""
        data = state.get("data")  # missing in older checkpoints
        check_same(
            None if data is None else Fingerprint.model_validate(data),
            self.context.fingerprint,
            "the run began with",
            "resume it with those, or start in another folder",
        )
        if state.get("ticket", self.context.ticket) != self.context.ticket:
            raise TicketError(
                "the ticket is not the one that fine-tuning began with; put that one back, or "
                "start in another folder"
            )
        self.set_clock(checked_count(state, "clock"))
        self.steps, self._epochs = checked_count(state, "steps"), checked_count(state, "epochs")
        self._began = time.perf_counter() - float(state["seconds"])
        self.stopped = bool(state.get("stopped", False))  # missing in older checkpoints

    def _seconds(self) -> float:
        """Return the time spent in training, without interruptions."""
        return time.perf_counter() - self._began

    def _end_epoch(self, lr: float) -> None:
        """Evaluate, and report the epoch; nothing else waits for the device."""
        self._epochs += 1
        trainer, context, metric = self.trainer, self.context, self.context.task.metric
        event = EpochEnded(
            phase=context.name,
            epoch=self._epochs,
            loss=trainer.mean_loss(self.steps),
            value=measure(trainer.module, context.data.validation, context.fabric, context.task),
            density=density_of(trainer.net.mask),
            lr=lr,
            seconds=self._seconds(),
            metric=metric.name,
            higher_is_better=metric.higher_is_better,
            strength=trainer.net.strength,
        )
        context.emit(event)
        if (skipped := trainer.skipped()) > min(_FEW, self.steps_per_epoch - 1):
            context.emit(
                Noted(
                    f"{number_of(skipped, 'step')} of epoch {self._epochs} skipped, with gradients "
                    "that are not finite in fp16; if that does not stop, lower the learning rate "
                    "or choose another precision"
                )
            )
