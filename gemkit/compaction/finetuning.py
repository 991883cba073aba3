"""Fine-tuning in the compact network, if the runtime asks for it."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from gemkit.compaction.compact_network import compact
from gemkit.pruning import finetune as pruning
from gemkit.tickets.ticket import Ticket

P = ParamSpec("P")


def _with_compaction(plain: Callable[P, Ticket]) -> Callable[P, Ticket]:
    """Wrap a function to fine-tune the compact network if `runtime.compact`.

    The result is a ticket of the original network. Training is the same up to rounding, unless
    random numbers are drawn per channel, as by dropout. Accuracies during training may differ
    slightly, because evaluation also uses running statistics of removed channels.
    """

    @wraps(plain)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Ticket:
        bound = inspect.signature(plain).bind(*args, **kwargs)
        runtime, data = bound.arguments.get("runtime"), bound.arguments["data"]
        if runtime is None or not runtime.compact:
            return plain(*args, **kwargs)
        ticket, model = bound.arguments["ticket"], bound.arguments["model"]
        small = compact(ticket, model, training=True, shape=data.shape)
        bound.arguments.update(ticket=small.ticket, model=small.model)
        return small.expand(plain(*bound.args, **bound.kwargs))

    return wrapper


finetune = _with_compaction(pruning.finetune)
