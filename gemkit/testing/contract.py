"""Make a pytest test of the contract of a part or a whole plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest
import torch

from gemkit.plugins.current import in_use
from gemkit.testing.clause import Clause, NotTriedError, clauses_of, title
from gemkit.testing.things import registry_with, things_among

Files = Callable[[Path], object]
"""Writes files into an empty folder."""


def contract(*given: object, files: Files | None = None) -> Callable[..., None]:
    """Return a pytest test with one case for every clause of every part.

    Pass part classes (tried with their default fields), parts (with fields of your choice), or a
    plugin module for everything that its hooks register. A part passed together with its plugin
    replaces its class if that cannot be built without fields.

        test_my_scores = contract(MyScores)
        test_my_scores_with_many_rounds = contract(MyScores(rounds=50))
        test_the_whole_plugin = contract(my_plugin, MyAllocation(shares=(0.5, 0.25)))

    Data sets that are read from disk need files: `files` is called with an empty folder and writes
    small ones for `load` to find. Without it, such clauses are skipped.

        test_my_data = contract(MyData, files=write_a_few_images)
    """
    cases = [
        pytest.param(thing, one, device, id=_id(thing, one, device))
        for thing in things_among(given)
        for one in clauses_of(thing)
        for device in one.devices()
    ]

    modules = [each for each in given if isinstance(each, ModuleType)]
    registry = registry_with(modules[0]) if len(modules) == 1 else None

    @pytest.mark.parametrize(("thing", "clause", "device"), cases)
    def keeps_its_contract(thing: object, clause: Clause, device: torch.device) -> None:
        __tracebackhide__ = True
        with _written(files if clause.on_files else None) as folder, in_use(registry):
            try:
                clause.check(thing, device, folder)
            except NotTriedError as reason:
                pytest.skip(str(reason))
            except AssertionError as broken:
                raise AssertionError(f"{title(thing)}: {broken}") from broken.__cause__

    return keeps_its_contract


@contextmanager
def _written(files: Files | None) -> Iterator[Path | None]:
    """Yield a temporary folder with files, or None."""
    if files is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        files(Path(folder))
        yield Path(folder)


def _id(thing: object, one: Clause, device: torch.device) -> str:
    on = "" if device.type == "cpu" else f"-on-{device.type}"
    return f"{title(thing)}-{one.name}{on}"
