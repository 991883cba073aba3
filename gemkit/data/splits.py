"""Splitting a data set fairly, and the statistics its images are normalised by."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gemkit.tensors import generator


def split_stratified(labels: Tensor, sizes: Sequence[float], seed: int) -> list[Tensor]:
    """Split sample numbers at random into parts, each with the same share of every class.

    `sizes` are relative: (0.9, 0.1) and (9, 1) say the same. Sizes that sum to the number of
    samples are met exactly. The parts are disjoint, cover everything, and are sorted.
    """
    shuffled = torch.randperm(len(labels), generator=generator(seed, "split"))
    rest = shuffled[labels.cpu()[shuffled].argsort(stable=True)]
    parts = []
    for place, size in enumerate(sizes[:-1]):
        # Classes lie one after another in `rest`, so picks spread evenly over it take the same
        # share of each class, and their number is right to the sample.
        total = len(rest)
        left = sum(sizes[place:])
        count = round(total * size / left) if left else 0
        marks = (torch.arange(total + 1) * count + total // 2) // max(total, 1)
        picked = marks.diff().bool()
        parts.append(rest[picked].sort().values)
        rest = rest[~picked]
    return [*parts, rest.sort().values]


def divide(
    labels: Tensor, groups: Mapping[str, Tensor], *, full: bool = False, limit: int | None = None
) -> dict[str, Tensor]:
    """Choose the samples of train, validation and test, given the groups a data set comes in.

    `groups` are sample numbers: `train`, mostly `test`, and sometimes `validation`. A group that
    is missing is taken out of train: a tenth for validation where there is a test group, else a
    fifth each for validation and test. `full` trains on the validation images too; the test
    images never get into train. `limit` keeps at most so many samples of each part. The seed of
    these choices is fixed: whatever the seed of a run, it is judged on the same images.
    """
    parts = dict(groups)
    missing = [part for part in ("validation", "test") if part not in parts]
    shares = (
        (9.0, 1.0) if missing == ["validation"] else (5.0 - len(missing), *(1.0 for _ in missing))
    )
    if missing:
        home = parts["train"]
        chosen = split_stratified(labels[home], shares, seed=0)
        parts |= {part: home[own] for part, own in zip(["train", *missing], chosen, strict=True)}
    if full:
        parts["train"] = torch.cat([parts["train"], parts["validation"]]).sort().values
    if limit is not None:
        parts = {part: some(labels, own, limit) for part, own in parts.items()}
    return parts


def some(labels: Tensor, samples: Tensor, limit: int) -> Tensor:
    """Return at most `limit` of the samples, the same share of every class, always the same."""
    if len(samples) <= limit:
        return samples
    return samples[split_stratified(labels[samples], (limit, len(samples) - limit), seed=0)[0]]


def channel_statistics(
    images: Tensor, peak: float = 255.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images, scaled by `peak`.

    Computed from a count of each value, so exact whatever the order and number of images. A
    channel that never changes gets standard deviation 1. Floating-point images have none: ().
    """
    if images.is_floating_point():
        return (), ()
    values = torch.arange(256, dtype=torch.float64) / peak
    mean, std = [], []
    for channel in images.transpose(0, 1):
        share = torch.bincount(channel.flatten(), minlength=256).cpu().double() / channel.numel()
        mean.append(float(share @ values))
        std.append(float(share @ (values - mean[-1]).square()) ** 0.5 or 1.0)
    return tuple(mean), tuple(std)
