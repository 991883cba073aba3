"""Sanity checks: controls that tell what of a ticket matters, its weights, its mask or its layers.

Frankle et al., "Pruning Neural Networks at Initialization: Why Are We Missing the Mark?" (2021):
`shuffle` and `reinit`. Su et al., "Sanity-Checking Pruning Methods: Random Tickets can Win the
Jackpot" (2020): random tickets and `weight_shuffle`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gemkit.errors import CheckError
from gemkit.hookspecs import hookimpl
from gemkit.parts import Initializer, SanityCheck
from gemkit.selection import Shares, keep_top
from gemkit.tensors import Tensors

if TYPE_CHECKING:
    from gemkit.lab import Lab
    from gemkit.ticket import Ticket


# --- another mask, or other weights --------------------------------------------------------------


class Shuffle(SanityCheck):
    """The same weights under a mask shuffled within every layer: do the connections matter?

    Every layer keeps its count. A layer that keeps some but not all of its weights always gets
    another mask: a draw that changes nothing is drawn again.
    """

    name = "shuffle"

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Shuffle the mask."""
        rng = lab.rng(self.name)
        return replace(
            ticket, mask={name: permuted(mask, rng) for name, mask in ticket.mask.items()}
        )


class WeightShuffle(SanityCheck):
    """The same mask, the kept weights shuffled within every layer: does it matter which is where?

    With signed constants this moves signs about and nothing else.
    """

    name = "weight_shuffle"

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Shuffle what is kept; pruned weights stay where they are."""
        rng, weights = lab.rng(self.name), {}
        for name, mask in ticket.mask.items():
            weights[name] = ticket.state[name].clone()
            weights[name][mask] = permuted(weights[name][mask], rng)
        return lab.with_weights(ticket, weights)


class Reinit(SanityCheck):
    """The same mask over weights drawn anew as the search drew them: do these weights matter?

    They come from the recipe's own initializer, because another distribution would test that
    instead. `reinit:kaiming_normal` is what the code of Rare Gems does, whose tickets are found in
    signed constants. Biases and normalization layers stay as they are.
    """

    name = "reinit"
    argument = "distribution"

    distribution: str | None = Field(
        default=None, description="an initializer to draw from instead of the recipe's own"
    )

    def check_fit(self, lab: Lab) -> None:
        """Refuse an initializer that has nothing to draw."""
        init = self._initializer(lab)
        first, fresh = lab.first_weights(init), lab.fresh_weights(init)
        if all(torch.equal(first[name], fresh[name]) for name in first):
            raise CheckError(
                f"initializer '{init.name}' draws the same weights for every seed, as it does for "
                "a pretrained network; name another, as in reinit:kaiming_normal"
            )

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Draw all prunable weights anew."""
        return lab.with_weights(ticket, lab.fresh_weights(self._initializer(lab)))

    def _initializer(self, lab: Lab) -> Initializer:
        return lab.initializer(self.distribution) if self.distribution else lab.recipe.init


# --- random tickets ------------------------------------------------------------------------------


class RandomLike(SanityCheck):
    """A random ticket with as many weights in every layer: is it only about layer densities?

    Mask and weights are drawn anew; nothing else of the search is left.
    """

    name = "random_like"

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Draw a mask with the ticket's counts, and weights for it."""
        return _random_ticket(ticket, lab, self.name, _shares_of(ticket))


class RandomTicket(SanityCheck):
    """A random ticket whose layers share the ticket's count by a rule that sees no data.

    `random_ticket:NAME` takes any allocation.
    """

    name = "random_ticket"
    argument: ClassVar[str | None] = "allocation"

    allocation: str = Field(description="how layers share the count")

    def check_fit(self, lab: Lab) -> None:
        """Refuse an allocation that nobody registered, or that has no shares for this network.

        Asked at the density the search aims at. A ticket may turn out sparser, and then `control`
        finds out whether the allocation has shares for that.
        """
        weights = lab.first_weights(lab.recipe.init)
        everything = {name: torch.ones_like(weight) for name, weight in weights.items()}
        density = lab.recipe.density or lab.density
        lab.allocation(self.allocation).keep(weights, everything, density)

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Draw a mask with the allocation's counts, and weights for it."""
        everything = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
        chance = _chance(everything, lab.rng(f"{self.name} shares"))
        shares = lab.allocation(self.allocation).keep(chance, everything, ticket.density)
        return _random_ticket(ticket, lab, self.name, shares)


class NamedRandomTicket(SanityCheck):
    """A random ticket that people know by a name of its own: `random_ticket` with this rule."""

    rule: ClassVar[str]

    def check_fit(self, lab: Lab) -> None:
        """Refuse what `random_ticket` refuses."""
        RandomTicket(allocation=self.rule).check_fit(lab)

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Draw what `random_ticket` draws."""
        return RandomTicket(allocation=self.rule).control(ticket, lab)


class UniformRandom(NamedRandomTicket):
    """A random ticket with the same density in every layer: random_ticket:uniform."""

    name = "uniform_random"
    rule = "uniform"


class ErkRandom(NamedRandomTicket):
    """A random ticket with Erdős–Rényi densities, more in small and narrow layers."""

    name = "erk"
    rule = "erk"


class SmartRatioRandom(NamedRandomTicket):
    """A random ticket with the densities of Smart Ratio: fewer towards the output."""

    name = "smart_ratio"
    rule = "smart_ratio"


# --- drawing -------------------------------------------------------------------------------------


def permuted(values: Tensor, rng: torch.Generator) -> Tensor:
    """Shuffle a tensor's entries; the result differs from it unless all its entries are equal."""
    flat = values.flatten()
    fixed = bool((flat == flat[:1]).all())
    while True:
        drawn = flat[torch.randperm(len(flat), generator=rng)]
        if fixed or not torch.equal(drawn, flat):
            return drawn.view_as(values)


def _chance(like: Tensors, rng: torch.Generator) -> Tensors:
    return {name: torch.rand(mask.shape, generator=rng) for name, mask in like.items()}


def _shares_of(ticket: Ticket) -> Shares:
    return {(layer.name,): layer.kept for layer in ticket.layers}


def _random_ticket(ticket: Ticket, lab: Lab, purpose: str, shares: Shares) -> Ticket:
    """Draw a mask with these counts, and all weights anew."""
    everything = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
    mask = keep_top(_chance(everything, lab.rng(purpose)), everything, shares)
    fresh = lab.fresh_weights(lab.recipe.init)
    return lab.with_weights(replace(ticket, mask=mask), fresh)


@hookimpl
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Register the checks."""
    return [
        Shuffle,
        Reinit,
        RandomLike,
        RandomTicket,
        UniformRandom,
        ErkRandom,
        SmartRatioRandom,
        WeightShuffle,
    ]
