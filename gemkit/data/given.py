"""Refuse what is no `Data`, with the sentence that makes one of it."""

from collections.abc import Iterable

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gemkit.core.errors import DataError
from gemkit.data.source import Data

_ARRAYS = "Data.of_tensors(train=(inputs, targets), test=(inputs, targets))"
_SAMPLES = "Data.of_datasets(train=..., test=...)"
_BATCHES = "Data.of_loaders(train=..., validation=..., test=...)"


def check_data(data: object) -> Data:
    """Return the data; anything but `Data` is refused."""
    if isinstance(data, Data):
        return data
    raise DataError(f"data is a {type(data).__name__}, and gemkit needs gemkit.Data: {_way(data)}")


def _way(data: object) -> str:
    if isinstance(data, type):
        return f"give an instance, such as {_ARRAYS}"
    if hasattr(data, "load"):
        return "load it, with data.load(None)"
    if isinstance(data, DataLoader | IterableDataset):
        return _BATCHES
    if isinstance(data, str):
        return f"gemkit.run takes the names of data sets; your own data are {_ARRAYS}"
    if isinstance(data, Tensor) or _is_pair(data):
        return _ARRAYS
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return f"{_SAMPLES}, or {_BATCHES} if it holds batches"
    return _BATCHES if isinstance(data, Iterable) else f"{_ARRAYS}, {_SAMPLES} or {_BATCHES}"


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple) and all(isinstance(own, Tensor) for own in data)
