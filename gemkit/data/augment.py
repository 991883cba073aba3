"""Random crops and flips, drawn per sample and applied to a whole batch at once."""

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_with_zeros

from gemkit.core.tensors import generator


def draw(samples: int, pad: int, *, flip: bool, seed: int, epoch: int) -> Tensor:
    """Draw (top, left, flipped) for every sample of an epoch: integers [3, samples] on the CPU."""
    rng = generator(seed, f"augment {epoch}")
    corners = torch.randint(2 * pad + 1, (2, samples), generator=rng)
    flipped = torch.randint(1 + flip, (1, samples), generator=rng)
    return torch.cat([corners, flipped])


def crop_and_flip(images: Tensor, draws: Tensor, pad: int) -> Tensor:
    """Zero-pad images by `pad`, then flip and crop each as drawn.

    All crops are one strided view of the padded batch, indexed by where they start. On CIFAR this
    takes about half the CPU time of indexing a padded data set by crop, a quarter of indexing it
    by pixel, and needs no padded copy of the data set.
    """
    count, channels, height, width = images.shape
    top, left, flipped = draws
    both = pad_with_zeros(torch.cat([images, images.flip(-1)]), (pad,) * 4).contiguous()
    line = width + 2 * pad
    plane = line * (height + 2 * pad)
    crop_length = (channels - 1) * plane + (height - 1) * line + width
    crops = both.as_strided(
        (both.numel() - crop_length + 1, channels, height, width), (1, plane, line, 1)
    )
    image = torch.arange(count, device=images.device) + flipped * count
    return crops.index_select(0, image * channels * plane + top * line + left)
