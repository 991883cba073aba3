"""The contract of measurements: finite numbers with names, decided by a seed."""

from __future__ import annotations

from gemkit.core.errors import CheckError
from gemkit.data.source import TensorSource
from gemkit.sanity.measurement import Measurement, measured_numbers
from gemkit.testing.clause import clause, require
from gemkit.testing.clauses.checks import Checked, any_seed, found
from gemkit.testing.watch import (
    State,
    at_global_seed,
    copied,
    no_global_randomness,
    state_of,
    unchanged,
)


@clause(Measurement, any_seed, examples=3)
def the_numbers_are_finite_and_have_plain_names(part: Measurement, case: int) -> None:
    """`measure` returns a dict of finite numbers; names have small letters, digits and _."""
    ticket, context = found(part, case)
    try:
        measured_numbers(part, ticket, context)
    except CheckError as error:
        require(False, str(error))


@clause(Measurement, any_seed, examples=2)
def the_same_seed_gives_the_same_numbers(part: Measurement, case: int) -> None:
    """The numbers depend only on the ticket and `context`, which draws from its seed."""
    ticket, context = found(part, case)
    with no_global_randomness():
        part.measure(ticket, context)
    one, other = (at_global_seed(seed, lambda: part.measure(ticket, context)) for seed in (1, 2))
    require(one == other, f"they are {one} and then {other}")


@clause(Measurement, any_seed, examples=2)
def measuring_changes_nothing(part: Measurement, case: int) -> None:
    """The ticket, the data and the network that `context` builds are the same afterwards."""
    checked = found(part, case)
    with unchanged("what is measured", lambda: _everything(checked)):
        part.measure(checked.ticket, checked.context)


def _everything(checked: Checked) -> State:
    """Copy the ticket, the data and the network."""
    ticket, context = checked
    train = context.data.train
    assert isinstance(train, TensorSource)
    return {
        "the digest of the ticket": ticket.digest(),
        **copied([("the training images", train.images), ("the labels", train.labels)]),
        **state_of(context.network()),
    }
