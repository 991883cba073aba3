"""The contract of allocations: exact budgets for any importance."""

from __future__ import annotations

from itertools import chain

import torch
from hypothesis import strategies as st

from gemkit.core.errors import FitError, ImportanceError
from gemkit.core.selection import Shares, keep_top
from gemkit.core.tensors import Tensors, budget, kept, total
from gemkit.parts.allocation import Allocation
from gemkit.testing.cases import Layers
from gemkit.testing.clause import RefusedError, clause, require
from gemkit.testing.strategies import densities, layers, variants
from gemkit.testing.watch import copied, no_global_randomness, unchanged

Allocated = tuple[Allocation, Layers, float]


def ranked(part: Allocation, device: torch.device) -> st.SearchStrategy[Allocated]:
    """Draw importance, sometimes with many ties, and a density."""
    return st.tuples(variants(part), layers(device=device), densities())


def non_finite(part: Allocation, device: torch.device) -> st.SearchStrategy[Allocated]:
    """Draw importance that is not finite, and a density."""
    odd = layers(("nan", "inf", "minus inf"), device)
    return st.tuples(variants(part), odd, densities())


def shared(part: Allocation, importance: Tensors, alive: Tensors, density: float) -> Shares:
    """Share the budget; a case that the allocation refuses with a FitError is rejected."""
    try:
        return part.keep(importance, alive, density)
    except FitError as error:
        raise RefusedError(str(error)) from error


def problem_of(shares: Shares, alive: Tensors, density: float) -> str | None:
    """Say what is wrong with shares, or return None."""
    named = sorted(chain.from_iterable(shares))
    if named != sorted(alive):
        return f"the layers are {list(alive)}, and the groups {list(shares)}"
    if not all(type(count) is int for count in shares.values()):
        return f"the counts are {list(shares.values())}, not all of them whole numbers"
    goal = min(budget(total(alive), density), kept(alive))
    if sum(shares.values()) != goal:
        return f"the shares sum to {sum(shares.values())}, and the budget is {goal}"
    for group, count in shares.items():
        living = kept({name: alive[name] for name in group}) if group else 0
        if not 0 <= count <= living:
            return f"{group} keeps {count} of {living} alive weights"
    return None


@clause(Allocation, ranked, examples=50, on_devices=True)
def shares_sum_to_the_budget(part: Allocation, case: Allocated) -> None:
    """`keep` puts every layer into one group; counts sum to the budget and are feasible."""
    part, drawn, density = case
    alive = drawn.masks()
    problem = problem_of(shared(part, drawn.values(), alive, density), alive, density)
    require(problem is None, str(problem))


@clause(Allocation, ranked)
def masks_may_be_of_any_type(part: Allocation, case: Allocated) -> None:
    """`alive` may be booleans, or zeros and ones of any type."""
    part, drawn, density = case
    numbers = {name: mask.float() for name, mask in drawn.masks().items()}
    one = shared(part, drawn.values(), drawn.masks(), density)
    require(one == shared(part, drawn.values(), numbers, density), "the two differ")


@clause(Allocation, ranked)
def keep_is_a_pure_function(part: Allocation, case: Allocated) -> None:
    """`keep` depends only on its input, draws no random numbers and changes nothing."""
    part, drawn, density = case
    importance, alive = drawn.values(), drawn.masks()
    named = [*importance.items(), *((f"alive {name}", mask) for name, mask in alive.items())]
    with no_global_randomness(), unchanged("its input", lambda: copied(named)):
        one = shared(part, importance, alive, density)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        other = shared(part, importance, alive, density)
    require(one == other, f"{one} became {other}")


@clause(Allocation, non_finite)
def non_finite_importance_is_not_ranked(part: Allocation, case: Allocated) -> None:
    """Given nan or infinity, `keep` raises ImportanceError, or returns valid shares."""
    part, drawn, density = case
    importance, alive = drawn.values(), drawn.masks()
    try:
        shares = shared(part, importance, alive, density)
        problem = problem_of(shares, alive, density)
        require(problem is None, str(problem))
        keep_top(importance, alive, shares)
    except ImportanceError:
        return
    odd = any(not importance[name][alive[name]].isfinite().all() for name in alive)
    require(not odd, "weights were selected by nan or infinity")
