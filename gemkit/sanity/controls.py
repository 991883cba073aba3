"""Controls that change a ticket: its mask, its weights, or both.

Frankle et al., "Pruning Neural Networks at Initialization: Why Are We Missing the Mark?" (2021):
`shuffle` and `reinit`. Zhou et al., "Deconstructing Lottery Tickets: Zeros, Signs, and the
Supermask" (2019): `reinit_keep_signs`. Su et al., "Sanity-Checking Pruning Methods: Random Tickets
can Win the Jackpot" (2020): random tickets and `weight_shuffle`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.errors import CheckError
from gemkit.core.selection import Shares
from gemkit.core.tensors import Tensors
from gemkit.parts.structure import Structure
from gemkit.plugins.markers import hookimpl
from gemkit.sanity.check import SanityCheck

if TYPE_CHECKING:  # both import what is slow to load
    from gemkit.sanity.context import CheckContext
    from gemkit.tickets.ticket import Ticket

# --- another mask or other weights ---------------------------------------------------------------


class Shuffle(SanityCheck):
    """The same weights under a mask shuffled within every layer: do the connections matter?

    Every layer keeps its count, and the structure of the recipe: whole filters change places, and
    weights move within their row or block. A layer that keeps some but not all of its weights
    always gets another mask: a shuffle that changes nothing is repeated.
    """

    name = "shuffle"

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Shuffle the mask."""
        rng = context.rng(self.name)
        return replace(
            ticket,
            mask={
                name: shuffled(mask, context.recipe.structure, rng)
                for name, mask in ticket.mask.items()
            },
        )


class WeightShuffle(SanityCheck):
    """The same mask, the kept weights shuffled within every layer: do their positions matter?

    With signed constants this moves signs and nothing else.
    """

    name = "weight_shuffle"

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Shuffle the kept weights; pruned weights stay in place."""
        rng, weights = context.rng(self.name), {}
        for name, mask in ticket.mask.items():
            weights[name] = ticket.state[name].clone()
            weights[name][mask] = permuted(weights[name][mask], rng)
        return context.with_weights(ticket, weights)


class Reinit(SanityCheck):
    """The same mask over newly drawn weights: do the original weights matter?

    The weights come from the recipe's own initializer, because another distribution would be a
    second change. `reinit:kaiming_normal` is what the code of Rare Gems does, whose tickets are
    found in signed constants. Biases and normalization layers keep their values.
    """

    name = "reinit"
    argument = "distribution"

    distribution: str | None = Field(
        default=None, description="an initializer to draw from instead of the recipe's own"
    )

    def check_fit(self, context: CheckContext) -> None:
        """Refuse an initializer that draws nothing."""
        init = context.initializer(self.distribution)
        first, fresh = context.first_weights(init), context.fresh_weights(init)
        if all(torch.equal(first[name], fresh[name]) for name in first):
            raise CheckError(
                f"initializer '{init.name}' draws the same weights for every seed, as it does for "
                "a pretrained network; name another, as in reinit:kaiming_normal"
            )

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Draw all prunable weights again."""
        fresh = context.fresh_weights(context.initializer(self.distribution))
        return context.with_weights(ticket, fresh)


class ReinitKeepSigns(SanityCheck):
    """The same mask and signs over newly drawn magnitudes: do the signs alone matter?

    Magnitudes come from the recipe's own initializer, as for `reinit`; a weight of zero gets the
    sign +. A ticket that fails this check and passes `reinit` needs its signs, not its weights.
    """

    name = "reinit_keep_signs"
    argument = "distribution"

    distribution: str | None = Field(
        default=None, description="an initializer to draw from instead of the recipe's own"
    )

    def check_fit(self, context: CheckContext) -> None:
        """Refuse an initializer that always draws the same magnitudes."""
        init = context.initializer(self.distribution)
        first, fresh = context.first_weights(init), context.fresh_weights(init)
        if all(torch.equal(first[name].abs(), fresh[name].abs()) for name in first):
            raise CheckError(
                f"initializer '{init.name}' draws the same magnitudes for every seed, so nothing "
                f"would change; name another, as in {self.name}:kaiming_normal"
            )

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Draw all prunable weights again, and give them the ticket's signs."""
        fresh = context.fresh_weights(context.initializer(self.distribution))
        weights = {
            name: torch.where(ticket.state[name] < 0, -weight.abs(), weight.abs())
            for name, weight in fresh.items()
        }
        return context.with_weights(ticket, weights)


