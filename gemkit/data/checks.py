"""What tensors must be to make a data set."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from gemkit.core.probe import IGNORED
from gemkit.core.text import number_of


def problems_of(
    images: Tensor,
    labels: Tensor,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    peak: float,
    pad: int,
    flip: bool,
) -> list[str]:
    """List everything that is wrong with inputs, targets and what is done to the inputs."""
    shape = list(images.shape)
    if len(shape) < 2 or 0 in shape:
        return [f"images must be non-empty [samples, channels, height, width], not {shape}"]
    count, channels, bytes_ = shape[0], shape[1], images.dtype == torch.uint8
    statistics = {len(mean), len(std)}
    checks = [
        (
            images.is_floating_point()
            or bytes_
            or (images.dtype == torch.int64 and len(shape) < 4),
            f"images must be uint8 or float, not {images.dtype}",
        ),
        (
            labels.is_floating_point() or labels.dtype in (torch.int64, torch.bool),
            f"labels must be int64, and other targets float or bool, not {labels.dtype}",
        ),
        (
            _fits(labels, count),
            f"for {number_of(count, 'image')} give {number_of(count, 'label')}, not labels of "
            f"shape {list(labels.shape)}; several for each are bool or float",
        ),
        (
            not has_negative(labels),
            "labels count from 0, and some are negative",
        ),
        (
            not labels.is_floating_point() or bool(labels.isfinite().all()),
            "some targets are not finite",
        ),
        (
            statistics == {0} or (statistics == {channels} and bytes_),
            f"mean and std need {channels} values for uint8 images, one per channel, and none for "
            "float images, which are not normalised",
        ),
        (
            len(shape) == 4 or not (pad or flip),
            f"only images are cropped and flipped, not inputs of shape {shape[1:]}",
        ),
        (min((*std, peak)) > 0, "std and peak must be above 0"),
        (pad >= 0, f"pad must be 0 or more, not {pad}"),
    ]
    return [message for valid, message in checks if not valid]


def _fits(targets: Tensor, count: int) -> bool:
    """Whether there are targets for so many samples: labels, or maps of them, or others."""
    if list(targets.shape[:1]) != [count] or 0 in targets.shape:
        return False
    return targets.dtype != torch.int64 or targets.ndim == 1 or targets[0].numel() > 1


def has_negative(targets: Tensor) -> bool:
    """Whether there are negative labels; in maps of them, -100 marks what does not count."""
    if targets.dtype != torch.int64:
        return False
    wrong = targets < 0 if targets.ndim == 1 else (targets < 0) & (targets != IGNORED)
    return bool(wrong.any())


class _Source(Protocol):
    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]: ...


def not_finite(source: _Source, split: str) -> str | None:
    """Say which inputs of a split have values that are not finite, if any; this reads all of it."""
    first, seen, bad = None, 0, 0
    for inputs, _ in source.batches(512):
        wrong = (~inputs.isfinite()).flatten(1).any(1).cpu()
        if first is None and wrong.any():
            first = seen + int(wrong.int().argmax())
        seen, bad = seen + len(inputs), bad + int(wrong.sum())
    if first is None:
        return None
    return (
        f"the {split} data have values that are not finite, in {number_of(bad, 'input')} of "
        f"{seen:,} (the first is number {first}, counted from 0); repair or remove them"
    )
