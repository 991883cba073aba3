"""Stratified splits, and the channel statistics for normalisation."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gemkit.core.tensors import generator


def split_stratified(labels: Tensor, sizes: Sequence[float], seed: int) -> list[Tensor]:
    """Split sample indices at random into parts with the same share of every class.

    `sizes` are relative: (0.9, 0.1) and (9, 1) mean the same. Sizes that sum to the number of
    samples are met exactly. The parts are disjoint, cover all samples, and are sorted.
    """
    shuffled = torch.randperm(len(labels), generator=generator(seed, "split"))
    rest = shuffled[labels.cpu()[shuffled].argsort(stable=True)]
    parts = []
    for position, size in enumerate(sizes[:-1]):
        # `rest` is sorted by class, so evenly spaced picks take the same share of each class,
        # and exactly `count` samples.
        total = len(rest)
        left = sum(sizes[position:])
        count = round(total * size / left) if left else 0
        marks = (torch.arange(total + 1) * count + total // 2) // max(total, 1)
        picked = marks.diff().bool()
        parts.append(rest[picked].sort().values)
        rest = rest[~picked]
    return [*parts, rest.sort().values]


def strata(targets: Tensor) -> Tensor:
    """Return what to stratify a split by: labels of classes, and nothing for other targets."""
    if targets.dtype == torch.int64 and targets.ndim == 1:
        return targets
    return torch.zeros(len(targets), dtype=torch.int64)


def make_splits(
    labels: Tensor, groups: Mapping[str, Tensor], *, full: bool = False, limit: int | None = None
) -> dict[str, Tensor]:
    """Choose the samples of train, validation and test from the groups of a data set.

    `groups` maps `train` and optionally `test` and `validation` to sample indices. A missing group
    is taken from train: a tenth for validation if there is a test group, else a fifth each for
    validation and test. `full` adds the validation samples to train; test samples never are.
    `limit` is the maximum number of samples per split. The seed is fixed, so all runs are
    evaluated on the same images.
    """
    splits = dict(groups)
    missing = [split for split in ("validation", "test") if split not in splits]
    shares = (
        (9.0, 1.0) if missing == ["validation"] else (5.0 - len(missing), *(1.0 for _ in missing))
    )
    if missing:
        train = splits["train"]
        parts = split_stratified(labels[train], shares, seed=0)
        splits |= {name: train[part] for name, part in zip(["train", *missing], parts, strict=True)}
    if full:
        splits["train"] = torch.cat([splits["train"], splits["validation"]]).sort().values
    if limit is not None:
        splits = {split: subsample(labels, chosen, limit) for split, chosen in splits.items()}
    return splits


def subsample(labels: Tensor, samples: Tensor, limit: int) -> Tensor:
    """Return at most `limit` of the samples, stratified and always the same ones."""
    if len(samples) <= limit:
        return samples
    return samples[split_stratified(labels[samples], (limit, len(samples) - limit), seed=0)[0]]


def channel_statistics(
    images: Tensor, peak: float = 255.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images, scaled by `peak`.

    They are computed from a histogram, so the order of the images does not matter. A constant
    channel gets standard deviation 1. Floating-point images have none: ().
    """
    if images.dtype != torch.uint8:
        return (), ()
    values = torch.arange(256, dtype=torch.float64) / peak
    mean, std = [], []
    for channel in images.transpose(0, 1):
        share = torch.bincount(channel.flatten(), minlength=256).cpu().double() / channel.numel()
        mean.append(float(share @ values))
        std.append(float(share @ (values - mean[-1]).square()) ** 0.5 or 1.0)
    return tuple(mean), tuple(std)
