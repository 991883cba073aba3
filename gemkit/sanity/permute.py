"""`permute`: a positive control, which should be as good as the ticket."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from gemkit.core.errors import CheckError
from gemkit.plugins.markers import hookimpl
from gemkit.sanity.check import Expected, SanityCheck
from gemkit.sanity.controls import permuted

if TYPE_CHECKING:  # both import what is slow to load
    from gemkit.sanity.context import CheckContext
    from gemkit.tickets.ticket import Ticket

_TOLERANCE = 1e-9
"""By how much outputs in float64 may differ, in multiples of the largest, or of one."""


class Permute(SanityCheck):
    """The same network with its hidden units in another order: does the comparison itself work?

    Output channels of every layer are permuted together with the inputs of all layers that read
    them, in mask and weights alike, so the function is the same, and so is its training up to
    rounding. This is a positive control: it passes if it is as good as the ticket. If it fails,
    masks and weights are mixed up somewhere, or the seeds differ too much to trust the others.

    Channels are followed by tracing the forward pass. What is not understood keeps its order.
    """

    name = "permute"
    expects: ClassVar[Expected] = "same"

    def check_fit(self, context: CheckContext) -> None:
        """Refuse a network that cannot be traced, or that has no units to permute."""
        from gemkit.sanity.units import hidden_units

        hidden_units(context.network(), context.data.shape)

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Permute all units that can change places, each with others of its kind."""
        from gemkit.compaction.compact_network import difference
        from gemkit.compaction.tracing import example_inputs
        from gemkit.sanity.units import hidden_units, reordered

        model, rng = ticket.apply(context.network()), context.rng(self.name)
        parts, units = hidden_units(copy.deepcopy(model), context.data.shape)
        images: dict[int, int] = {}
        for own in units.classes:
            images |= dict(zip(own, permuted(torch.tensor(own), rng).tolist(), strict=True))
        orders = units.orders(images)
        control = replace(
            ticket,
            mask=reordered(ticket.mask, parts, orders),
            state=reordered(ticket.state, parts, orders),
        )
        other = control.apply(context.network())
        examples = example_inputs(model, context.data.shape, 2)
        error = difference(model, other, examples, at_least=1.0)
        if not error <= _TOLERANCE:
            raise CheckError(
                f"permuting the hidden units of {type(model).__name__} changes its outputs (by "
                f"{error:.1g}), so its forward pass does something with channels that tracing does "
                "not see; leave this check out"
            )
        return control


@hookimpl
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Register the check."""
    return [Permute]
