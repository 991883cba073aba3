"""The kind of part that measures something about a ticket."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING

from gemkit.core.errors import CheckError, some
from gemkit.parts.part import Part
from gemkit.parts.recipe import PART_NAME

if TYPE_CHECKING:  # both import what is slow to load
    from gemkit.sanity.context import CheckContext
    from gemkit.tickets.ticket import Ticket

LARGEST = 1e100
"""The largest number that counts as finite: the mean of larger ones might not be."""


class Measurement(Part):
    """Named numbers about a ticket, for every seed; they are reported, not judged.

    Draw all random numbers from `context.rng`, so that a seed gives the same numbers again.
    """

    def check_fit(self, context: CheckContext) -> None:
        """Raise an error if this cannot be measured; called before anything is computed."""

    @abstractmethod
    def measure(self, ticket: Ticket, context: CheckContext) -> dict[str, float]:
        """Return finite numbers by name; names have small letters, digits and underscores.

        `context` searches, builds, draws and fine-tunes as for any control of the ticket.
        """


def measured_numbers(
    measurement: Measurement, ticket: Ticket, context: CheckContext
) -> dict[str, float]:
    """Measure a ticket, and refuse anything but finite numbers with plain names."""
    numbers: object = measurement.measure(ticket, context)
    if not isinstance(numbers, dict) or not numbers:
        returned = "no numbers" if numbers == {} else f"something of type {type(numbers).__name__}"
        raise CheckError(f"it must return a dict of named numbers, not {returned}")
    unnamed = [str(name) for name in numbers if not _is_plain(name)]
    if unnamed:
        raise CheckError(
            f"it must name its numbers with small letters, digits and _, a letter first, not "
            f"{some(unnamed)}"
        )
    odd = [f"{name} = {value!r}" for name, value in numbers.items() if not _is_finite(value)]
    if odd:
        raise CheckError(f"it must return finite numbers (int or float), not {some(odd)}")
    return {name: float(value) for name, value in numbers.items()}


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(PART_NAME, name) is not None


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LARGEST <= value <= LARGEST
