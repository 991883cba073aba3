"""Fine-tuning without the channels that a ticket has no use for, where that is asked for."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from gemkit import engine
from gemkit.compaction.smaller import compact
from gemkit.ticket import Ticket

P = ParamSpec("P")


def _smaller_if_asked(plain: Callable[P, Ticket]) -> Callable[P, Ticket]:
    """Let a function fine-tune the compact network of its ticket if its runtime says so.

    The result belongs to the original network again. What is left of it learns the same up to
    rounding, unless random numbers are drawn for channels, as by dropout. Accuracies on the way may
    differ a little from those under the mask: evaluation remembers statistics of removed channels.
    """

    @wraps(plain)
    def tuned(*args: P.args, **how: P.kwargs) -> Ticket:
        given = inspect.signature(plain).bind(*args, **how)
        runtime, data = given.arguments.get("runtime"), given.arguments["data"]
        if runtime is None or not runtime.compact:
            return plain(*args, **how)
        ticket, model = given.arguments["ticket"], given.arguments["model"]
        small = compact(ticket, model, training=True, shape=data.shape)
        given.arguments.update(ticket=small.ticket, model=small.model)
        return small.expand(plain(*given.args, **given.kwargs))

    return tuned


finetune = _smaller_if_asked(engine.finetune)
