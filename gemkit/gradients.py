"""Acting on gradients where they arise: inside the backward pass, while they are in the cache."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from gemkit.errors import TrainingError

WORTH_A_HOOK = 1 << 16
"""Entries from which on a gradient is better used at once than read from memory again."""


@contextmanager
def each_gradient(
    parameters: Mapping[str, nn.Parameter], act: Callable[[str], None], *, early: bool
) -> Iterator[None]:
    """Act once on the gradient of each parameter that a backward pass in the block computes.

    With `early`, that is as soon as it is complete, if it is large: small ones lose nothing by
    waiting, and acting on them in a row is faster than between convolutions. Everything that used
    the parameter has then had its turn in the backward pass, so `act` may change the parameter too.
    What has not been acted on by the end of the block is acted on then.
    """
    acted: set[str] = set()

    def arrived(name: str, _: Tensor) -> None:
        if name in acted:
            raise TrainingError(
                f"the gradient of '{name}' arrived in two pieces: the weight is shared between "
                "parts of the network that are checkpointed apart; call torch.utils.checkpoint "
                "with use_reentrant=False"
            )
        acted.add(name)
        act(name)

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(arrived, name))  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items()
        if early and parameter.numel() >= WORTH_A_HOOK
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for name in parameters:
        if name not in acted:
            act(name)
