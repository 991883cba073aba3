"""Fingerprints of data sets, so that resumed runs and sanity checks use the original data.

Images in memory are hashed completely. Of image files, the relative names, the sizes and the
content of a sample are hashed (see `file_source.files_digest`). Of a stream, the first batch is
hashed if it is always the same, and number formats and shapes otherwise. Of any other source
without a method `digest`, the first images are hashed.

A fingerprint does not detect files outside the sample that changed without changing size, changes
in decoding, normalisation and augmentation, or data that change during a run. Location and
modification times of files do not matter.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.text import number_of

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_FIRST = 64
"""Number of images hashed of a source without a `digest`."""
SPLITS = {"train": "training", "validation": "validation", "test": "test"}
"""The splits, and the adjective for their images in messages."""


class _Source(Protocol):
    """What a fingerprint needs of a `gemkit.data.source.Source`."""

    def __len__(self) -> int: ...
    def targets(self) -> Tensor: ...
    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def to(self, device: torch.device) -> "_Source": ...


class SplitFingerprint(BaseModel):
    """The fingerprint of one split."""

    model_config = _STRICT

    count: int = Field(ge=0, description="number of images")
    images: str = Field(max_length=64, description="SHA-256 of the images, or of their files")
    labels: str = Field(max_length=64, description="SHA-256 of the labels")


class Fingerprint(BaseModel):
    """The fingerprint of a data set."""

    model_config = _STRICT

    classes: int | None = Field(
        default=None,
        ge=1,
        exclude_if=lambda classes: classes is None,  # TOML has no word for it
        description="number of classes, if targets are classes",
    )
    names: str = Field(max_length=64, description="SHA-256 of the class names; empty if unnamed")
    train: SplitFingerprint
    validation: SplitFingerprint
    test: SplitFingerprint

    def differences(self, now: "Fingerprint") -> list[str]:
        """List the differences; content is compared only if counts and class names agree."""
        found = []
        if self.classes != now.classes:
            now_has = number_of(now.classes, "class", "classes") if now.classes else "no classes"
            found.append(f"{now_has} instead of {self.classes or 'none'}")
        elif self.names != now.names:
            found.append("the class names differ")
        pairs = [(word, getattr(self, name), getattr(now, name)) for name, word in SPLITS.items()]
        found += [
            f"{number_of(new.count, f'{word} image')} instead of {old.count:,}"
            for word, old, new in pairs
            if old.count != new.count
        ]
        return found or [
            f"the {word} {what} differ"
            for word, old, new in pairs
            for what in ("images", "labels")
            if getattr(old, what) != getattr(new, what)
        ]


def check_same(then: Fingerprint | None, now: Fingerprint, whose: str, way_out: str) -> None:
    """Refuse data that differ from a recorded fingerprint; `whose` says what recorded it."""
    if then is not None and then != now:
        raise DataError(
            f"the data are not those {whose}: {', '.join(then.differences(now))}; {way_out}"
        )


def fingerprint_of(
    classes: int | None, names: Sequence[str], sources: Mapping[str, _Source]
) -> Fingerprint:
    """Return the fingerprint of a data set; `sources` are its splits by name."""
    text = "\0".join(names).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(text).hexdigest() if names else ""
    splits = {split: _split_fingerprint(source) for split, source in sources.items()}
    return Fingerprint(classes=classes, names=digest, **splits)


def _split_fingerprint(source: _Source) -> SplitFingerprint:
    digest = getattr(source, "digest", None)
    if digest is None:
        first, _ = next(iter(source.to(torch.device("cpu")).batches(_FIRST)))
        images = tensor_digest(first)
    else:
        images = digest()
    of_targets = getattr(source, "targets_digest", None)
    labels = of_targets() if of_targets else tensor_digest(source.targets())
    return SplitFingerprint(count=len(source), images=images, labels=labels)


def tensor_digest(tensor: Tensor) -> str:
    """Hash dtype, shape and values of a tensor."""
    sha = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    values = tensor.detach().cpu().contiguous()
    sha.update(values.view(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
