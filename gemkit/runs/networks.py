"""Networks that only a file names: built without weights, and within bounds."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import UninitializedParameter

from gemkit.core.errors import ModelError
from gemkit.core.limits import MAX_MODEL_INPUT
from gemkit.core.memory import shortage
from gemkit.core.tensors import total
from gemkit.models.blocks import Shape
from gemkit.models.part import ModelPart
from gemkit.tickets.ticket import Ticket

_SPARE = 2**20
"""Parameters that a network may have beyond four times the numbers of its ticket."""


def network_of(
    ticket: Ticket, model: ModelPart, shape: Shape, classes: int, *, typed: bool
) -> nn.Module:
    """Build the network of a ticket, without weights.

    Unless the user typed the network's name, the size of the ticket bounds that of the network.
    """
    if typed:
        return model.skeleton(shape, classes)
    if prod(shape) > MAX_MODEL_INPUT:
        raise ModelError(
            f"the ticket is for images of {prod(shape):,} values each, and a network for more than "
            f"{MAX_MODEL_INPUT:,} is built only if you name it with --model"
        )
    own = total(ticket.state)
    too_large = (
        f"the ticket holds {own:,} numbers, and the network it names has many more parameters, so "
        "they do not fit; name the right network with --model"
    )
    with at_most(4 * own + _SPARE, too_large):
        return model.skeleton(shape, classes)


@contextmanager
def at_most(parameters: int, too_large: str) -> Iterator[None]:
    """Stop building a network when it has more parameters than these; `too_large` is the error.

    Parameters are counted before their values are drawn, so they take no memory yet.
    """
    count = 0

    def add(module: nn.Module, name: str, parameter: Any) -> None:  # noqa: ANN401 - torch's own
        nonlocal count
        if not isinstance(parameter, UninitializedParameter):
            count += parameter.numel()
        if count > parameters:
            raise ModelError(too_large)

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    except Exception as error:
        if count <= parameters and not _asks_for(8 * parameters, shortage(error)):
            raise
        raise ModelError(too_large) from None  # it is the file, not the machine
    finally:
        hook.remove()


def _asks_for(size: int, lack: BaseException | None) -> bool:
    """Return whether a failed allocation was for more bytes than this."""
    wanted = re.search(r"allocate (\d+) bytes", str(lack))
    return wanted is not None and int(wanted[1]) > size
