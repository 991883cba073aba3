"""The contract of freeze schedules: they only fall, and end at the target."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.errors import FitError
from gemkit.parts import Freeze, FreezeSchedule
from gemkit.testing.clause import RefusedError, clause, require
from gemkit.testing.strategies import densities, variants

STEPS = 7
Timed = tuple[FreezeSchedule, float, int]


def lengths(part: FreezeSchedule, device: torch.device) -> st.SearchStrategy[Timed]:
    """Draw a target and how many epochs there are."""
    epochs = st.sampled_from([30, 0, 1]) | st.integers(0, 400)
    return st.tuples(variants(part), densities(), epochs)


def freezes_of(case: Timed) -> list[Freeze]:
    """List the freezes; a task that the schedule refuses in words is no case for it."""
    part, target, epochs = case
    try:
        return part.freezes(target, epochs, STEPS)
    except FitError as error:
        raise RefusedError(str(error)) from error


@clause(FreezeSchedule)
def it_suits_a_search_of_the_usual_length(part: FreezeSchedule, case: None) -> None:
    """With 30 epochs there is at least one freeze."""
    require(part.freezes(0.05, 30, STEPS), "there is none")


@clause(FreezeSchedule, lengths, examples=60)
def steps_ascend_within_the_search(part: FreezeSchedule, case: Timed) -> None:
    """Freezes are listed as `Freeze(step, density)`, steps ascending from 0 to the last step."""
    freezes = freezes_of(case)
    for freeze in freezes:
        require(isinstance(freeze, Freeze), f"it lists {freeze!r}")
        require(type(freeze.step) is int, f"step {freeze.step!r} is not a whole number")
    steps = [freeze.step for freeze in freezes]
    last = case[2] * STEPS
    require(steps == sorted(steps), f"the steps are {steps}")
    require(all(0 <= step <= last for step in steps), f"the steps are {steps}, the last is {last}")


@clause(FreezeSchedule, lengths, examples=60)
def densities_never_rise_and_end_at_the_target(part: FreezeSchedule, case: Timed) -> None:
    """Densities lie in (0, 1], never rise, and the last one is the target exactly."""
    kept = [freeze.density for freeze in freezes_of(case)]
    require(kept == sorted(kept, reverse=True), f"the densities are {kept}")
    require(all(0 < density <= 1 for density in kept), f"the densities are {kept}")
    require(not kept or kept[-1] == case[1], f"the densities {kept} do not end at the target")


@clause(FreezeSchedule, lengths)
def a_schedule_that_does_not_train_freezes_before_the_first_step(
    part: FreezeSchedule, case: Timed
) -> None:
    """Where `trains` is False every freeze comes at step 0."""
    steps = {freeze.step for freeze in freezes_of(case)}
    require(case[0].trains or steps <= {0}, f"the steps are {sorted(steps)}")


@clause(FreezeSchedule, lengths)
def asking_twice_gives_the_same_freezes(part: FreezeSchedule, case: Timed) -> None:
    """`freezes` is a plain function of its input."""
    require(freezes_of(case) == freezes_of(case), "the two lists differ")
