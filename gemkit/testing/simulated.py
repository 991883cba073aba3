"""A simulated accelerator: a torch device whose tensors lie on the host, and which is watched.

    install()
    model.to(DEVICE)
    with watched() as seen:
        trainer.step(batch, lr=0.1)
    seen.kernels, seen.waits

It counts the operations that a real device would launch, notes where the host would wait for the
device to read something back, and refuses what a real device refuses: operations on tensors of
host and device together. It also refuses `_foreach_` and fused operations on lists that differ in
dtype or strides, which CUDA would take tensor by tensor, in as many kernels.

torch cannot forget a device, and some of its functions ask for every one there is. So install this
one in a process of its own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

NAME = "simulated"
_READS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "is_nonzero"}
_MOVES = {"copy_", "_to_copy", "_copy_from"}
_NO_KERNELS = {"empty", "empty_like", "empty_strided", "_unsafe_view", "detach"}


@dataclass
class Seen:
    """What happened on the device: operations by name, and what the host waited for."""

    kernels: Counter[str] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many operations there were."""
        return sum(self.kernels.values())


_WATCHING: list[Seen] = []


@contextmanager
def watched() -> Iterator[Seen]:
    """Note what happens on the device."""
    _WATCHING.append(Seen())
    try:
        yield _WATCHING[-1]
    finally:
        _WATCHING.pop()


@cache
def install() -> torch.device:
    """Make the device known to torch, once in a process, and return it."""
    from torch.utils import backend_registration

    setup: Any = backend_registration._setup_privateuseone_for_python_backend
    setup(NAME)
    make: Any = torch.library.Library
    library = make("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    _LIBRARIES.append(library)
    return torch.device(NAME, 0)


_LIBRARIES: list[Any] = []
"""Kept, because torch forgets what belongs to a library that is gone."""


class OnDevice(Tensor):
    """A tensor of the simulated device."""

    raw: Tensor

    @staticmethod
    def __new__(cls: type["OnDevice"], raw: Tensor) -> "OnDevice":
        """Wrap a tensor of the host."""
        make: Any = Tensor._make_wrapper_subclass
        made: OnDevice = make(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=install(),
            dispatch_device=True,
        )
        made.raw = raw
        return made

    def tolist(self) -> Any:  # noqa: ANN401 - torch's own signature
        """Read all values back."""
        _note("tolist")
        return self.raw.tolist()

    def data_ptr(self) -> int:
        """Return where the values lie."""
        return self.raw.data_ptr()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Refuse, as a tensor of any device does."""
        raise TypeError("cannot convert a tensor of a device to numpy; copy it to the host first")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own has another type than it says
        cls,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        return _run(func, args, kwargs or {})


def _note(wait: str) -> None:
    for seen in _WATCHING:
        seen.waits.append(wait)


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Carry an operation out on the host, noting what it would be on a device."""
    name = op._schema.name.removeprefix("aten::")
    if op._schema.name == "prim::device":
        return install()
    if name not in _NO_KERNELS and not getattr(op, "is_view", False):
        for seen in _WATCHING:
            seen.kernels[name] += 1
    if name in _READS:
        _note(name)
    if name.startswith(("_foreach_", "_fused_")):
        _check_lists(name, [one for one in args if isinstance(one, list | tuple)])
    on_host = {**kwargs, "device": "cpu"} if kwargs.get("device") is not None else kwargs
    if name == "copy_" and not isinstance(args[0], OnDevice):
        _note(name)
        return args[0].copy_(_raw(name, args[1]))
    out = op(*_all_raw(name, args), **_all_raw(name, on_host))
    if name == "_to_copy" and _is_cpu(kwargs.get("device")):
        _note(name)
        return out
    if name.endswith("_"):
        return args[0] if isinstance(args[0], OnDevice) else out
    if "out" in kwargs:
        return kwargs["out"]
    return tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, out)


def _is_cpu(device: object) -> bool:
    return device is not None and torch.device(str(device)).type == "cpu"


def _all_raw(name: str, values: Any) -> Any:  # noqa: ANN401
    return tree_map(lambda one: _raw(name, one), values)


def _raw(name: str, value: Any) -> Any:  # noqa: ANN401
    """Return what a tensor of the device holds; refuse one of the host that is no scalar."""
    if isinstance(value, OnDevice):
        return value.raw
    if isinstance(value, Tensor) and value.dim() and name not in _MOVES:
        raise RuntimeError(f"{name}: a tensor of the host meets one of the device")
    return value


def _check_lists(name: str, lists: Sequence[Sequence[Any]]) -> None:
    """Refuse lists for which CUDA has no single kernel; only a copy may change the type."""
    tensors = [
        every  # not the steps that an optimizer has counted
        for every in lists
        if every and all(isinstance(one, Tensor) and one.dim() for one in every)
    ]
    types = [{one.dtype for one in every} for every in tensors]
    if any(len(own) > 1 for own in types) or (
        name != "_foreach_copy_" and len(set().union(*types)) > 1
    ):
        raise RuntimeError(f"{name}: lists of different types take a kernel per tensor")
    for together in zip(*tensors, strict=False):
        if len({_strides(one) for one in together}) > 1:
            found = ", ".join(str(one.stride()) for one in together)
            raise RuntimeError(f"{name}: strides that differ ({found}) take a kernel per tensor")


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides that matter: those of dimensions with more than one entry."""
    return tuple(own for size, own in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
