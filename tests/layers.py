"""Layers of many shapes, partly alive, for tests of allocations."""

from itertools import pairwise

import torch
from hypothesis import strategies as st

from gemkit.core.selection import keep_top

SHAPES = [(1,), (5, 3), (4, 3, 3, 3), (8, 4, 3, 3), (40, 7), (2, 50), (0, 4)]
DENSITIES = [1.0, 0.9, 0.5, 0.2, 0.05, 0.014, 0.001]


@st.composite
def networks(draw):
    """Draw layers of any shapes, of which a part is alive, with an importance full of ties."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6))
    share = draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    importance = {
        f"layer{index}": torch.randint(0, 40, shape, generator=rng).float()
        for index, shape in enumerate(shapes)
    }
    alive = {
        name: torch.rand(value.shape, generator=rng) < share for name, value in importance.items()
    }
    return importance, alive


def dense(shapes):
    return {f"layer{index}": torch.ones(shape) for index, shape in enumerate(shapes)}


def counts_of(shares):
    return [shares[group] for group in shares]


def nests(allocation, importance, alive, densities=DENSITIES):
    """Tell whether every mask lies inside the one at the next higher density."""
    masks = [
        keep_top(importance, alive, allocation.keep(importance, alive, density))
        for density in densities
    ]
    return not any(
        (less[name] & ~more[name]).any() for more, less in pairwise(masks) for name in more
    )
