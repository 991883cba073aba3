"""Drawing the batches that a score is measured on: un-augmented, and the same for the same seed."""

from itertools import chain, count, islice, pairwise

import torch

from gemkit.data.source import Source
from gemkit.probe import Batch, Wanted


def draw(source: Source, wanted: Wanted, size: int, *, seed: int, turn: int) -> list[Batch]:
    """Draw what a score wants from a source, other samples at every turn.

    Batches have `size` samples: a smaller rest at the end of an epoch is left out, because the
    batch statistics of a few samples would count as much as those of a whole batch.
    """
    if wanted.per_class is not None:
        return _cut(_balanced(source, wanted.per_class, size, seed, turn), wanted.batches)
    whole = max(1, len(source) // size)
    epochs = (islice(source.batches(size, seed=seed, epoch=epoch), whole) for epoch in count(turn))
    return list(islice(chain.from_iterable(epochs), wanted.batches))


def _balanced(source: Source, per_class: int, size: int, seed: int, turn: int) -> Batch:
    """Take the first samples of every class in a shuffled epoch, as many as asked for or there are.

    They come out sorted by class.
    """
    missing = source.targets().bincount().clamp(max=per_class).tolist()
    found: list[Batch] = []
    for images, labels in source.batches(size, seed=seed, epoch=turn):
        chosen = []
        for place, label in enumerate(labels.tolist()):
            if missing[label]:
                missing[label] -= 1
                chosen.append(place)
        found.append((images[chosen], labels[chosen]))
        if not any(missing):
            break
    images, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    order = labels.argsort(stable=True)
    return images[order], labels[order]


def _cut(samples: Batch, parts: int) -> list[Batch]:
    """Cut samples into parts of equal size, the later ones larger by one where it must be."""
    images, labels = samples
    ends = [len(labels) * part // parts for part in range(parts + 1)]
    pieces = pairwise(ends)
    return [(images[start:end], labels[start:end]) for start, end in pieces if start < end]
