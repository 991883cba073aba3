"""One phase of a run, search or fine-tuning: its data, device and seed, and who is told."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property

from lightning_fabric import Fabric

from gemkit import events
from gemkit.data.fingerprint import Fingerprint, check_same
from gemkit.data.source import Data
from gemkit.errors import TrainingError
from gemkit.events import EpochEnded, Event, Noted, PhaseStarted, StepEnded
from gemkit.keeping import Keeper
from gemkit.plan import Plan, Runtime
from gemkit.stateful import State, Stateful, count_in
from gemkit.tensors import density_of
from gemkit.training import Trainer, accuracy, endless, make_fabric

Listener = Callable[[Event], None]


def agreed(data: Data, fabric: Fabric | None) -> Fingerprint:
    """Return the first process's fingerprint of the data, so that all come to one decision."""
    if fabric is None:
        return data.fingerprint
    first = fabric.broadcast(data.fingerprint if fabric.is_global_zero else None)
    assert first is not None
    return first


class Phase:
    """Where a network is trained, on which data, from which seed, and who is told."""

    def __init__(
        self,
        name: events.Phase,
        data: Data,
        seed: int,
        runtime: Runtime,
        observers: Sequence[Listener],
        fabric: Fabric | None,
        keeper: Keeper | None = None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.runtime = runtime
        self.fabric = fabric or make_fabric(runtime)
        self.data = data.to(self.fabric.device)
        self._loaded = data
        self.observers = observers
        self.keeper = keeper or Keeper()

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the data; all processes must ask for it together."""
        return agreed(self._loaded, self.fabric)

    def tell(self, event: Event) -> None:
        """Pass an event on to every observer."""
        for observer in self.observers:
            observer(event)

    def begin(self, **parts: Stateful) -> None:
        """Let the parts go on from where they were saved, if they were."""
        self.keeper.begin(self.name, self.fabric, parts)

    def steps_per_epoch(self, plan: Plan) -> int:
        """Count the optimizer steps of one epoch."""
        return self.data.train.steps(plan.batch_size)


class Training:
    """Trains a network against a clock that its owner may set back.

    The clock alone decides the learning rate and the batch of a step. `steps` counts every step
    ever taken, and never goes back.
    """

    def __init__(self, phase: Phase, trainer: Trainer, laps: Sequence[range]) -> None:
        self.phase = phase
        self.trainer = trainer
        if any(laps) and not trainer.net.trainable():
            raise TrainingError(
                f"every parameter of {type(trainer.net.model).__name__} is frozen "
                "(requires_grad=False), so there is nothing to train; unfreeze some, with "
                "requires_grad_(True)"
            )
        self.steps = 0
        self.steps_per_epoch = phase.steps_per_epoch(trainer.plan)
        self._epochs = 0
        self.set_clock(0)
        ends = (
            lap.stop // self.steps_per_epoch - lap.start // self.steps_per_epoch for lap in laps
        )
        phase.tell(PhaseStarted(phase.name, epochs=sum(ends), steps=sum(map(len, laps))))
        trainer.module.train()
        self._began = time.perf_counter()

    def set_clock(self, step: int) -> None:
        """Go on, from the next step, as a training does that has taken so many steps."""
        self.clock = step
        plan, phase = self.trainer.plan, self.phase
        self._batches = endless(
            phase.data.train, plan.batch_size, seed=phase.seed, fabric=phase.fabric, start=step
        )

    def until(self, step: int) -> None:
        """Train until the clock shows this step."""
        while self.clock < step:
            lr = self.trainer.plan.lr_at(self.clock, self.steps_per_epoch)
            self.clock += 1
            self.steps += 1
            if not self.trainer.step(next(self._batches), lr, self.steps):
                self.phase.tell(Noted(f"step {self.steps} was left out: its loss is not finite"))
            self.phase.tell(StepEnded(self.phase.name, self.steps))
            ends = self.clock % self.steps_per_epoch == 0
            if ends:
                self._end_epoch(lr)
            self.phase.keeper.look(epoch_ended=ends)

    def state(self) -> State:
        """Return how far training is, how long it took, and the fingerprint of its data."""
        return {
            "clock": self.clock,
            "steps": self.steps,
            "epochs": self._epochs,
            "seconds": self._seconds(),
            "data": self.phase.fingerprint.model_dump(),
        }

    def restore_(self, state: State) -> None:
        """Load a saved state; refuse it where it was reached on other data."""
        data = state.get("data")  # which older checkpoints do not hold
        check_same(
            None if data is None else Fingerprint.model_validate(data),
            self.phase.fingerprint,
            "the run began with",
            "resume it with those, or start in another folder",
        )
        self.set_clock(count_in(state, "clock"))
        self.steps, self._epochs = count_in(state, "steps"), count_in(state, "epochs")
        self._began = time.perf_counter() - float(state["seconds"])

    def _seconds(self) -> float:
        """Return how long the phase has been training, interruptions left out."""
        return time.perf_counter() - self._began

    def _end_epoch(self, lr: float) -> None:
        """Measure and tell how the epoch went: the only moment that waits for the device."""
        self._epochs += 1
        trainer, phase, data = self.trainer, self.phase, self.phase.data
        event = EpochEnded(
            phase=phase.name,
            epoch=self._epochs,
            loss=trainer.mean_loss(self.steps),
            accuracy=accuracy(trainer.module, data.validation, phase.fabric, data.classes),
            density=density_of(trainer.net.mask),
            lr=lr,
            seconds=self._seconds(),
        )
        phase.tell(event)
