"""Data sets that are not images, generated the same on every machine: a table and sequences.

All random numbers are bytes of SHAKE-256, and everything is computed in integers, so the bits
depend on nothing but this file. Values are divided by powers of two at the end, which is exact.
"""

import hashlib
from itertools import accumulate, pairwise
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.data.part import DatasetPart
from gemkit.data.source import Data
from gemkit.plugins.markers import hookimpl

_SIZES = (6000, 1000, 2000)
"""Samples for training, validation and test."""
_WRONG = 20
"""One label in so many is drawn at random."""

CLASSES = 5
COLUMNS = 20
LETTERS = 14
MARK = LETTERS
"""The token that divides a sequence; letters come before it in the alphabet."""
LENGTH = 17


class Table(DatasetPart):
    """A synthetic table of 9,000 rows with 20 columns and five classes; needs no download.

    Every class has a score of three columns, a · b + 24 c, and the highest score wins. Three more
    columns are noisy sums of others, and two are noise. One label in twenty is drawn at random.
    Always split into the same 6,000 rows for training, 1,000 for validation and 2,000 for test.
    """

    name: ClassVar[str] = "table"

    target: Literal["class", "value"] = Field(
        default="class",
        description="the class with the highest score, or that score with noise (for mse)",
    )

    def load(self, folder: Path | None) -> Data:
        """Compute the table; `folder` is ignored."""
        rows = _normal("table columns", sum(_SIZES), COLUMNS)
        a, b, c = (rows[:, start : 3 * CLASSES : 3] for start in range(3))
        scores = a * b + 24 * c
        rows[:, 15:18] = (rows[:, 0:3] + rows[:, 3:6] + rows[:, 15:18]) // 2
        highest, labels = (8 * scores + torch.arange(CLASSES)).max(1)  # without ties
        inputs = rows.float() / 32
        if self.target == "value":
            noise = _normal("table noise", sum(_SIZES))
            return _split(self.name, inputs, (highest + 64 * noise - 14_700).float() / 2**13)
        return _split(self.name, inputs, _with_wrong("table labels", labels, CLASSES))


class Sequences(DatasetPart):
    """9,000 synthetic sequences of 17 tokens, of 15 kinds, in four classes; needs no download.

    A mark divides 16 letters into two parts of odd lengths. The class says for each part whether
    most of its letters are of the first half of the alphabet. One label in twenty is drawn at
    random. Always split into the same 6,000 sequences for training, 1,000 for validation and 2,000
    for test.
    """

    name: ClassVar[str] = "sequences"

    def load(self, folder: Path | None) -> Data:
        """Compute the sequences; `folder` is ignored."""
        count, positions = sum(_SIZES), torch.arange(LENGTH)
        place = 3 + 2 * _below(5, "sequence marks", count, 1)
        tokens = _below(LETTERS, "sequence letters", count, LENGTH).scatter_(1, place, MARK)
        sign = torch.where(tokens < LETTERS // 2, 1, -1)
        before = (sign * (positions < place)).sum(1) > 0
        after = (sign * (positions > place)).sum(1) > 0
        labels = _with_wrong("sequence labels", 2 * before.long() + after.long(), 4)
        return _split(self.name, tokens, labels)


def _below(limit: int, purpose: str, *shape: int) -> Tensor:
    """Return pseudo-random integers below a limit, the same for a purpose on every machine."""
    count = torch.Size(shape).numel()
    stream = bytearray(hashlib.shake_256(f"gemkit {purpose}".encode()).digest(4 * count))
    parts = torch.frombuffer(stream, dtype=torch.uint8).view(count, 4).long()
    words = parts[:, 0] + (parts[:, 1] << 8) + (parts[:, 2] << 16) + (parts[:, 3] << 24)
    return (words * limit >> 32).view(shape)


def _normal(purpose: str, *shape: int) -> Tensor:
    """Return sums of four integers below 64, less their mean: almost normal, deviation 37."""
    return _below(64, purpose, *shape, 4).sum(-1) - 126


def _with_wrong(purpose: str, labels: Tensor, classes: int) -> Tensor:
    """Draw one label in `_WRONG` again."""
    drawn = _below(classes * _WRONG, purpose, len(labels))
    return torch.where(drawn < classes, drawn, labels)


def _split(name: str, inputs: Tensor, targets: Tensor) -> Data:
    """Split samples, which are independent of each other, in their order."""
    ends = list(accumulate(_SIZES, initial=0))
    train, validation, test = (
        (inputs[start:end], targets[start:end]) for start, end in pairwise(ends)
    )
    return Data.of_tensors(train=train, validation=validation, test=test, name=name)


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register the generated data sets."""
    return [Table, Sequences]
