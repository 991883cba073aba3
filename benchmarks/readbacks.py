"""How often a freeze, and how often a step, of every pruner reads something back from the device.

    python -m benchmarks.readbacks [--json]

Every read-back makes the host wait until the device has finished all it was asked to do. A freeze
counts with everything that belongs to it: drawing batches, scoring, selecting, checks, rewinding.
A step counts with its batch, in search and fine-tuning. Both are the worst of all of a search in a
tiny network, on the device of `gemkit.testing.simulated`.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.measure import lines
from gemkit import Plan, finetune, load_plugins, search
from gemkit.core.events import Event, StepEnded
from gemkit.pruning.freeze import Freezer
from gemkit.pruning.guard import Guard
from gemkit.pruning.rewind import Rewinder
from gemkit.testing import simulated
from gemkit.testing.tiny import tiny_data, tiny_net

PLAN = Plan(epochs=6, batch_size=16)


class Steps:
    """Listens to a run, and counts the read-backs between two steps with nothing between them."""

    def __init__(self, seen: simulated.Seen) -> None:
        self.seen = seen
        self.counts: list[int] = []
        self._before: int | None = None

    def __call__(self, event: Event) -> None:
        now = len(self.seen.waits)
        if isinstance(event, StepEnded) and self._before is not None:
            self.counts.append(now - self._before)
        self._before = now if isinstance(event, StepEnded) else None


@contextmanager
def counted(owner: type, method: str, counts: list[int]) -> Iterator[None]:
    """Note how often each call of a method reads back."""
    real: Callable[..., Any] = getattr(owner, method)

    def counting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with simulated.watched() as seen:
            done = real(*args, **kwargs)
        counts.append(len(seen.waits))
        return done

    with patch.object(owner, method, counting):
        yield


def measure(pruner: str) -> dict[str, Any]:
    """Search and fine-tune, and tell the most read-backs of a freeze and of a step."""
    freezes: list[int] = []
    checks: list[int] = []
    rewinds: list[int] = []
    fabric = simulated.fabric()
    with (
        simulated.watched() as seen,
        counted(Freezer, "freeze", freezes),
        counted(Guard, "check_freeze", checks),
        counted(Rewinder, "rewind_", rewinds),
    ):
        steps = Steps(seen)
        how: dict[str, Any] = {"plan": PLAN, "observers": [steps], "fabric": fabric}
        ticket = search(pruner, tiny_net(), tiny_data(), density=0.4, on_collapse="warn", **how)
        finetune(ticket, tiny_net(), tiny_data(), epochs=1, **how)
    return {
        "pruner": pruner,
        "per_freeze": max(map(sum, zip(freezes, checks, rewinds, strict=True))),
        "per_step": max(steps.counts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    given = parser.parse_args()
    rows = [measure(pruner) for pruner in sorted(load_plugins().pruners)]
    if given.json:
        print(json.dumps(rows))
    else:
        print(lines([*rows[0]], [[str(value) for value in row.values()] for row in rows]))


if __name__ == "__main__":
    main()
