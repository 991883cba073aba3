"""Data objects that are awkward to train on; `docs.tools.awkward` tries them for docs/data.md."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from gemkit import Data

Batch = tuple[Tensor, Tensor]
INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % 3
SAMPLES = TensorDataset(INPUTS, LABELS)


def loader(**how: Any) -> DataLoader[Any]:  # noqa: ANN401
    """Make a loader of batches of eight."""
    return DataLoader(**{"dataset": SAMPLES, "batch_size": 8, **how})


def batches(inputs: Tensor = INPUTS, targets: Tensor = LABELS) -> list[Batch]:
    """Cut tensors into batches."""
    return list(zip(inputs.split(8), targets.split(8), strict=True))


def loaders(train: Any, **how: Any) -> Data:  # noqa: ANN401
    """Use one loader for every split."""
    return Data.of_loaders(**{"train": train, "validation": train, "test": train, **how})


class Stream(IterableDataset[Batch]):
    """Samples one after the other."""

    def __init__(self, endless: bool = False) -> None:
        self.endless = endless

    def __iter__(self) -> Iterator[Batch]:
        """Yield samples, for ever or once."""
        while True:
            yield from zip(INPUTS, LABELS, strict=True)
            if not self.endless:
                return


class Noisy(Dataset[Batch]):
    """A data set with a random transform."""

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, index: int) -> Batch:
        return INPUTS[index] + 0.1 * torch.randn(6), LABELS[index]


def bare_loader() -> object:
    """A DataLoader instead of Data."""
    return loader()


def bare_dataset() -> object:
    """A Dataset instead of Data."""
    return SAMPLES


def bare_tensors() -> object:
    """A pair of tensors instead of Data."""
    return INPUTS, LABELS


def name() -> object:
    """The name of a data set instead of Data."""
    return "digits"


def list_of_batches() -> object:
    """A list of batches."""
    return loaders(batches())


def generator() -> object:
    """A generator of batches."""
    return loaders(batch for batch in batches())


def samples_for_batches() -> object:
    """A Dataset given to `Data.of_loaders`."""
    return loaders(SAMPLES)


def loader_for_samples() -> object:
    """A DataLoader given to `Data.of_datasets`."""
    return Data.of_datasets(train=loader(), test=loader())


def no_validation() -> object:
    """Loaders without a validation split."""
    return Data.of_loaders(train=loader(), test=loader())


def dicts() -> object:
    """Dict batches without `split`."""
    return loaders([{"input_ids": x, "labels": y} for x, y in batches()])


def dicts_with_split() -> object:
    """Dict batches with `split`."""
    own = [{"input_ids": x, "labels": y} for x, y in batches()]
    return loaders(own, split=lambda batch: (batch["input_ids"], batch["labels"]))


def unequal_keys() -> object:
    """Dict batches, of which one lacks a key."""
    first, *rest = batches()
    own = [{"x": first[0], "y": first[1]}, *({"x": x} for x, _ in rest)]
    return loaders(own, split=lambda batch: (batch["x"], batch["y"]))


def three_parts() -> object:
    """Batches of inputs, targets and something else."""
    return loaders([(x, y, y) for x, y in batches()])


def several_inputs() -> object:
    """Batches with two inputs."""
    return loaders([((x, x), y) for x, y in batches()])


def no_length() -> object:
    """A loader of an IterableDataset, without a length."""
    return loaders(DataLoader(Stream(), batch_size=8))


def given_length() -> object:
    """The same with `steps`."""
    return loaders(DataLoader(Stream(), batch_size=8), steps=4)


def endless() -> object:
    """An infinite loader with `steps`, beside finite ones."""
    finite = loader()
    train = DataLoader(Stream(endless=True), batch_size=8)
    return Data.of_loaders(train=train, validation=finite, test=finite, steps=5)


def ends_early() -> object:
    """A loader with fewer batches than `steps`."""
    return loaders(loader(), steps=6)


def empty() -> object:
    """An empty loader."""
    return loaders([])


def shuffling() -> object:
    """A loader that shuffles."""
    return loaders(loader(shuffle=True))


def own_generator() -> object:
    """A loader that shuffles with a generator of its own."""
    train = loader(shuffle=True, generator=torch.Generator().manual_seed(0))
    return Data.of_loaders(train=train, validation=loader(), test=loader())


def distributed() -> object:
    """A loader with a DistributedSampler."""
    return loaders(loader(sampler=DistributedSampler(SAMPLES, num_replicas=2, rank=0)))


def last_batch_of_one() -> object:
    """A loader whose last batch has one sample, with batch norm."""
    one_more = TensorDataset(INPUTS[:25], LABELS[:25])
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    return loaders(DataLoader(one_more, batch_size=8)), nn.Sequential(*layers)


def random_transforms() -> object:
    """A data set with random transforms."""
    return Data.of_datasets(train=Noisy(), test=Noisy())


def float_labels() -> object:
    """Numbers of classes as floats."""
    return loaders(batches(targets=LABELS.float()))


def one_hot() -> object:
    """One-hot labels as integers."""
    return loaders(batches(targets=nn.functional.one_hot(LABELS)))


def short_integers() -> object:
    """Labels of int32."""
    return loaders(batches(targets=LABELS.int()))


def label_too_high() -> object:
    """A label that the network has no output for, in a later batch."""
    return loaders([*batches(), (INPUTS[:8], LABELS[:8] + 7)])


def not_finite() -> object:
    """Targets with NaN."""
    return loaders(batches(targets=LABELS / 0))


def bytes_in_a_loader() -> object:
    """Images of uint8 in a loader."""
    return loaders(batches(INPUTS.byte()))


def bytes_in_tensors() -> object:
    """Images of uint8 in `Data.of_tensors`."""
    pair = (torch.randint(0, 255, (32, 1, 3, 2)).byte(), LABELS)
    return Data.of_tensors(train=pair, test=pair)


def doubles() -> object:
    """A table of float64 in NumPy."""
    pair = (INPUTS.double().numpy(), LABELS.numpy())
    return Data.of_tensors(train=pair, test=pair)


def strings() -> object:
    """Targets as text."""
    return loaders([(x, [str(label) for label in y.tolist()]) for x, y in batches()])


def ragged() -> object:
    """Samples of different lengths in one batch."""
    own = [(torch.zeros(2 + number % 3), 0) for number in range(32)]
    return Data.of_datasets(train=own, test=own)


def padded() -> object:
    """Batches padded to different lengths."""
    own = [(x[:, None, : 6 - number], y) for number, (x, y) in enumerate(batches())]
    layers = nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    return loaders(own), nn.Sequential(*layers, nn.Linear(8, 3))


def arrays_in_a_loader() -> object:
    """Batches of NumPy arrays."""
    return loaders([(np.asarray(x), np.asarray(y)) for x, y in batches()])


DATA = (
    *(bare_loader, bare_dataset, bare_tensors, name, list_of_batches, generator),
    *(samples_for_batches, loader_for_samples, no_validation, dicts, dicts_with_split),
    *(unequal_keys, three_parts, several_inputs, no_length, given_length, endless, ends_early),
    *(empty, shuffling, own_generator, distributed, last_batch_of_one, random_transforms),
    *(float_labels, one_hot, short_integers, label_too_high, not_finite, bytes_in_a_loader),
    *(bytes_in_tensors, doubles, strings, ragged, padded, arrays_in_a_loader),
)
"""All of them, in the order of the table."""
