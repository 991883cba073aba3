"""Contexts for tests of sanity checks: a tiny network, tiny data, any recipe."""

import torch
from tiny import CPU, PLAN, tiny_data
from torch import nn

from gemkit import Plan, load_plugins
from gemkit.pruning.finetune import finetune_plan
from gemkit.sanity.context import CheckContext
from gemkit.tickets.ticket import Ticket

REGISTRY = load_plugins(only=[])
FINETUNE = finetune_plan(Plan(epochs=2, batch_size=16))


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


def context_with(
    recipe="gem_miner",
    *,
    seed=0,
    density=0.3,
    data=None,
    network=build,
    prune_frozen=False,
    finetune=FINETUNE,
    **changes,
) -> CheckContext:
    if isinstance(recipe, str):
        recipe = REGISTRY.recipe(recipe, **changes)
    return CheckContext(
        recipe=recipe,
        density=density,
        plan=PLAN,
        data=data or tiny_data(),
        build=network,
        registry=REGISTRY,
        seed=seed,
        runtime=CPU,
        prune_frozen=prune_frozen,
        finetune_plan=finetune,
    )


def random_mask(ticket: Ticket, seed: int) -> dict[str, torch.Tensor]:
    """Draw a mask whose layers have densities from nothing to everything."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(mask.shape, generator=rng) < 2 * torch.rand((), generator=rng) - 0.4
        for name, mask in ticket.mask.items()
    }
