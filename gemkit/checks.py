"""Sanity checks, carried out: a ticket and its controls, trained and measured just alike.

For every seed a ticket is searched, its controls are made, and all of them are fine-tuned by the
same plan with the same seed, so in the same order of the same data. What differs between a ticket
and its control is the control alone, and comparisons are paired over seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from gemkit import engine
from gemkit.compaction import finetune
from gemkit.errors import CheckError, GemkitError
from gemkit.lab import Lab
from gemkit.parts import SanityCheck
from gemkit.plan import Plan
from gemkit.tensors import Tensors
from gemkit.ticket import Ticket

TICKET = "ticket"
"""What the ticket itself is called among its controls."""


class Trial(BaseModel):
    """One ticket or control, measured before and after fine-tuning."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    check: str = Field(description="the check that made it, or 'ticket' for the ticket itself")
    seed: int = Field(ge=0, description="the seed of its search and of its fine-tuning")
    kept: int = Field(ge=0, description="how many weights it keeps")
    prunable: int = Field(ge=1, description="of how many")
    before: float = Field(ge=0, le=1, description="test accuracy before fine-tuning")
    after: float = Field(ge=0, le=1, description="test accuracy after it")


class Unmade(BaseModel):
    """A control that could not be made, which nobody knew before its ticket was there."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    check: str = Field(description="the check that should have made it")
    seed: int = Field(ge=0, description="the seed of its ticket")
    reason: str = Field(description="what kept it from being made")


class Work(NamedTuple):
    """One trial that is still to be done."""

    check: str
    seed: int


def work(checks: Sequence[str], seeds: Sequence[int], done: Sequence[Trial]) -> list[Work]:
    """List what has to be measured, seed by seed, the ticket first; nothing is measured twice."""
    known = {(trial.check, trial.seed) for trial in done}
    everything = [Work(name, seed) for seed in seeds for name in (TICKET, *checks)]
    return [one for one in everything if one not in known]


def trials(
    ticket: Ticket,
    checks: Mapping[str, SanityCheck],
    seeds: Sequence[int],
    lab: Lab,
    finetune: Plan,
    done: Sequence[Trial] = (),
) -> Iterator[Trial | Unmade]:
    """Carry out what is not `done` yet, and yield every trial as soon as it is measured.

    The given ticket stands for its own seed; for the others one is searched. If it collapses it is
    measured all the same: to leave such seeds out would flatter the method. A control that cannot
    be made is told with its reason, and the others go on.
    """
    check_fit(checks, lab)
    found = ticket
    for name, seed in work(list(checks), seeds, done):
        here = replace(lab.never_stopping(), seed=seed)
        with _naming(f"check '{name}', seed {seed}"):
            if found.info.seed != seed:
                found = ticket if seed == ticket.info.seed else here.search()
            subject = found if name == TICKET else _control(name, checks[name], found, here)
            outcome = (
                subject if isinstance(subject, Unmade) else _measured(name, subject, here, finetune)
            )
        yield outcome


def check_fit(checks: Mapping[str, SanityCheck], lab: Lab) -> None:
    """Raise what keeps a check from being made, before anything is computed."""
    for name, check in checks.items():
        with _naming(f"check '{name}'"):
            check.check_fit(lab)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Let an error say what it belongs to."""
    try:
        yield
    except GemkitError as error:
        raise type(error)(f"{what}: {error}") from error


def _control(name: str, check: SanityCheck, ticket: Ticket, lab: Lab) -> Ticket | Unmade:
    """Make a control, or tell why there is none."""
    try:
        return fair_control(check, ticket, lab)
    except GemkitError as error:
        return Unmade(check=name, seed=lab.seed, reason=str(error))


def fair_control(check: SanityCheck, ticket: Ticket, lab: Lab) -> Ticket:
    """Make a control, and refuse one that the ticket cannot be compared with."""
    control: object = check.control(ticket, lab)
    if not isinstance(control, Ticket):
        raise CheckError(f"it must return a ticket, not something of type {type(control).__name__}")
    if _shapes(control.mask) != _shapes(ticket.mask):
        raise CheckError("its control has masks for other weights than the ticket")
    if control.kept != ticket.kept:
        raise CheckError(
            f"its control keeps {control.kept:,} weights and the ticket {ticket.kept:,}; a "
            "comparison at different densities says nothing"
        )
    return control


def _shapes(masks: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(mask.shape) for name, mask in masks.items()}


def _measured(name: str, subject: Ticket, lab: Lab, plan: Plan) -> Trial:
    """Measure, fine-tune with the seed of the lab, and measure again."""
    network = lab.network()
    trained = finetune(
        subject,
        network,
        lab.data,
        plan=plan,
        seed=lab.seed,
        runtime=lab.runtime,
        observers=lab.observers,
        fabric=lab.fabric,
    )

    def accuracy(one: Ticket) -> float:
        return engine.evaluate(one, network, lab.data, runtime=lab.runtime, fabric=lab.fabric)

    return Trial(
        check=name,
        seed=lab.seed,
        kept=subject.kept,
        prunable=subject.prunable,
        before=accuracy(subject),
        after=accuracy(trained),
    )
