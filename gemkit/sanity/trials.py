"""Trials: a ticket and its controls, trained and evaluated in the same way.

For every seed a ticket is searched, its controls are made, and all of them are fine-tuned by the
same plan with the same seed: on the same data in the same order. So a ticket and its control differ
in the control alone, and comparisons are paired over seeds. Measurements get the same tickets.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from gemkit.core.errors import CheckError, GemkitError
from gemkit.core.memory import shortage
from gemkit.core.tensors import Tensors
from gemkit.parts.recipe import PART_NAME
from gemkit.sanity.check import SanityCheck
from gemkit.sanity.context import CheckContext
from gemkit.sanity.measurement import LARGEST, Measurement, measured_numbers
from gemkit.tickets.ticket import Ticket

_Name = Annotated[str, Field(pattern=f"^{PART_NAME}$", max_length=100)]
_Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
TICKET = "ticket"
"""The name of the ticket itself among its controls."""


class Trial(BaseModel):
    """The metric of one ticket or control, before and after fine-tuning."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    check: str = Field(description="the check that made it, or 'ticket' for the ticket itself")
    seed: int = Field(ge=0, description="the seed of its search and of its fine-tuning")
    kept: int = Field(ge=0, description="how many weights it keeps")
    prunable: int = Field(ge=1, description="how many weights are prunable")
    before: _Number = Field(description="test accuracy, or other metric, before fine-tuning")
    after: _Number = Field(description="test accuracy, or other metric, after fine-tuning")


class Measured(BaseModel):
    """The numbers that one measurement gives for the ticket of one seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    check: str = Field(description="the measurement")
    seed: int = Field(ge=0, description="the seed of the ticket")
    numbers: dict[_Name, _Number] = Field(min_length=1, max_length=1000, description="by name")


class Unmade(BaseModel):
    """A control or measurement that failed for one seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    check: str = Field(description="the check or measurement that failed")
    seed: int = Field(ge=0, description="the seed of its ticket")
    reason: str = Field(description="why it failed")


Check = SanityCheck | Measurement
Result = Trial | Measured | Unmade


class Pending(NamedTuple):
    """A trial or measurement that is not done yet."""

    check: str
    seed: int


def pending(
    checks: Sequence[str], seeds: Sequence[int], done: Sequence[Trial | Measured]
) -> list[Pending]:
    """List the trials and measurements that are not done, seed by seed, the ticket first."""
    known = {(one.check, one.seed) for one in done}
    everything = [Pending(name, seed) for seed in seeds for name in (TICKET, *checks)]
    return [one for one in everything if one not in known]


def trials(
    ticket: Ticket,
    checks: Mapping[str, Check],
    seeds: Sequence[int],
    context: CheckContext,
    done: Sequence[Trial | Measured] = (),
) -> Iterator[Result]:
    """Measure what is not `done` yet, and yield every result as soon as there is one.

    The given ticket is used for its own seed; tickets of other seeds are searched, unless its mask
    was found elsewhere: then seeds differ in fine-tuning and controls only. A ticket that
    collapses is measured like any other: leaving such seeds out would flatter the method. A control
    or measurement that fails is yielded with its reason, and the others follow.
    """
    check_fit(checks, context)
    found = ticket
    for name, seed in pending(list(checks), seeds, done):
        here = replace(context.tolerating_collapse(), seed=seed)
        with _prefixed(f"check '{name}', seed {seed}"):
            if found.info.seed != seed:
                found = ticket if seed == ticket.info.seed else here.ticket_of_seed(ticket)
            result = (
                _trial(TICKET, found, here)
                if name == TICKET
                else _result(name, checks[name], found, here)
            )
        yield result


def check_fit(checks: Mapping[str, Check], context: CheckContext) -> None:
    """Raise an error if a check cannot be made, before anything is computed."""
    for name, check in checks.items():
        with _prefixed(f"check '{name}'"):
            check.check_fit(context)


@contextmanager
def _prefixed(words: str) -> Iterator[None]:
    """Put words before the message of an error."""
    try:
        yield
    except GemkitError as error:
        raise type(error)(f"{words}: {error}") from error


def _result(name: str, check: Check, ticket: Ticket, context: CheckContext) -> Result:
    """Measure a ticket, or make and try its control, or return the reason why that fails."""
    try:
        if isinstance(check, Measurement):
            numbers = measured_numbers(check, ticket, context)
            return Measured(check=name, seed=context.seed, numbers=numbers)
        control = fair_control(check, ticket, context)
    except GemkitError as error:
        if shortage(error):  # it says nothing about the control
            raise
        return Unmade(check=name, seed=context.seed, reason=str(error))
    return _trial(name, control, context)


def fair_control(check: SanityCheck, ticket: Ticket, context: CheckContext) -> Ticket:
    """Make a control, and refuse one that cannot be compared with the ticket."""
    control: object = check.control(ticket, context)
    if not isinstance(control, Ticket):
        raise CheckError(f"it must return a ticket, not something of type {type(control).__name__}")
    check_fair(control, ticket)
    return control


def check_fair(control: Ticket, ticket: Ticket) -> None:
    """Refuse a control that cannot be compared with the ticket."""
    if _shapes(control.mask) != _shapes(ticket.mask):
        raise CheckError("its control has masks for other weights than the ticket")
    if control.kept != ticket.kept:
        raise CheckError(
            f"its control keeps {control.kept:,} weights and the ticket {ticket.kept:,}; only "
            "tickets of the same density can be compared"
        )


def _shapes(masks: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(mask.shape) for name, mask in masks.items()}


def _trial(name: str, subject: Ticket, context: CheckContext) -> Trial:
    """Evaluate, fine-tune with the seed of the context, and evaluate again."""
    trained = context.finetune(subject)
    return Trial(
        check=name,
        seed=context.seed,
        kept=subject.kept,
        prunable=subject.prunable,
        before=context.evaluate(subject),
        after=context.evaluate(trained),
    )
