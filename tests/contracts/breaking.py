"""Where broken parts are filed, by the clause that must catch them."""

import random

import torch

BROKEN = {}


def breaks(clause, **fields):
    """File a broken part under the clause that must catch it."""

    def add(cls):
        BROKEN.setdefault(clause, []).append(cls(**fields))
        return cls

    return add


def by_chance():
    """Return a generator that no seed decides."""
    return torch.Generator().manual_seed(random.SystemRandom().getrandbits(60))
