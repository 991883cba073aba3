"""The contract of parts that take part in every step: a killed search resumes to the same bits."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from lightning_fabric import Fabric
from torch import Tensor

from gemkit.core.errors import Stopped
from gemkit.core.state import Stateful
from gemkit.parts.objective import Objective
from gemkit.parts.part import Part
from gemkit.parts.regularizer import Regularizer
from gemkit.parts.rounding import Rounding
from gemkit.parts.scores import LearnedScores
from gemkit.testing.clause import clause, require
from gemkit.testing.clauses.searching import recipe_with, tried
from gemkit.testing.watch import same_everywhere
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import Checkpointer, DiskCheckpointer


def steps_with(part: Part) -> bool:
    """Whether a part takes part in every step of a search."""
    learns = isinstance(part, Rounding) and not part.takes_measured
    return learns or isinstance(part, LearnedScores | Regularizer | Objective)


@clause(Part, applies=steps_with)
def a_search_that_is_killed_resumes_to_the_same_bits(part: Part, case: None) -> None:
    """A search that is stopped and resumed ends as one that runs through: what lasts is saved."""
    straight, resumed = Watched(Checkpointer()), Watched(Checkpointer())
    ticket = tried(recipe_with(part), 3, checkpointer=straight)
    with TemporaryDirectory() as folder:
        again = in_pieces(part, Path(folder), resumed)
    require(ticket.digest() == again.digest(), "the two tickets differ")
    one, other = straight.tensors(), resumed.tensors()
    changed = [name for name in one if not same_everywhere({"": one[name]}, {"": other[name]})]
    require(not changed, f"the two differ in {', '.join(changed[:3])}")


def in_pieces(part: Part, folder: Path, watched: Watched) -> Ticket:
    """Stop a search after its first step, then after every third, each time with a new part."""
    for last in chain([2], repeat(3)):
        asked = partial(_signal_at, last, count(1))
        watched.checkpointer = DiskCheckpointer(folder / "run", "contract", asked_to_stop=asked)
        try:
            return tried(recipe_with(part), 3, checkpointer=watched)
        except Stopped:
            continue
    raise AssertionError("not reached: the last piece returns")


def _signal_at(last: int, asks: count[int]) -> int | None:
    return signal.SIGTERM if next(asks) == last else None


class Watched(Checkpointer):
    """Passes everything to another checkpointer, and holds on to what is trained."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer
        self.parts: Mapping[str, Stateful] = {}

    def begin(self, phase: str, fabric: Fabric, parts: Mapping[str, Stateful]) -> None:
        """Note the network and the trainer."""
        self.parts = {name: parts[name] for name in ("net", "trainer")}
        self.checkpointer.begin(phase, fabric, parts)

    def maybe_save(self, *, epoch_ended: bool = False) -> None:
        """Save if the other checkpointer does."""
        self.checkpointer.maybe_save(epoch_ended=epoch_ended)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of what was trained, by name."""
        found = chain.from_iterable(
            _flat(name, one.state_dict()) for name, one in self.parts.items()
        )
        return dict(found)


def _flat(name: str, state: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a state."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _flat(f"{name}.{key}", value)
