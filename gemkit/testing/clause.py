"""A clause: one promise of one kind of part, tried on cases drawn by hypothesis."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from gemkit.parts.part import Part
from gemkit.plugins.current import in_use
from gemkit.testing.patches import engine_watched, patch_fault

Holds = Callable[[Any, Any], None]
Draws = Callable[[Any, torch.device], st.SearchStrategy[Any]]


class NotTriedError(Exception):
    """A clause cannot be tried, for example without the files of a data set."""


class RefusedError(Exception):
    """A part refuses a case with its documented error; the clause tries another case."""


class Verdict(NamedTuple):
    """The result of one clause: `problem` says how it is broken, `not_tried` why it was not tried.

    If both are None, the clause is kept.
    """

    thing: str
    clause: str
    promise: str
    device: str
    problem: str | None
    not_tried: str | None = None


@dataclass(frozen=True)
class Clause:
    """A promise: the kind of part that makes it, its cases, and the check that it holds."""

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
        """Return the devices to try it on: the CPU, and CUDA if available and relevant."""
        both = self.on_devices and torch.cuda.is_available()
        return [torch.device(name) for name in (("cpu", "cuda") if both else ("cpu",))]

    def check(self, part: object, device: torch.device, folder: Path | None = None) -> None:
        """Try the promise; raise AssertionError with the smallest case that breaks it.

        The cases are the same every time. A clause about files is tried on `folder`. Raise
        NotTriedError if it cannot be tried.
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
            shown["case"] = case  # hypothesis runs the smallest failing case last
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
            case = f"; smallest case: {_one_line(drawn)}" if drawn else ""
            raise AssertionError(f"{self.promise} But {problem}{case}") from error


def _one_line(case: object) -> str:
    """Show a case, or several things that make one, on one line."""
    if isinstance(case, tuple) and not all(isinstance(part, int) for part in case):
        return "; ".join(_one_line(part) for part in case)
    return title(case)


def _worded(error: Exception) -> str:
    """Say what went wrong: the clause's own words, or the exception that came out of the part."""
    place = crashed_at(error)
    if isinstance(error, AssertionError) and place is None and str(error):
        return str(error)
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"it raised {words}, at {place}" if place else f"it raised {words}"


def crashed_at(error: BaseException | None) -> str | None:
    """Name the innermost line of a plugin's module that an exception passed, if there is one.

    An exception of gemkit's own that no plugin raised, as a clause does, has no such line.
    """
    frames = [] if error is None else list(traceback.walk_tb(error.__traceback__))
    theirs = {cls.__module__.partition(".")[0] for cls in _parts(Part)} - {"gemkit"}
    owners = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames]
    if isinstance(error, AssertionError) and owners[-1:] == ["gemkit"]:
        return None
    for (frame, line), owner in zip(reversed(frames), reversed(owners), strict=True):
        if owner in theirs:
            return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    return None


def _parts(cls: type[Part]) -> Iterator[type[Part]]:
    """Yield every class of parts that is defined."""
    yield cls
    for below in cls.__subclasses__():
        yield from _parts(below)


CLAUSES: list[Clause] = []
"""All clauses, in the order of definition."""


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

    With `on_files` the case is a folder with the files of a data set, or None.
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
    """Yield the clauses that a part, pruner or preset must keep, whole searches last."""
    for one in sorted(CLAUSES, key=lambda one: one.holds.__module__.endswith("searching")):
        if isinstance(thing, one.kind) and one.applies(thing):
            yield one


def clauses_of_kind(kind: type[Any]) -> list[Clause]:
    """List the clauses of a kind of part, without those of its base classes."""
    return [one for one in CLAUSES if one.kind is kind]


def require(condition: object, otherwise: str) -> None:
    """Fail with a message that continues "But …" unless the condition holds."""
    if not condition:
        raise AssertionError(otherwise)


def title(thing: object) -> str:
    """Return a short name of a thing: a part with its fields, or its text."""
    if isinstance(thing, Part):
        given_fields = thing.model_dump(exclude_defaults=True)
        shown = ", ".join(f"{name}={value!r}" for name, value in given_fields.items())
        return f"{type(thing).__name__}({shown})" if shown else type(thing).__name__
    return str(thing)


REPLACES_NOTHING = (
    "it-replaces-nothing-while-it-works",
    "What belongs to gemkit and torch is the same before and after all of this.",
)
"""Name and promise of a clause about all others."""


def verdicts(things: Sequence[object], folder: Path | None = None) -> Iterator[Verdict]:
    """Try every clause of every thing, one after the other; data sets find files in `folder`.

    A crash is reported with its file and line once, where it first happens. What a thing replaces
    of gemkit or torch while it is tried is reported after its clauses, and put back.
    """
    crashes: set[str] = set()
    registry = getattr(things, "registry", None)
    for thing in things:
        with engine_watched() as replaced:
            for one in clauses_of(thing):
                for device in one.devices():
                    with in_use(registry):
                        verdict = _verdict(thing, one, device, folder, crashes)
                    yield verdict
        if replaced:
            yield Verdict(title(thing), *REPLACES_NOTHING, "cpu", patch_fault(replaced))


def _verdict(
    thing: object, one: Clause, device: torch.device, folder: Path | None, crashes: set[str]
) -> Verdict:
    header = (title(thing), one.name, one.promise, str(device))
    try:
        one.check(thing, device, folder)
    except NotTriedError as reason:
        return Verdict(*header, None, str(reason))
    except AssertionError as error:
        place = crashed_at(error.__cause__)
        if place in crashes:
            return Verdict(*header, f"it raised {type(error.__cause__).__name__}, as above")
        if place is not None:
            crashes.add(place)
        return Verdict(*header, str(error).removeprefix(f"{one.promise} But "))
    return Verdict(*header, None)
