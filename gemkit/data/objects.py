"""Make the splits of a data set from data sets and loaders of PyTorch."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from gemkit.core.errors import DataError, GemkitWarning
from gemkit.data.batch import Split
from gemkit.data.fingerprint import SPLITS
from gemkit.data.readers import (
    Collate,
    DatasetReader,
    LoaderReader,
    check_dataset,
    check_loader,
)
from gemkit.data.splits import split_stratified
from gemkit.data.stream import StreamSource, stream


def dataset_sources(
    name: str,
    given: dict[str, Any],
    *,
    split: Split | None,
    collate: Collate | None,
    workers: int,
    classes: int | None,
) -> dict[str, StreamSource]:
    """Return a source for every split; a missing validation split is a tenth of train."""
    where = {part: f"data set '{name}', {part} split" for part in SPLITS}
    given = {part: own for part, own in given.items() if own is not None or part != "validation"}
    for part, own in given.items():
        check_dataset(own, where[part])
    chosen = {part: torch.arange(len(own)) for part, own in given.items()}
    if "validation" not in given:
        given["validation"] = given["train"]
        held = split_stratified(torch.zeros(len(given["train"])), (9, 1), seed=0)
        chosen["train"], chosen["validation"] = held
        if not len(held[1]):
            raise DataError(
                f"{where['validation']}: {len(held[0])} training samples leave none for it; give "
                "validation="
            )
    sources = {}
    for part in SPLITS:
        reader = DatasetReader(given[part], chosen[part], collate, workers)
        sources[part] = stream(reader, where[part], split, classes)
    return _alike(name, sources)


def loader_sources(
    name: str,
    given: dict[str, Iterable[Any] | None],
    *,
    split: Split | None,
    steps: int | None,
    classes: int | None,
) -> dict[str, StreamSource]:
    """Return a source for every split; `steps` are those of train."""
    if given["validation"] is None:
        raise DataError(
            f"data set '{name}', validation split: none is given, and a loader cannot be divided; "
            "give validation=, batches that nothing is trained on"
        )
    sources = {}
    for part, loader in given.items():
        where = f"data set '{name}', {part} split"
        own = steps if part == "train" else None
        reader = LoaderReader(check_loader(loader, where, own), own, where)
        sources[part] = stream(reader, where, split, classes)
    sources["train"].steps(1)  # refuses a loader without a length
    return _alike(name, sources)


def _alike(name: str, sources: dict[str, StreamSource]) -> dict[str, StreamSource]:
    """Refuse splits of different kinds; warn where batches are not always the same."""
    kinds = {part: source.kind for part, source in sources.items()}
    if len(set(kinds.values())) > 1:
        raise DataError(f"data set '{name}': its splits differ: {kinds}")
    if moving := [part for part, source in sources.items() if not source.is_fixed]:
        warnings.warn(
            f"data set '{name}': the first batch of {' and '.join(moving)} was another when it was "
            "read again, so equal seeds do not give equal bits, nor does a resumed run; "
            f"{sources[moving[0]].way_out}",
            GemkitWarning,
            stacklevel=4,
        )
    return sources
