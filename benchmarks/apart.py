"""Contenders in processes of their own, which take turns.

What one of them does to its process, to the memory it holds and how, cannot touch another; and as
they take turns, a busy machine slows all of them alike. The clock runs only while one works.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from gemkit.compaction.timing import Times, time_interleaved

T = TypeVar("T")
Lap = Callable[[], object]
Maker = Callable[[], Lap]
"""Gets everything ready in a contender's own process, so it must be picklable."""

_REST = 0.02
"""Seconds before every turn, for the threads of the one before to fall asleep."""


def race_apart(makers: Mapping[str, Maker], turns: int, threads: int) -> dict[str, Times]:
    """Time every contender once a turn, in an order drawn anew for each."""
    worked = 0.0

    def lap(line: Connection) -> None:
        nonlocal worked
        time.sleep(_REST)
        line.send(True)
        worked += line.recv()

    with ExitStack() as stack:
        lines = {
            name: stack.enter_context(_process(maker, threads)) for name, maker in makers.items()
        }
        contenders = {name: partial(lap, line) for name, line in lines.items()}
        return time_interleaved(contenders, turns, clock=lambda: worked)


@contextmanager
def _process(maker: Maker, threads: int) -> Iterator[Connection]:
    """Start a process that times one lap whenever it is told to."""
    context = get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(its, maker, threads), daemon=True)
    process.start()
    its.close()  # so that a process that dies is noticed
    ours.recv()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def _serve(line: Connection, maker: Maker, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    lap = maker()
    line.send(True)
    while _is_told(line):
        began = time.perf_counter()
        lap()
        line.send(time.perf_counter() - began)


def _is_told(line: Connection) -> bool:
    try:
        return bool(line.recv())
    except EOFError:
        return False


def alone(work: Callable[[], T], threads: int) -> T:
    """Do something in a process of its own."""
    with get_context("spawn").Pool(1, torch.set_num_threads, (threads,)) as pool:
        return pool.apply(work)
