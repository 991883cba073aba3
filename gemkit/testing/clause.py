"""A clause: one promise of one kind of part, tried on drawn cases until one breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from gemkit.parts import Part

Holds = Callable[[Any, Any], None]
Draws = Callable[[Any, torch.device], st.SearchStrategy[Any]]


class NotTriedError(Exception):
    """Something a clause needs is not here, such as the files of a data set."""


class RefusedError(Exception):
    """A part says in words that a case is not for it; a clause needs others to be tried on."""


class Verdict(NamedTuple):
    """How a thing did on one clause: `problem` says what broke it, `not_tried` why nobody knows.

    Where both are None it was tried, and held.
    """

    thing: str
    clause: str
    promise: str
    device: str
    problem: str | None
    not_tried: str | None = None


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
    on_files: bool
    applies: Callable[[Any], bool]

    def devices(self) -> list[torch.device]:
        """List where to try it: the CPU, and CUDA where it is present and makes a difference."""
        both = self.on_devices and torch.cuda.is_available()
        return [torch.device(name) for name in (("cpu", "cuda") if both else ("cpu",))]

    def check(self, part: object, device: torch.device, folder: Path | None = None) -> None:
        """Try the promise; a broken one raises AssertionError with the smallest case that shows it.

        The cases are the same every time, so that a test that passed passes again. A clause about
        files is tried on `folder`. What cannot be tried raises NotTriedError.
        """
        shown: dict[str, Any] = {}
        cases = st.just(folder) if self.on_files else self.cases(part, device)

        @settings(
            max_examples=self.examples,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def holds(case: object) -> None:
            shown["case"] = case  # hypothesis ends with the smallest one that fails
            try:
                self.holds(part, case)
            except RefusedError as refusal:
                shown["refusal"] = refusal
                reject()

        try:
            holds()
        except NotTriedError:
            raise
        except Unsatisfiable as error:
            refusal = shown.get("refusal")
            reason = f"it refused every case: {refusal}" if refusal else "there is no case to try"
            raise NotTriedError(reason) from error
        except Exception as error:
            problem = _worded(error)
            drawn = None if self.on_files else shown.get("case")
            case = f"; smallest case: {_told(drawn)}" if drawn else ""
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
    on_files: bool = False,
    applies: Callable[[Any], bool] = lambda part: True,
) -> Callable[[Holds], Holds]:
    """Make a function `(part, case)` a clause; its docstring is the promise.

    With `on_files` the case is a folder with the files of data sets, or None where nobody has any.
    """

    def add(holds: Holds) -> Holds:
        promise = " ".join((holds.__doc__ or "").split())
        draws = cases or (lambda part, device: st.none())
        count = examples if cases else 1
        name = holds.__name__.replace("_", "-")
        CLAUSES.append(
            Clause(kind, name, promise, draws, holds, count, on_devices, on_files, applies)
        )
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


def verdicts(things: Sequence[object], folder: Path | None = None) -> Iterator[Verdict]:
    """Try every clause of every thing, one after the other; data sets find files in `folder`."""
    for thing in things:
        for one in clauses_of(thing):
            for device in one.devices():
                yield _verdict(thing, one, device, folder)


def _verdict(thing: object, one: Clause, device: torch.device, folder: Path | None) -> Verdict:
    told = (title(thing), one.name, one.promise, str(device))
    try:
        one.check(thing, device, folder)
    except NotTriedError as reason:
        return Verdict(*told, None, str(reason))
    except AssertionError as error:
        return Verdict(*told, str(error).removeprefix(f"{one.promise} But "))
    return Verdict(*told, None)
