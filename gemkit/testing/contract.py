"""Contracts as tests: one line of a test file holds a part, or a whole plugin, to its promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gemkit.testing.clause import Clause, NotCheckedError, clauses_of, title
from gemkit.testing.things import things_in


def contract(*given: object) -> Callable[..., None]:
    """Return a test that pytest collects: one case for every clause of every part.

    Give it part classes (tried with their default fields), parts (with the fields you chose), or
    a plugin module, which stands for everything its hooks bring, pruners included.

        test_my_scores = contract(MyScores)
        test_my_scores_with_many_rounds = contract(MyScores(rounds=50))
        test_the_whole_plugin = contract(my_plugin)
    """
    cases = [
        pytest.param(thing, one, device, id=_id(thing, one, device))
        for each in given
        for thing in things_in(each)
        for one in clauses_of(thing)
        for device in one.devices()
    ]

    @pytest.mark.parametrize(("thing", "clause", "device"), cases)
    def keeps_its_contract(thing: object, clause: Clause, device: torch.device) -> None:
        __tracebackhide__ = True
        try:
            clause.check(thing, device)
        except NotCheckedError as reason:
            pytest.skip(str(reason))
        except AssertionError as broken:
            raise AssertionError(f"{title(thing)}: {broken}") from broken.__cause__

    return keeps_its_contract


def _id(thing: object, one: Clause, device: torch.device) -> str:
    on = "" if device.type == "cpu" else f"-on-{device.type}"
    return f"{title(thing)}-{one.name}{on}"
