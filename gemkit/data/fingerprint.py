"""Fingerprints of data: a run that is resumed, and a check, must see the data they began with.

Images held in memory are hashed whole. Of image files the names, relative to their folder, and the
sizes are hashed, and the content of a sample (see `gemkit.data.stream.files_digest`). Of a source
without a method `digest`, only the first images are.

A fingerprint cannot notice files outside the sample whose pixels changed and whose size did not,
how images are decoded, normalised and augmented, or data that change while a run uses them. Where
the files are and when they were changed does not matter.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gemkit.errors import DataError
from gemkit.wording import number_of

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_FIRST = 64
"""Images that are hashed of a source without a `digest`."""
SPLITS = {"train": "training", "validation": "validation", "test": "test"}
"""The splits, and what a sentence calls their images."""


class _Source(Protocol):
    """What a fingerprint needs of a `gemkit.data.source.Source`."""

    def targets(self) -> Tensor: ...
    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def to(self, device: torch.device) -> "_Source": ...


class SplitFingerprint(BaseModel):
    """The fingerprint of one split."""

    model_config = _STRICT

    count: int = Field(ge=0, description="how many images there are")
    images: str = Field(max_length=64, description="SHA-256 of the images, or of their files")
    labels: str = Field(max_length=64, description="SHA-256 of the labels")


class Fingerprint(BaseModel):
    """What tells a data set from others."""

    model_config = _STRICT

    classes: int = Field(ge=1, description="how many classes there are")
    names: str = Field(max_length=64, description="SHA-256 of the class names; empty without any")
    train: SplitFingerprint
    validation: SplitFingerprint
    test: SplitFingerprint

    def differences(self, now: "Fingerprint") -> list[str]:
        """Say how other data differ from these; content is left out where counts or names do."""
        found = []
        if self.classes != now.classes:
            found.append(f"{number_of(now.classes, 'class', 'classes')} instead of {self.classes}")
        elif self.names != now.names:
            found.append("the class names differ")
        pairs = [(words, getattr(self, part), getattr(now, part)) for part, words in SPLITS.items()]
        found += [
            f"{number_of(new.count, f'{words} image')} instead of {old.count:,}"
            for words, old, new in pairs
            if old.count != new.count
        ]
        return found or [
            f"the {words} {what} differ"
            for words, old, new in pairs
            for what in ("images", "labels")
            if getattr(old, what) != getattr(new, what)
        ]


def check_same(then: Fingerprint | None, now: Fingerprint, whose: str, way_out: str) -> None:
    """Refuse data that differ from those recorded, if any are; `whose` says what recorded them."""
    if then is not None and then != now:
        raise DataError(
            f"the data are not those {whose}: {', '.join(then.differences(now))}; {way_out}"
        )


def fingerprint_of(
    classes: int, names: Sequence[str], sources: Mapping[str, _Source]
) -> Fingerprint:
    """Return the fingerprint of a data set; `sources` are its splits by name."""
    text = "\0".join(names).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(text).hexdigest() if names else ""
    parts = {part: _of_split(source) for part, source in sources.items()}
    return Fingerprint(classes=classes, names=digest, **parts)


def _of_split(source: _Source) -> SplitFingerprint:
    labels = source.targets()
    digest = getattr(source, "digest", None)
    if digest is None:
        first, _ = next(iter(source.to(torch.device("cpu")).batches(_FIRST)))
        images = tensor_digest(first)
    else:
        images = digest()
    return SplitFingerprint(count=len(labels), images=images, labels=tensor_digest(labels))


def tensor_digest(tensor: Tensor) -> str:
    """Hash dtype, shape and values of a tensor."""
    sha = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    values = tensor.detach().cpu().contiguous()
    sha.update(values.view(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
