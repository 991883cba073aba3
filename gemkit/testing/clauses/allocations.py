"""The contract of allocations: the budget to the last weight, whatever the importance."""

from __future__ import annotations

from itertools import chain

import torch
from hypothesis import strategies as st

from gemkit.errors import FitError, ImportanceError
from gemkit.parts import Allocation
from gemkit.selection import Shares, keep_top
from gemkit.tensors import Tensors, budget, kept, total
from gemkit.testing.cases import Layers
from gemkit.testing.clause import RefusedError, clause, require
from gemkit.testing.strategies import densities, layers, variants
from gemkit.testing.watch import copied, no_global_randomness, unchanged

Allocated = tuple[Allocation, Layers, float]


def ranked(part: Allocation, device: torch.device) -> st.SearchStrategy[Allocated]:
    """Draw importance, full of ties at times, and a density."""
    return st.tuples(variants(part), layers(device=device), densities())


def unranked(part: Allocation, device: torch.device) -> st.SearchStrategy[Allocated]:
    """Draw importance that cannot be ranked, and a density."""
    odd = layers(("nan", "inf", "minus inf"), device)
    return st.tuples(variants(part), odd, densities())


def shared(part: Allocation, importance: Tensors, alive: Tensors, density: float) -> Shares:
    """Share the budget; layers that the allocation refuses in words are no case for it."""
    try:
        return part.keep(importance, alive, density)
    except FitError as error:
        raise RefusedError(str(error)) from error


def problem_of(shares: Shares, alive: Tensors, density: float) -> str | None:
    """Say what is wrong with shares, if anything is."""
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
            return f"{group} keeps {count} of {living} that are alive"
    return None


@clause(Allocation, ranked, examples=50, on_devices=True)
def shares_sum_to_the_budget(part: Allocation, case: Allocated) -> None:
    """`keep` puts every layer into one group; counts sum to the budget and fit what is alive."""
    part, drawn, density = case
    alive = drawn.masks()
    problem = problem_of(shared(part, drawn.values(), alive, density), alive, density)
    require(problem is None, str(problem))


@clause(Allocation, ranked)
def masks_may_be_of_any_type(part: Allocation, case: Allocated) -> None:
    """What is alive may be given as booleans or as zeros and ones."""
    part, drawn, density = case
    numbers = {name: mask.float() for name, mask in drawn.masks().items()}
    one = shared(part, drawn.values(), drawn.masks(), density)
    require(one == shared(part, drawn.values(), numbers, density), "the two differ")


@clause(Allocation, ranked)
def sharing_twice_gives_the_same(part: Allocation, case: Allocated) -> None:
    """`keep` is a plain function of its input: nothing drawn, nothing changed."""
    part, drawn, density = case
    importance, alive = drawn.values(), drawn.masks()
    named = [*importance.items(), *((f"alive {name}", mask) for name, mask in alive.items())]
    with no_global_randomness(), unchanged("its input", lambda: copied(named)):
        one = shared(part, importance, alive, density)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        other = shared(part, importance, alive, density)
    require(one == other, f"{one} became {other}")


@clause(Allocation, unranked)
def importance_that_cannot_be_ranked_is_no_surprise(part: Allocation, case: Allocated) -> None:
    """Given nan or infinity, `keep` raises ImportanceError or shares as ever; selecting refuses."""
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
