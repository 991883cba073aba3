"""A clause: one promise of one kind of part, tried on drawn cases until one breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gemkit.parts import Part

Holds = Callable[[Any, Any], None]
Draws = Callable[[Any, torch.device], st.SearchStrategy[Any]]


class NotCheckedError(Exception):
    """Something a clause needs is not here, such as the files of a data set."""


class Verdict(NamedTuple):
    """How a thing did on one clause: `problem` is None where it held."""

    thing: str
    clause: str
    promise: str
    device: str
    problem: str | None
    skipped: str | None = None


@dataclass(frozen=True)
class Clause:
    """A promise: which parts make it, on which cases it is tried, and what tells that it holds."""

    kind: type[Any]
    name: str
    promise: str
    cases: Draws
    holds: Holds
    examples: int
    on_devices: bool
    applies: Callable[[Any], bool]

    def devices(self) -> list[torch.device]:
        """List where to try it: the CPU, and CUDA where it is present and makes a difference."""
        both = self.on_devices and torch.cuda.is_available()
        return [torch.device(name) for name in (("cpu", "cuda") if both else ("cpu",))]

    def check(self, part: object, device: torch.device) -> None:
        """Try the promise; a broken one raises AssertionError with the smallest case that shows it.

        The cases are the same every time, so that a test that passed passes again.
        """
        shown: dict[str, Any] = {}

        @settings(
            max_examples=self.examples,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=self.cases(part, device))
        def holds(case: object) -> None:
            shown["case"] = case  # hypothesis ends with the smallest one that fails
            self.holds(part, case)

        try:
            holds()
        except NotCheckedError:
            raise
        except Exception as error:
            problem = _worded(error)
            case = f"; smallest case: {_told(shown['case'])}" if shown.get("case") else ""
            raise AssertionError(f"{self.promise} But {problem}{case}") from error


def _told(case: object) -> str:
    """Show a case, or several things that make one, on one line."""
    if isinstance(case, tuple):
        return "; ".join(_told(part) for part in case)
    return title(case)


def _worded(error: Exception) -> str:
    """Say what went wrong: the clause's own words, or the exception that came out of the part."""
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    return f"it raised {type(error).__name__}: {error}"


CLAUSES: list[Clause] = []
"""Every clause, in the order of definition."""


def clause(
    kind: type[Any],
    cases: Draws | None = None,
    *,
    examples: int = 25,
    on_devices: bool = False,
    applies: Callable[[Any], bool] = lambda part: True,
) -> Callable[[Holds], Holds]:
    """Make a function `(part, case)` a clause; its docstring is the promise."""

    def add(holds: Holds) -> Holds:
        promise = " ".join((holds.__doc__ or "").split())
        draws = cases or (lambda part, device: st.none())
        count = examples if cases else 1
        name = holds.__name__.replace("_", "-")
        CLAUSES.append(Clause(kind, name, promise, draws, holds, count, on_devices, applies))
        return holds

    return add


def clauses_of(thing: object) -> Iterator[Clause]:
    """Yield the clauses that a part (or a pruner) has to keep, whole searches after the rest."""
    for one in sorted(CLAUSES, key=lambda one: one.holds.__module__.endswith("searching")):
        if isinstance(thing, one.kind) and one.applies(thing):
            yield one


def clauses_of_kind(kind: type[Any]) -> list[Clause]:
    """List the clauses that are defined for a kind of part itself, not for what it is based on."""
    return [one for one in CLAUSES if one.kind is kind]


def require(condition: object, otherwise: str) -> None:
    """Fail with a sentence that continues "But …" unless the condition holds."""
    if not condition:
        raise AssertionError(otherwise)


def title(thing: object) -> str:
    """Name a thing as people know it."""
    if isinstance(thing, Part):
        given_fields = thing.model_dump(exclude_defaults=True)
        told = ", ".join(f"{name}={value!r}" for name, value in given_fields.items())
        return f"{type(thing).__name__}({told})" if told else type(thing).__name__
    return str(thing)


def verdicts(things: Sequence[object]) -> Iterator[Verdict]:
    """Try every clause of every thing, one after the other."""
    for thing in things:
        for one in clauses_of(thing):
            for device in one.devices():
                yield _verdict(thing, one, device)


def _verdict(thing: object, one: Clause, device: torch.device) -> Verdict:
    told = (title(thing), one.name, one.promise, str(device))
    try:
        one.check(thing, device)
    except NotCheckedError as reason:
        return Verdict(*told, None, str(reason))
    except AssertionError as error:
        return Verdict(*told, str(error).removeprefix(f"{one.promise} But "))
    return Verdict(*told, None)
