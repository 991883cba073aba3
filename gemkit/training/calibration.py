"""Draw the batches that scores are measured on: not augmented, and the same for a seed."""

from itertools import chain, count, islice, pairwise

import torch

from gemkit.core.probe import Batch, Wanted
from gemkit.data.sampler import shuffled
from gemkit.data.source import Source, StreamSource, TensorSource, size_of_batches


def draw(
    source: Source, wanted: Wanted, size: int, *, seed: int, turn: int, classes: bool = True
) -> list[Batch]:
    """Draw the batches that a score asks for; every `turn` gives other samples.

    If targets are not `classes`, or not all known in advance, batches are never balanced. The last,
    smaller batch of an epoch is left out: the batch statistics of a few samples would count as much
    as those of a full batch.
    """
    if wanted.per_class is not None and classes and _are_known(source):
        return _split(_balanced(source, wanted.per_class, size, seed, turn), wanted.batches)
    whole = max(1, len(source) // size_of_batches(source, size))
    epochs = (islice(source.batches(size, seed=seed, epoch=epoch), whole) for epoch in count(turn))
    return list(islice(chain.from_iterable(epochs), wanted.batches))


def _are_known(source: Source) -> bool:
    """Whether a source knows the class of every sample."""
    return not isinstance(source, StreamSource) and source.targets().ndim == 1


def _balanced(source: Source, per_class: int, size: int, seed: int, turn: int) -> Batch:
    """Take up to `per_class` samples of every class from a shuffled epoch, sorted by class."""
    targets = source.targets().cpu()
    missing = targets.bincount().clamp(max=per_class).tolist()
    in_order = targets[shuffled(len(source), seed, turn)]
    held = type(source).batches is TensorSource.batches
    found: list[Batch] = []
    for number, (images, labels) in enumerate(source.batches(size, seed=seed, epoch=turn)):
        # If the order is known, the labels of a batch need not be read from the device.
        own = in_order[number * size : (number + 1) * size] if held else labels
        chosen = []
        for place, label in enumerate(own.tolist()):
            if missing[label]:
                missing[label] -= 1
                chosen.append(place)
        at = torch.tensor(chosen, dtype=torch.int64, device=images.device)
        found.append((images[at], labels[at]))
        if not any(missing):
            break
    images, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    order = labels.argsort(stable=True)
    return images[order], labels[order]


def _split(samples: Batch, parts: int) -> list[Batch]:
    """Split samples into parts whose sizes differ by at most one."""
    images, labels = samples
    ends = [len(labels) * part // parts for part in range(parts + 1)]
    spans = [(start, end) for start, end in pairwise(ends) if start < end]
    return [(images[start:end], labels[start:end]) for start, end in spans]
