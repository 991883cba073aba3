"""The contract of freeze schedules: densities fall, and end at the target."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import strategies as st

from gemkit.core.errors import FitError
from gemkit.parts.schedule import Freeze, FreezeSchedule
from gemkit.testing.clause import RefusedError, clause, require
from gemkit.testing.strategies import densities, variants

STEPS = 7
Timed = tuple[FreezeSchedule, float, int]


def lengths(part: FreezeSchedule, device: torch.device) -> st.SearchStrategy[Timed]:
    """Draw a target density and a number of epochs."""
    epochs = st.sampled_from([30, 0, 1]) | st.integers(0, 400)
    return st.tuples(variants(part), densities(), epochs)


def freezes_of(case: Timed) -> list[Freeze]:
    """List the freezes; a case that the schedule refuses with a FitError is rejected."""
    part, target, epochs = case
    try:
        return part.freezes(target, epochs, STEPS)
    except FitError as error:
        raise RefusedError(str(error)) from error


@clause(FreezeSchedule)
def it_freezes_in_30_epochs(part: FreezeSchedule, case: None) -> None:
    """With 30 epochs there is at least one freeze."""
    require(part.freezes(0.05, 30, STEPS), "there is none")


@clause(FreezeSchedule, lengths, examples=60)
def steps_ascend_within_the_search(part: FreezeSchedule, case: Timed) -> None:
    """Freezes are listed as `Freeze(step, density)`, steps ascending from 0 to the last step."""
    freezes = freezes_of(case)
    for freeze in freezes:
        require(isinstance(freeze, Freeze), f"it lists {freeze!r}")
        require(type(freeze.step) is int, f"step {freeze.step!r} is not an int")
    steps = [freeze.step for freeze in freezes]
    last = case[2] * STEPS
    require(steps == sorted(steps), f"the steps are {steps}")
    require(all(0 <= step <= last for step in steps), f"the steps are {steps}, the last is {last}")


@clause(FreezeSchedule, lengths, examples=60)
def densities_never_rise_and_end_at_the_target(part: FreezeSchedule, case: Timed) -> None:
    """Densities lie in (0, 1], and the last one is the target exactly.

    They never rise, except to a freeze with `regrow`.
    """
    freezes = freezes_of(case)
    kept = [freeze.density for freeze in freezes]
    rises = [
        later.density
        for earlier, later in pairwise(freezes)
        if later.density > earlier.density and not later.regrow
    ]
    require(not rises, f"the densities {kept} rise to {rises[:1]}, where nothing regrows")
    require(all(0 < density <= 1 for density in kept), f"the densities are {kept}")
    require(not kept or kept[-1] == case[1], f"the densities {kept} do not end at the target")


@clause(FreezeSchedule, lengths)
def what_regrows_is_a_fraction(part: FreezeSchedule, case: Timed) -> None:
    """`regrow`, the share of living weights that is dropped and grown again, lies in [0, 1]."""
    shares = [freeze.regrow for freeze in freezes_of(case)]
    require(all(0 <= share <= 1 for share in shares), f"it is {shares}")


@clause(FreezeSchedule, lengths)
def a_schedule_that_does_not_train_freezes_before_the_first_step(
    part: FreezeSchedule, case: Timed
) -> None:
    """If `trains` is False, every freeze is at step 0."""
    steps = {freeze.step for freeze in freezes_of(case)}
    require(case[0].trains or steps <= {0}, f"the steps are {sorted(steps)}")


@clause(FreezeSchedule, lengths)
def freezes_is_a_pure_function(part: FreezeSchedule, case: Timed) -> None:
    """`freezes` depends only on its input."""
    require(freezes_of(case) == freezes_of(case), "the two lists differ")
