"""Data as PyTorch users have them: data sets, loaders, iterables of batches."""

import random

import numpy as np
import torch
from tiny import tiny_data
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gemkit import Data


def pair(samples=40, seed=0):
    """Images of the tiny data and their labels."""
    return next(tiny_data(samples=samples, seed=seed).train.batches(samples))


class Jittered(Dataset):
    """Draws random numbers from all global generators, as transforms do."""

    def __init__(self, samples=40, seed=0):
        self.images, self.labels = pair(samples, seed)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(()).item()
        return self.images[index] + 0.01 * noise, self.labels[index]


class Rows:
    """Behaves as `datasets.Dataset.with_format("torch")`: rows are dicts of tensors."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: own[key] for name, own in self.columns.items()}

    def __getitems__(self, keys):
        found = self[keys]
        return [{name: own[place] for name, own in found.items()} for place in range(len(keys))]


class Counting(IterableDataset):
    """Samples without a length, for ever if there is no end."""

    def __init__(self, end=None):
        self.end = end

    def __iter__(self):
        images, labels = pair()
        number = 0
        while self.end is None or number < self.end:
            yield images[number % 40], labels[number % 40]
            number += 1


def loader(samples=40, size=16, seed=0, **how):
    return DataLoader(TensorDataset(*pair(samples, seed)), batch_size=size, **how)


def of_loaders(train=None, **how):
    """Data of loaders: fixed ones, unless others are given."""
    given = {
        "train": loader() if train is None else train,
        "validation": loader(),
        "test": loader(),
        **how,
    }
    return Data.of_loaders(**given)


def of_datasets(train=None, **how):
    """Data of data sets."""
    own = TensorDataset(*pair())
    return Data.of_datasets(
        **{"train": own if train is None else train, "validation": own, "test": own, **how}
    )


def of_tensors():
    own = pair()
    return Data.of_tensors(train=own, validation=own, test=own)
