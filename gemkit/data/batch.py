"""What a batch of a user's own data must be: one tensor of inputs and one of targets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gemkit.core.errors import DataError, describe_error, some
from gemkit.core.probe import Batch
from gemkit.data.checks import has_negative

Split = Callable[[Any], Any]
"""A function of a batch, as a loader gives it, that returns its inputs and its targets."""

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_WRAP = (
    "put them into one tensor with split= and, for a network of several inputs, wrap it in a "
    "module that takes them apart"
)


def as_batch(raw: object, split: Split | None, where: str) -> Batch:
    """Return inputs and targets of a batch; refuse one that has none.

    `where` begins every message.
    """
    if split is not None:
        try:
            raw = split(raw)
        except Exception as error:  # a user's function may raise anything
            raise DataError(f"{where}: split fails ({describe_error(error)})") from error
    if isinstance(raw, Mapping):
        names = [str(name) for name in raw]
        first, *_, last = names if len(names) > 1 else ("inputs", "targets")
        example = f"split=lambda batch: (batch[{first!r}], batch[{last!r}])"
        raise DataError(
            f"{where}: the batch is a dict of {some(names)}; say which are inputs and targets, as "
            f"in {example}"
        )
    if not isinstance(raw, tuple | list) or len(raw) != 2:
        parts = f" of {len(raw)}" if isinstance(raw, tuple | list) else ""
        raise DataError(
            f"{where}: the batch is a {type(raw).__name__}{parts}, and gemkit needs inputs and "
            "targets; return both from a function, split="
        )
    inputs, targets = (
        _tensor(own, f"{where}: {name}")
        for own, name in zip(raw, ("inputs", "targets"), strict=True)
    )
    _check(inputs, targets, where)
    return inputs, targets.long() if targets.dtype in _WHOLE else targets


def _tensor(value: object, what: str) -> Tensor:
    """Return a tensor or an array as a tensor; refuse anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(value.copy())
    if isinstance(value, Mapping):
        raise DataError(f"{what} are a dict of {some([str(name) for name in value])}; {_WRAP}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        kinds = sorted({type(own).__name__ for own in value})
        if kinds == ["str"]:
            raise DataError(f"{what} are text; encode it as numbers in the data set")
        raise DataError(
            f"{what} are a {type(value).__name__} of {' and '.join(kinds) or 'nothing'}; stack or "
            f"pad them in a collate_fn, or {_WRAP}"
        )
    raise DataError(
        f"{what} are of type {type(value).__name__}, and gemkit needs a tensor of a whole batch; "
        "samples belong in Data.of_datasets, or in a DataLoader that batches them"
    )


def as_input(inputs: Tensor, where: str) -> Tensor:
    """Return inputs as float32 or, if they are indices, as int64; refuse others."""
    if inputs.is_floating_point():
        return inputs.float()
    if inputs.dtype in (torch.int32, torch.int64):
        return inputs.long()
    kind = str(inputs.dtype).removeprefix("torch.")
    raise DataError(
        f"{where}: inputs are {kind}, which only Data.of_tensors normalises; give values as float, "
        "for images as in split=lambda batch: (batch[0] / 255, batch[1]), or indices as int64"
    )


def _check(inputs: Tensor, targets: Tensor, where: str) -> None:
    """Refuse shapes and number formats that do not suit."""
    shapes = list(inputs.shape), list(targets.shape)
    if (
        inputs.ndim < 2
        or not targets.ndim
        or shapes[0][0] != shapes[1][0]
        or 0 in (*inputs.shape, *targets.shape)
    ):
        raise DataError(
            f"{where}: inputs of shape {shapes[0]} and targets of shape {shapes[1]} are no batch; "
            "both begin with the number of samples, and inputs have another dimension"
        )
    if targets.is_complex():
        raise DataError(f"{where}: targets are complex; give real numbers")


def check_values(targets: Tensor, classes: int | None, where: str) -> None:
    """Refuse numbers of classes that do not exist, and values that are not finite.

    A batch on a device is not read back for it.
    """
    if not targets.is_cpu:
        return
    if targets.dtype != torch.int64:
        if targets.is_floating_point() and not targets.isfinite().all():
            raise DataError(f"{where}: some targets are not finite")
        return
    if has_negative(targets):
        raise DataError(f"{where}: labels count from 0, and some are negative")
    if classes is not None and (highest := int(targets.max())) >= classes:
        raise DataError(f"{where}: label {highest} is above {classes - 1}, with classes={classes}")
