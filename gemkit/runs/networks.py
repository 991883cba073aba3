"""Networks that only a file asks for: built without weights, and not larger than they may be."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import UninitializedParameter

from gemkit.errors import ModelError
from gemkit.limits import MOST_PIXELS
from gemkit.models.blocks import Shape
from gemkit.parts import ModelPart
from gemkit.runs.failures import lacks_memory
from gemkit.tensors import total
from gemkit.ticket import Ticket

_SPARE = 2**20
"""Parameters that a network may have while it is built, beside four times those of the ticket."""


def network_of(
    ticket: Ticket, model: ModelPart, shape: Shape, classes: int, *, typed: bool
) -> nn.Module:
    """Build the network for a ticket to fill; unless it was typed, the ticket bounds its size."""
    if typed:
        return model.skeleton(shape, classes)
    if prod(shape) > MOST_PIXELS:
        raise ModelError(
            f"the ticket is for images of {prod(shape):,} values each, and a network for more than "
            f"{MOST_PIXELS:,} is built only if you name it with --model"
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
    """Stop building a network as soon as it has more parameters than these.

    `too_large` is the error's message. A parameter is counted before values are drawn for it, so
    it takes no memory yet.
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
        if count <= parameters and not lacks_memory(error):
            raise
        raise ModelError(too_large) from error
    finally:
        hook.remove()
