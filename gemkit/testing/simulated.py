"""A simulated accelerator: a torch device in host memory, whose operations are recorded.

    device = install()
    with watched() as seen:
        search("snip", model, data, fabric=fabric())
    seen.kernels, seen.waits, seen.uploads

It counts the operations that a real device would launch, and lists the read-backs, where the host
waits for the device, and the uploads. It refuses what a real device refuses, or takes with a hidden
transfer: operations on tensors of host and device together (only numbers, tensors without
dimensions, may lie on the host). It also refuses `_foreach_` and fused operations on lists that
differ in dtype or strides, which CUDA would take tensor by tensor, in as many kernels.

The arithmetic is the CPU's own, so results can be compared to the bit. torch cannot forget a
device, and some of its functions ask for every one there is: install it in a process of its own.
"""

from functools import cache
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators.cpu import CPUAccelerator
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor
from torch.utils import backend_registration

from gemkit.testing.on_device import NAME, OnDevice, Seen, run, watched
from gemkit.training import optimizers

__all__ = ["AVAILABLE", "NAME", "OnDevice", "Seen", "fabric", "install", "watched"]

_SETUP: Any = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
AVAILABLE = _SETUP is not None
"""Whether this torch takes a device that is written in Python."""
_LIBRARIES: list[Any] = []
"""Kept alive: torch removes the functions of a library that is deleted."""


@cache
def install() -> torch.device:
    """Make the device known to torch, once in a process, and return it."""
    _SETUP(NAME, _Module())
    make: Any = torch.library.Library
    everything, own = make("_", "IMPL"), make("aten", "IMPL")
    everything.fallback(lambda op, *args, **kwargs: run(op, args, kwargs), "PrivateUse1")
    move = torch.ops.aten._to_copy.default  # torch.tensor(…) does not find the fallback
    own.impl("_to_copy", lambda *args, **kwargs: run(move, args, kwargs), "PrivateUse1")
    _LIBRARIES.extend([everything, own])
    optimizers.FUSED.add(NAME)  # it has what CUDA has
    return torch.device(NAME, 0)


def fabric() -> Fabric:
    """Open the device for `gemkit.search` and the like, which take it as `fabric=`."""
    opened = Fabric(strategy=SingleDeviceStrategy(install(), accelerator=_Accelerator()))
    opened.launch()
    return opened


class _Accelerator(CPUAccelerator):
    """The device as Lightning needs it."""

    def setup_device(self, device: torch.device) -> None:
        """Accept the device: there is nothing to set up."""


class _Module:
    """The device module that torch needs; its random numbers are those of the host."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)
