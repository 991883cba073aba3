"""The contract of sanity checks: another ticket for the same network, which a seed decides."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st

from gemkit.errors import GemkitError
from gemkit.lab import Lab
from gemkit.parts import SanityCheck
from gemkit.plan import Plan
from gemkit.testing.clause import NotTriedError, clause, require
from gemkit.testing.clauses.searching import DENSITY, own_parts
from gemkit.testing.tiny import CPU, fresh_net, tiny_data
from gemkit.testing.watch import at_global_seed, no_global_randomness, same_everywhere
from gemkit.ticket import Ticket

PRUNERS = ("snip", "gem_miner")


class Checked(NamedTuple):
    """A ticket to check, and the search that found it."""

    ticket: Ticket
    lab: Lab


def any_seed(part: SanityCheck, device: torch.device) -> st.SearchStrategy[int]:
    """Draw the seed of the search and of the control."""
    return st.integers(0, 1000)


def found(part: SanityCheck, seed: int) -> Checked:
    """Find a ticket with the first pruner to which the check can be put."""
    reason = ""
    for pruner in PRUNERS:
        lab = Lab(
            recipe=own_parts().recipe(pruner),
            density=DENSITY,
            plan=Plan(epochs=4, batch_size=16, lr=0.1),
            data=tiny_data(),
            build=fresh_net,
            registry=own_parts(),
            seed=seed,
            runtime=CPU,
        )
        try:
            part.check_fit(lab)
        except GemkitError as error:
            reason = str(error)
            continue
        return Checked(lab.search(), lab)
    raise NotTriedError(f"it suits none of the pruners it was tried with: {reason}")


@clause(SanityCheck, any_seed, examples=3)
def the_control_keeps_as_many_weights(part: SanityCheck, case: int) -> None:
    """`control` returns a ticket for the same network that keeps just as many weights."""
    ticket, lab = found(part, case)
    made = part.control(ticket, lab)
    require(isinstance(made, Ticket), f"it returned {type(made).__name__}")
    require(
        {name: mask.shape for name, mask in made.mask.items()}
        == {name: mask.shape for name, mask in ticket.mask.items()},
        "the control is for another network",
    )
    require(made.kept == ticket.kept, f"it keeps {made.kept}, and the ticket {ticket.kept}")


@clause(SanityCheck, any_seed, examples=3)
def the_control_is_another_ticket(part: SanityCheck, case: int) -> None:
    """The control differs from the ticket in its mask or its weights, and the ticket stays."""
    ticket, lab = found(part, case)
    before = ticket.digest()
    made = part.control(ticket, lab)
    require(ticket.digest() == before, "the ticket changed")
    differs = any(
        not torch.equal(one, other)
        for own, theirs in ((ticket.mask, made.mask), (ticket.state, made.state))
        for one, other in zip(own.values(), theirs.values(), strict=True)
    )
    require(differs, "the two are the same")


@clause(SanityCheck, any_seed, examples=3)
def the_same_seed_makes_the_same_control(part: SanityCheck, case: int) -> None:
    """The control depends on the ticket and `lab` alone, which draws from its seed."""
    ticket, lab = found(part, case)
    with no_global_randomness():
        part.control(ticket, lab)
    one, other = (at_global_seed(seed, lambda: part.control(ticket, lab)) for seed in (1, 2))
    require(same_everywhere(one.mask, other.mask), "two controls differ in their masks")
    require(one.digest() == other.digest(), "two controls differ in their weights or facts")
