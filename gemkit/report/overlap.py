"""How much the masks of two tickets have in common: the Jaccard index, by method and density.

|A ∩ B| / |A ∪ B| is 1 for equal masks. Beside it stands what chance gives: the index of random
masks that keep as many weights of each layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemkit.core.errors import GemkitError, TicketError
from gemkit.report.groups import Group, Place
from gemkit.report.records import Record
from gemkit.tickets.ticket import Layer, Ticket

MOST_SEEDS = 5
"""Tickets of a group that are compared; ten pairs are enough for a mean."""
_BITS = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint16)


class Mask(NamedTuple):
    """The mask of a ticket, eight weights to a byte, and what each layer keeps."""

    seed: int
    bits: NDArray[np.uint8]
    layers: tuple[Layer, ...]


class Overlap(NamedTuple):
    """Two methods at one density: the mean index over pairs of tickets, and that of chance."""

    place: Place
    density: float
    first: str
    second: str
    mean: float
    chance: float
    pairs: int
    same_seed: bool
    """Whether the pairs have the same seed; within a method they have different ones."""


class Overlaps(NamedTuple):
    """All pairs of methods, and why tickets could not be compared."""

    found: tuple[Overlap, ...]
    problems: tuple[str, ...]


def overlaps(groups: Sequence[Group], root: Path) -> Overlaps:
    """Compare the tickets of every pair of groups that have the same place and density.

    Ticket files are plain files below `root`, by the relative paths of the records.
    """
    problems: list[str] = []
    cells: dict[tuple[Place, float], list[Group]] = {}
    for one in groups:
        cells.setdefault((one.place, one.density), []).append(one)
    found: list[Overlap] = []
    for (place, density), own in cells.items():
        masks = {one.label: _masks(one.records, root, problems) for one in own}
        found += _compared(place, density, {name: some for name, some in masks.items() if some})
    if problems and not any((root / one).exists() for one in _tickets(groups)):
        problems = [f"the ticket files that it compares are not in {root}"]
    return Overlaps(tuple(found), tuple(dict.fromkeys(problems)))


def _tickets(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the files that records name and that may be looked for."""
    for one in (record.ticket for own in groups for record in own.records if record.ticket):
        if not PurePosixPath(one).is_absolute() and "\0" not in one:
            yield one


def _masks(records: Sequence[Record], root: Path, problems: list[str]) -> list[Mask]:
    masks = []
    for one in [one for one in records if one.ticket][:MOST_SEEDS]:
        try:
            masks.append(_mask(one, root))
        except (GemkitError, OSError) as error:
            problems.append(str(error))
    return masks


def _mask(record: Record, root: Path) -> Mask:
    ticket = Ticket.load(confined(record.ticket or "", root), within=root)
    flat = np.concatenate([mask.flatten().numpy() for mask in ticket.mask.values()])
    return Mask(record.seed, np.packbits(flat), tuple(ticket.layers))


def confined(path: str, root: Path) -> Path:
    """Return a file below a folder; refuse an absolute path, and one that leads out of it."""
    given = PurePosixPath(path)
    if given.is_absolute() or ".." in given.parts or not given.parts or "\0" in path:
        raise TicketError(f"ticket '{path}' is not inside {root}; give a path relative to it")
    return root / given


def _compared(place: Place, density: float, masks: Mapping[str, Sequence[Mask]]) -> list[Overlap]:
    """Compare different seeds of one method, and the same seed of two methods."""
    found = []
    for first, own in masks.items():
        pairs = [pair for pair in combinations(own, 2) if _alike(*pair)]
        if pairs:
            found.append(_mean(place, density, first, first, pairs, same_seed=False))
    for (first, own), (second, others) in combinations(masks.items(), 2):
        both = [(a, b) for a in own for b in others if _alike(a, b)]
        paired = [(a, b) for a, b in both if a.seed == b.seed]
        if both:
            pairs = paired or both
            found.append(_mean(place, density, first, second, pairs, same_seed=bool(paired)))
    return found


def _alike(one: Mask, other: Mask) -> bool:
    """Return whether two masks belong to the same weights."""
    return [(a.name, a.shape) for a in one.layers] == [(b.name, b.shape) for b in other.layers]


def _mean(
    place: Place,
    density: float,
    first: str,
    second: str,
    pairs: Sequence[tuple[Mask, Mask]],
    *,
    same_seed: bool,
) -> Overlap:
    index = fmean(jaccard(a.bits, b.bits) for a, b in pairs)
    chance = fmean(by_chance(a.layers, b.layers) for a, b in pairs)
    return Overlap(place, density, first, second, index, chance, len(pairs), same_seed)


def jaccard(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Return the Jaccard index of two packed masks; two empty ones are equal."""
    union = int(_BITS[one | other].sum(dtype=np.int64))
    return int(_BITS[one & other].sum(dtype=np.int64)) / union if union else 1.0


def by_chance(one: Sequence[Layer], other: Sequence[Layer]) -> float:
    """Return the index of the expected overlap of random masks with these layer counts."""
    common = sum(
        a.kept * b.kept / a.prunable for a, b in zip(one, other, strict=True) if a.prunable
    )
    union = sum(a.kept + b.kept for a, b in zip(one, other, strict=True)) - common
    return common / union if union else 1.0
