"""A laboratory for tests of sanity checks: a tiny network, tiny data, any recipe."""

import torch
from tiny import CPU, PLAN, tiny_data
from torch import nn

from gemkit import load_plugins
from gemkit.lab import Lab
from gemkit.ticket import Ticket

REGISTRY = load_plugins(only=[])


def build():
    """Make a network whose weights come from the global seed, as a model part does."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=2, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def lab_of(
    recipe="gem_miner",
    *,
    seed=0,
    density=0.3,
    data=None,
    network=build,
    prune_frozen=False,
    **changes,
) -> Lab:
    if isinstance(recipe, str):
        recipe = REGISTRY.recipe(recipe, **changes)
    return Lab(
        recipe=recipe,
        density=density,
        plan=PLAN,
        data=data or tiny_data(),
        build=network,
        registry=REGISTRY,
        seed=seed,
        runtime=CPU,
        prune_frozen=prune_frozen,
    )


def random_mask(ticket: Ticket, seed: int) -> dict[str, torch.Tensor]:
    """Draw a mask whose layers have densities from nothing to everything."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(mask.shape, generator=rng) < 2 * torch.rand((), generator=rng) - 0.4
        for name, mask in ticket.mask.items()
    }
