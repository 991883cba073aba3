"""The contract of sanity checks: another ticket for the same network, decided by a seed."""

from __future__ import annotations

from typing import NamedTuple, get_args

import torch
from hypothesis import strategies as st

from gemkit.compaction.compact_network import difference
from gemkit.compaction.tracing import example_inputs
from gemkit.core.errors import GemkitError
from gemkit.sanity.check import Expected, SanityCheck
from gemkit.sanity.context import CheckContext
from gemkit.sanity.measurement import Measurement
from gemkit.testing.clause import NotTriedError, clause, require
from gemkit.testing.clauses.searching import DENSITY
from gemkit.testing.fields import own_parts
from gemkit.testing.tiny import CPU, SHAPE, fresh_net, tiny_data
from gemkit.testing.watch import at_global_seed, no_global_randomness, same_everywhere
from gemkit.tickets.ticket import Ticket
from gemkit.training.plan import Plan

PRUNERS = ("snip", "gem_miner")


class Checked(NamedTuple):
    """A ticket to check, and the search that found it."""

    ticket: Ticket
    context: CheckContext


def any_seed(part: SanityCheck | Measurement, device: torch.device) -> st.SearchStrategy[int]:
    """Draw the seed of the search."""
    return st.integers(0, 1000)


def found(part: SanityCheck | Measurement, seed: int) -> Checked:
    """Find a ticket with the first pruner that suits the part."""
    reason = ""
    for pruner in PRUNERS:
        context = CheckContext(
            recipe=own_parts().recipe(pruner),
            density=DENSITY,
            plan=Plan(epochs=4, batch_size=16, lr=0.1),
            data=tiny_data(),
            build=fresh_net,
            registry=own_parts(),
            seed=seed,
            runtime=CPU,
            finetune_plan=Plan(epochs=2, batch_size=16, lr=0.1),
        )
        try:
            part.check_fit(context)
        except GemkitError as error:
            reason = str(error)
            continue
        return Checked(context.search(), context)
    raise NotTriedError(f"it suits none of the pruners it was tried with: {reason}")


@clause(SanityCheck, any_seed, examples=3)
def the_control_keeps_as_many_weights(part: SanityCheck, case: int) -> None:
    """`control` returns a ticket for the same network that keeps as many weights."""
    ticket, context = found(part, case)
    made = part.control(ticket, context)
    require(isinstance(made, Ticket), f"it returned {type(made).__name__}")
    require(
        {name: mask.shape for name, mask in made.mask.items()}
        == {name: mask.shape for name, mask in ticket.mask.items()},
        "the control is for another network",
    )
    require(made.kept == ticket.kept, f"it keeps {made.kept}, and the ticket {ticket.kept}")


@clause(SanityCheck, any_seed, examples=3)
def the_control_is_another_ticket(part: SanityCheck, case: int) -> None:
    """The control has another mask or other weights, and the ticket is unchanged."""
    ticket, context = found(part, case)
    before = ticket.digest()
    made = part.control(ticket, context)
    require(ticket.digest() == before, "the ticket changed")
    differs = any(
        not torch.equal(one, other)
        for own, theirs in ((ticket.mask, made.mask), (ticket.state, made.state))
        for one, other in zip(own.values(), theirs.values(), strict=True)
    )
    require(differs, "the two are the same")


@clause(SanityCheck, any_seed, examples=3)
def it_says_what_to_expect(part: SanityCheck, case: int) -> None:
    """`expects` is "drop", or "same" for a control that computes what the ticket computes."""
    require(part.expects in get_args(Expected), f"it is {part.expects!r}")
    if part.expects == "drop":
        return
    ticket, context = found(part, case)
    control = part.control(ticket, context)
    one, other = (subject.apply(context.network()) for subject in (ticket, control))
    error = difference(one, other, example_inputs(one, SHAPE, 4), at_least=1.0)
    require(error < 1e-9, f"outputs differ by {error:.2g} of the largest")


@clause(SanityCheck, any_seed, examples=3)
def the_same_seed_makes_the_same_control(part: SanityCheck, case: int) -> None:
    """The control depends only on the ticket and `context`, which draws from its seed."""
    ticket, context = found(part, case)
    with no_global_randomness():
        part.control(ticket, context)
    one, other = (at_global_seed(seed, lambda: part.control(ticket, context)) for seed in (1, 2))
    require(same_everywhere(one.mask, other.mask), "two controls differ in their masks")
    require(one.digest() == other.digest(), "two controls differ in their weights or facts")
