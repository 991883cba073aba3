"""The kind of part that makes a control for a ticket."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from gemkit.parts.part import Part

if TYPE_CHECKING:  # both import what is slow to load
    from gemkit.sanity.context import CheckContext
    from gemkit.tickets.ticket import Ticket

Expected = Literal["drop", "same"]
"""How good a control should be after fine-tuning: worse than the ticket, or as good."""


class SanityCheck(Part):
    """A control: another ticket that a method with real insight should beat.

    A positive control `expects` to be the same: it computes what the ticket computes, and passes if
    it is as good. Draw all random numbers from `context.rng`, so that a seed gives the same control
    again.
    """

    expects: ClassVar[Expected] = "drop"

    def check_fit(self, context: CheckContext) -> None:
        """Raise an error if this control cannot be made; called before anything is computed."""

    @abstractmethod
    def control(self, ticket: Ticket, context: CheckContext) -> Ticket:
        """Return the control for a ticket; it keeps the same number of weights.

        `context` searches, builds and draws as the ticket's own search did.
        """
