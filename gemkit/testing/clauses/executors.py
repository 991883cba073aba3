"""The contract of executors: functions run elsewhere, and an error is that of its own future."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from gemkit.core.errors import GemkitError
from gemkit.parts.executor import StudyExecutor
from gemkit.testing.clause import NotTriedError, clause, require

_PATIENCE = 300.0


@contextmanager
def started(part: StudyExecutor) -> Iterator[Executor]:
    """Start an executor for two stages at once, and shut it down."""
    try:
        executor = part.start(2, 1, 1)
    except GemkitError as error:
        raise NotTriedError(f"it does not start here: {error}") from error
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@clause(StudyExecutor, examples=1)
def it_runs_functions_and_keeps_errors_apart(part: StudyExecutor, case: None) -> None:
    """`submit` returns futures: of values in any order, and of an error that stops no other."""
    with started(part) as executor:
        require(isinstance(executor, Executor), f"start returned {type(executor).__name__}")
        values = [executor.submit(operator.mul, number, 2) for number in range(5)]
        wrong = executor.submit(operator.truediv, 1, 0)
        found = [future.result(_PATIENCE) for future in values]
        require(found == [0, 2, 4, 6, 8], f"twice the numbers to 4 are {found}")
        require(wrong.exception(_PATIENCE) is not None, "the error of a function is lost")
        last = executor.submit(operator.neg, 1).result(_PATIENCE)
        require(last == -1, f"after an error, the next function returned {last}")


@clause(StudyExecutor, examples=1)
def it_has_room_for_at_least_one_stage(part: StudyExecutor, case: None) -> None:
    """`jobs` is at least 1, however many threads and devices a stage has."""
    for threads, devices in ((1, 1), (10_000, 1), (1, 64)):
        count = part.jobs(threads, devices)
        require(count >= 1, f"it is {count} for {threads} threads and {devices} devices")