# --- random tickets ------------------------------------------------------------------------------


class RandomLike(SanityCheck):
    """A random ticket with the same count in every layer: do only layer densities matter?

    Mask and weights are both drawn again.
    """

    name = "random_like"

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Draw a mask with the ticket's counts, and new weights."""
        return _random_ticket(ticket, context, self.name, _shares_of(ticket))


class RandomTicket(SanityCheck):
    """A random ticket of the same density, with layer counts from an allocation.

    `random_ticket:NAME` takes any allocation.
    """

    name = "random_ticket"
    argument: ClassVar[str | None] = "allocation"

    allocation: str = Field(description="the rule for layer counts")

    def check_fit(self, context: CheckContext) -> None:
        """Refuse an unknown allocation, or one that cannot allocate the target density.

        The ticket may be sparser than the target; then `control` raises the error.
        """
        weights = context.first_weights(context.recipe.init)
        everything = {name: torch.ones_like(weight) for name, weight in weights.items()}
        density = context.recipe.density or context.density
        context.allocation(self.allocation).keep(weights, everything, density)

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Draw a mask with the allocation's counts, and new weights."""
        everything = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
        chance = _chance(everything, context.rng(f"{self.name} shares"))
        # A structure does not fill its shares: of the target, not of what it kept of them.
        plain = context.recipe.structure.plain
        density = ticket.density if plain else context.recipe.density or context.density
        shares = context.allocation(self.allocation).keep(chance, everything, density)
        return _random_ticket(ticket, context, self.name, shares)


class NamedRandomTicket(SanityCheck):
    """A random ticket with a common name: `random_ticket` with a fixed rule."""

    rule: ClassVar[str]

    def check_fit(self, context: CheckContext) -> None:
        """Check the allocation as `random_ticket` does."""
        RandomTicket(allocation=self.rule).check_fit(context)

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Draw the same ticket as `random_ticket`."""
        return RandomTicket(allocation=self.rule).control(ticket, context)


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
    """Shuffle the entries of a tensor until it differs, unless all entries are equal."""
    flat = values.flatten()
    fixed = bool((flat == flat[:1]).all())
    while True:
        drawn = flat[torch.randperm(len(flat), generator=rng)]
        if fixed or not torch.equal(drawn, flat):
            return drawn.view_as(values)


def shuffled(mask: Tensor, structure: Structure, rng: torch.Generator) -> Tensor:
    """Shuffle the units of a mask within each pool; the result differs wherever it can."""
    folded = structure.fold(mask)
    pools, units, _ = folded.shape
    fixed = bool((folded == folded[:, :1]).all())
    while True:
        # One pool is shuffled as it always was, so that old controls can be repeated.
        order = torch.randperm(units, generator=rng)[None]
        if pools > 1:
            order = torch.rand(pools, units, generator=rng).argsort(1)
        drawn = folded.gather(1, order[..., None].expand_as(folded))
        if fixed or not torch.equal(drawn, folded):
            break
    places = structure.fold(torch.arange(mask.numel()).view(mask.shape))
    return (
        torch.empty_like(mask.flatten())
        .scatter_(0, places.flatten(), drawn.flatten())
        .view(mask.shape)
    )


def _chance(like: Tensors, rng: torch.Generator) -> Tensors:
    return {name: torch.rand(mask.shape, generator=rng) for name, mask in like.items()}


def _shares_of(ticket: Ticket) -> Shares:
    return {(layer.name,): layer.kept for layer in ticket.layers}


def _random_ticket(ticket: Ticket, context: CheckContext, purpose: str, shares: Shares) -> Ticket:
    """Draw a mask with these counts, and new weights."""
    everything = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
    chance = _chance(everything, context.rng(purpose))
    mask = context.recipe.structure.select(chance, everything, shares, ticket.density)
    fresh = context.fresh_weights(context.recipe.init)
    return context.with_weights(replace(ticket, mask=mask), fresh)


@hookimpl
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Register the checks."""
    return [
        Shuffle,
        Reinit,
        ReinitKeepSigns,
        RandomLike,
        RandomTicket,
        UniformRandom,
        ErkRandom,
        SmartRatioRandom,
        WeightShuffle,
    ]
