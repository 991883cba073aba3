"""Tensors of the simulated accelerator, and the operations on them (see `simulated`)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter, tree_map

NAME = "simulated"
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""How torch marks operations whose result, or its size, the host must wait for."""
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""These wait if an index is a mask."""
_MOVES = {"copy_", "_to_copy"}
_TAKE_NUMBERS = _MOVES | {"fill_", "masked_fill", "masked_fill_", "index_put", "index_put_"}
"""Operations that take a number of the host, besides those that work element by element."""
_FREE = {"empty", "empty_like", "empty_strided", "_unsafe_view", "detach"}
_FREE |= {"_has_compatible_shallow_copy_type", "is_same_size"}
"""Operations that compute nothing, besides views."""


@dataclass
class Seen:
    """What happened on the device: operations by name, and what went to and from the host."""

    kernels: Counter[str] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)
    """Operations that read something back, in order."""
    uploads: list[str] = field(default_factory=list)
    """Operations that bring a tensor of the host to the device, in order."""

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


# --- tensors --------------------------------------------------------------------------------------


@cache
def _device() -> torch.device:
    return torch.device(NAME, 0)  # torch knows the name once the device is installed


_DATA: Any = Tensor.data


class OnDevice(Tensor):
    """A tensor of the simulated device."""

    raw: Tensor
    _is_param: bool  # how torch marks parameters of other classes than its own

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
            device=_device(),
            dispatch_device=True,
        )
        made.raw = raw
        return made

    @property
    def data(self) -> Tensor:
        """The tensor without its history; `module.to(…)` sets it."""
        return self.detach()

    @data.setter
    def data(self, new: Tensor) -> None:
        assert isinstance(new, OnDevice)
        _DATA.__set__(self, new)
        self.raw = new.raw

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnDevice":
        copied = OnDevice(self.raw.clone())
        copied.requires_grad_(self.requires_grad)
        if isinstance(self, nn.Parameter):
            copied._is_param = True
        memo[id(self)] = copied
        return copied

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"OnDevice({self.detach().cpu()})"

    def __format__(self, spec: str) -> str:
        return format(self.detach().cpu(), spec)

    def tolist(self) -> Any:  # noqa: ANN401 - torch's own signature
        """Read all values back."""
        return self.detach().cpu().tolist()

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
        return run(func, args, kwargs or {})


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Carry an operation out on the host, noting what it would be on a device."""
    kind = _kind(op)
    if kind.name == "prim::device":
        return _device()
    to_host = _leaves_device(kind.name, args, kwargs)
    _note(kind, args, to_host=to_host)
    if kind.on_lists:
        _check_lists(kind.name, [one for one in args if isinstance(one, list | tuple)])
    on_host = {**kwargs, "device": "cpu"} if kwargs.get("device") is not None else kwargs
    unwrap = partial(_raw, kind)
    out = op(*tree_map(unwrap, args), **tree_map(unwrap, on_host))
    if to_host:
        return out
    if kind.name.endswith("_"):
        _follow(args[0])
        return args[0] if isinstance(args[0], OnDevice) else out
    if "out" in kwargs:
        return kwargs["out"]
    return tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, out)


class _Kind(NamedTuple):
    """What is known about an operation."""

    name: str
    computes: bool
    waits: bool
    takes_numbers: bool
    on_lists: bool


@cache
def _kind(op: Any) -> _Kind:  # noqa: ANN401
    """Look up what torch says about an operation."""
    name, tags = op._schema.name.removeprefix("aten::"), set(op.tags)
    view = getattr(op, "is_view", False) or torch.Tag.inplace_view in tags
    on_lists = name.startswith(("_foreach_", "_fused_"))
    return _Kind(
        name,
        computes=not view and name not in _FREE,
        waits=bool(tags & _READS) and name not in _INDEXING,
        takes_numbers=name in _TAKE_NUMBERS or on_lists or torch.Tag.pointwise in tags,
        on_lists=on_lists,
    )


def _leaves_device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result of an operation lies on the host."""
    if name == "copy_":
        return not isinstance(args[0], OnDevice)
    device = kwargs.get("device")
    return name == "_to_copy" and device is not None and torch.device(device).type == "cpu"


def _note(kind: _Kind, args: tuple[Any, ...], *, to_host: bool) -> None:
    """Count an operation, and note what it brings from the device or to it."""
    by_mask = kind.name in _INDEXING and any(
        isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1]
    )
    uploads = kind.name in _MOVES and not isinstance(args[kind.name == "copy_"], OnDevice)
    for seen in _WATCHING:
        if kind.computes:
            seen.kernels[kind.name] += 1
        if kind.waits or by_mask or to_host:
            seen.waits.append(kind.name)
        if uploads:
            seen.uploads.append(kind.name)


def _raw(kind: _Kind, value: Any) -> Any:  # noqa: ANN401
    """Return what a tensor of the device holds; refuse a tensor of the host."""
    if isinstance(value, OnDevice):
        return value.raw
    if isinstance(value, torch.Generator):
        raise RuntimeError(f"{kind.name}: the random numbers of the host are drawn on the host")
    a_number = isinstance(value, Tensor) and not value.dim() and kind.takes_numbers
    if isinstance(value, Tensor) and not a_number and kind.name not in _MOVES:
        raise RuntimeError(f"{kind.name}: a tensor of the host meets one of the device")
    return value


def _follow(values: Any) -> None:  # noqa: ANN401
    """Give tensors the shapes and strides that what they hold has by now."""
    for one in tree_iter(values):
        if isinstance(one, OnDevice):
            held = one.raw
            if (one.shape, one.stride()) != (held.shape, held.stride()):
                one.data = OnDevice(held)


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
