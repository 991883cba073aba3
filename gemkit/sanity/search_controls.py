"""Controls that repeat the search: with the ranking inverted, or on corrupted data.

Frankle et al., "Pruning Neural Networks at Initialization: Why Are We Missing the Mark?" (2021):
`invert`. Su et al., "Sanity-Checking Pruning Methods: Random Tickets can Win the Jackpot" (2020):
the three that corrupt the data.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gemkit.core.errors import CheckError
from gemkit.core.tensors import budget
from gemkit.data.source import Data, Source, TensorSource
from gemkit.data.splits import split_stratified, strata
from gemkit.parts.recipe import Recipe
from gemkit.plugins.markers import hookimpl
from gemkit.sanity.check import SanityCheck

if TYPE_CHECKING:  # both import what is slow to load
    from gemkit.sanity.context import CheckContext
    from gemkit.tickets.ticket import Ticket

_MOST_VALUES = 2**22
"""Pixel values to shuffle at a time."""


class Invert(SanityCheck):
    """Search again, but keep the least important weights: does the ranking matter?

    Every freeze ranks −importance; rounding in between is unchanged. The search targets the actual
    density of the ticket. Inverting an inverted ticket restores the ranking.
    """

    name = "invert"

    def check_fit(self, context: CheckContext) -> None:
        """Refuse a ticket whose search is not known."""
        context.require_search()

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Search with the ranking inverted."""
        recipe = context.recipe.model_copy(update={"invert": not context.recipe.invert})
        return search_for(ticket, recipe, context)


class CorruptedData(SanityCheck):
    """Search again on corrupted training data; fine-tuning and evaluation use the true data.

    The control is everything alive at the end of a search to the ticket's actual density. Rounding
    might keep fewer weights, and then the two could not be compared.
    """

    @abstractmethod
    def corrupt(
        self, train: TensorSource, classes: int | None, rng: torch.Generator
    ) -> TensorSource:
        """Return corrupted training data; `classes` is None where targets are no classes."""

    def check_fit(self, context: CheckContext) -> None:
        """Refuse data that is not in memory, and a ticket whose search is not known."""
        context.require_search()
        _in_memory(context.data.train)

    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Search on corrupted data."""
        train = _in_memory(context.data.train)
        classes = context.data.classes if context.task.has_classes(context.data) else None
        corrupted = self.corrupt(train, classes, context.rng(self.name))
        recipe = context.recipe
        if not recipe.rounding.spends_budget:
            recipe = recipe.model_copy(update={"finalize": "alive"})
        return search_for(ticket, recipe, context, data=replace(context.data, train=corrupted))


def search_for(
    ticket: Ticket, recipe: Recipe, context: CheckContext, *, data: Data | None = None
) -> Ticket:
    """Search for as many weights as the ticket keeps, even if the recipe fixes a density.

    The original target density is used if it gives the same count: one that differs in its sixth
    digit would lead an iterative search through other freezes.
    """
    if budget(ticket.prunable, context.density) == ticket.kept:
        return context.search(recipe, data=data)
    if recipe.density is not None:
        recipe = recipe.model_copy(update={"density": ticket.density})
    return context.search(recipe, data=data, density=ticket.density)


class RandomLabels(CorruptedData):
    """Search with random labels: does the search learn anything about the task?

    Where targets are no classes, every sample gets the targets of another one.
    """

    name = "random_labels"

    def corrupt(
        self, train: TensorSource, classes: int | None, rng: torch.Generator
    ) -> TensorSource:
        """Draw every label from all classes, but those that do not count, or shuffle targets."""
        if classes is None:
            order = torch.randperm(len(train), generator=rng).to(train.labels.device)
            return replace(train, labels=train.labels[order])
        labels = torch.randint(0, classes, train.labels.shape, generator=rng)
        labels = labels.to(train.labels.device).where(train.labels >= 0, train.labels)
        return replace(train, labels=labels)


class ShuffledPixels(CorruptedData):
    """Search on images with shuffled pixels, each in its own order: does it use the images?"""

    name = "shuffled_pixels"

    def corrupt(
        self, train: TensorSource, classes: int | None, rng: torch.Generator
    ) -> TensorSource:
        """Shuffle all values of every image, across channels, before any augmentation."""
        flat = train.images.flatten(1)
        shuffled = torch.empty_like(flat)
        rows = max(1, _MOST_VALUES // max(1, flat.shape[1]))
        # In chunks: the order takes many times the memory of the pixels.
        for start in range(0, len(flat), rows):
            chunk = flat[start : start + rows]
            order = torch.rand(chunk.shape, generator=rng).argsort(1).to(flat.device)
            shuffled[start : start + rows] = chunk.gather(1, order)
        return replace(train, images=shuffled.view_as(train.images))


class HalfData(CorruptedData):
    """Search on half of every class of the training data: how much data does it need?"""

    name = "half_data"

    def corrupt(
        self, train: TensorSource, classes: int | None, rng: torch.Generator
    ) -> TensorSource:
        """Draw one half of every class."""
        seed = int(torch.randint(0, 2**31, (), generator=rng))
        chosen = split_stratified(strata(train.labels), (1, 1), seed)[0].to(train.labels.device)
        return replace(train, images=train.images[chosen], labels=train.labels[chosen])


def _in_memory(train: Source) -> TensorSource:
    if not isinstance(train, TensorSource):
        raise CheckError(
            f"it changes images and labels in memory, and {type(train).__name__} holds none; "
            "load image files into memory with -o dataset.memory=always"
        )
    return train


@hookimpl
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Register the checks."""
    return [Invert, RandomLabels, ShuffledPixels, HalfData]
