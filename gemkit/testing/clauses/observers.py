"""The contract of observers: they take every event and do not disturb the run."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_type_hints

import torch
from hypothesis import strategies as st

from gemkit.core.events import Event
from gemkit.parts.observer import Observer
from gemkit.testing.clause import clause, require
from gemkit.testing.watch import no_global_randomness

_NUMBERS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 10**6),
    float: st.floats(0, 1e3),
}


def events(part: Observer, device: torch.device) -> st.SearchStrategy[list[Event]]:
    """Draw one event of every kind."""
    return st.tuples(*(_events(kind) for kind in get_args(Event))).map(list)


def _events(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    values = {
        field.name: _NUMBERS.get(hints[field.name], st.from_type(hints[field.name]))
        for field in fields(kind)
    }
    return st.builds(kind, **values)


@clause(Observer, events, examples=10)
def it_takes_every_event(part: Observer, case: list[Event]) -> None:
    """The listener takes every kind of event, and draws no global random numbers."""
    with TemporaryDirectory() as folder, no_global_randomness():
        listener = part.listen(Path(folder))
        require(callable(listener), f"listen returned {type(listener).__name__}")
        for event in case:
            listener(event)
        del listener


@clause(Observer, events, examples=3)
def it_observes_runs_without_a_directory(part: Observer, case: list[Event]) -> None:
    """The observer also works for a run without a directory."""
    listener = part.listen(None)
    for event in case:
        listener(event)


@clause(Observer, events, examples=3)
def it_observes_two_runs_at_once(part: Observer, case: list[Event]) -> None:
    """Listeners of two runs do not disturb each other."""
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        listeners = [part.listen(Path(folder)) for folder in (one, other)]
        for event in case:
            for listener in listeners:
                listener(event)
        del listeners, listener
