"""Sanity checks that search again: with the order turned around, or on spoilt data.

Frankle et al., "Pruning Neural Networks at Initialization: Why Are We Missing the Mark?" (2021):
`invert`. Su et al., "Sanity-Checking Pruning Methods: Random Tickets can Win the Jackpot" (2020):
the three that spoil the data.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gemkit.data.source import Data, Source, TensorSource
from gemkit.data.splits import split_stratified
from gemkit.errors import CheckError
from gemkit.hookspecs import hookimpl
from gemkit.parts import SanityCheck
from gemkit.recipe import Recipe
from gemkit.tensors import budget

if TYPE_CHECKING:
    from gemkit.lab import Lab
    from gemkit.ticket import Ticket

_MOST_VALUES = 2**22
"""Values that are shuffled at a time."""


class Invert(SanityCheck):
    """Search again, but keep the least important weights: does the order matter?

    Every freeze ranks −importance; what rounding does in between stays as it is. The search aims at
    the density the ticket has. Inverting an inverted ticket restores the order.
    """

    name = "invert"

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Search with the order turned around."""
        recipe = lab.recipe.model_copy(update={"invert": not lab.recipe.invert})
        return search_for(ticket, recipe, lab)


class CorruptedData(SanityCheck):
    """Search again on spoilt training data; measuring and fine-tuning use the true ones.

    The control keeps as many weights as the ticket. Rounding might leave it fewer, which would be
    another comparison; so what is alive is the control, at the density the ticket has.
    """

    @abstractmethod
    def corrupt(self, train: TensorSource, classes: int, rng: torch.Generator) -> TensorSource:
        """Return the spoilt training data."""

    def check_fit(self, lab: Lab) -> None:
        """Refuse data that are not in memory."""
        _in_memory(lab.data.train)

    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Search on what `corrupt` returns."""
        train = _in_memory(lab.data.train)
        spoilt = self.corrupt(train, lab.data.classes, lab.rng(self.name))
        recipe = lab.recipe
        if not recipe.rounding.spends_budget:
            recipe = recipe.model_copy(update={"finalize": "alive"})
        return search_for(ticket, recipe, lab, data=replace(lab.data, train=spoilt))


def search_for(ticket: Ticket, recipe: Recipe, lab: Lab, *, data: Data | None = None) -> Ticket:
    """Search for as many weights as the ticket keeps, also where the pruner insists on others.

    The search's own target stays where it says the same: a density that differs in its sixth digit
    would lead an iterative search along other freezes.
    """
    if budget(ticket.prunable, lab.density) == ticket.kept:
        return lab.search(recipe, data=data)
    if recipe.density is not None:
        recipe = recipe.model_copy(update={"density": ticket.density})
    return lab.search(recipe, data=data, density=ticket.density)


class RandomLabels(CorruptedData):
    """Search with labels drawn by chance: does the search learn anything about the task?"""

    name = "random_labels"

    def corrupt(self, train: TensorSource, classes: int, rng: torch.Generator) -> TensorSource:
        """Draw every label from all classes."""
        labels = torch.randint(0, classes, train.labels.shape, generator=rng)
        return replace(train, labels=labels.to(train.labels.device))


class ShuffledPixels(CorruptedData):
    """Search on images whose values are shuffled, each in its own way: does it see the images?"""

    name = "shuffled_pixels"

    def corrupt(self, train: TensorSource, classes: int, rng: torch.Generator) -> TensorSource:
        """Shuffle all values of every image, channels included, before any augmentation."""
        flat = train.images.flatten(1)
        shuffled = torch.empty_like(flat)
        rows = max(1, _MOST_VALUES // max(1, flat.shape[1]))
        # In pieces: an order takes many times the memory of the bytes it is for.
        for start in range(0, len(flat), rows):
            piece = flat[start : start + rows]
            order = torch.rand(piece.shape, generator=rng).argsort(1).to(flat.device)
            shuffled[start : start + rows] = piece.gather(1, order)
        return replace(train, images=shuffled.view_as(train.images))


class HalfData(CorruptedData):
    """Search on half of the training data, of every class: how much data does it need?"""

    name = "half_data"

    def corrupt(self, train: TensorSource, classes: int, rng: torch.Generator) -> TensorSource:
        """Keep one half, drawn by chance."""
        seed = int(torch.randint(0, 2**31, (), generator=rng))
        chosen = split_stratified(train.labels, (1, 1), seed)[0].to(train.labels.device)
        return replace(train, images=train.images[chosen], labels=train.labels[chosen])


def _in_memory(train: Source) -> TensorSource:
    if not isinstance(train, TensorSource):
        raise CheckError(
            f"it changes images and labels in memory, and {type(train).__name__} holds none; "
            "image files are held there with -o dataset.memory=always"
        )
    return train


@hookimpl
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Register the checks."""
    return [Invert, RandomLabels, ShuffledPixels, HalfData]
