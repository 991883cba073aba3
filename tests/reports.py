"""Records of studies that nobody ran, for reports."""

import random
from collections.abc import Iterator
from typing import Any

METHODS = ("gem_miner", "snip", "synflow")
DENSITIES = (0.2, 0.1, 0.05, 0.02)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> =a_b%&#{}~^\\\"'|*[x]`$y$"
LAYERS = (("conv1.weight", 100), ("conv2.weight", 1000), ("head.weight", 200))


def record(method: str = "gem_miner", density: float = 0.05, seed: int = 0, **changes: Any) -> dict:
    """Return one record with everything measured; equal arguments give equal records."""
    rng = random.Random(f"{method} {density} {seed}")
    rank = METHODS.index(method) if method in METHODS else 0
    after = 0.97 - 0.02 * rank - 0.002 / density + rng.gauss(0, 0.004)
    before = after - 0.3 * rank - 0.02
    layers = [[name, max(0, round(size * density)), size] for name, size in LAYERS]
    learned = method == "gem_miner"
    search = [
        {"epoch": epoch, "metric": 0.1 * epoch, "density": 0.5 * density ** (epoch / 8)}
        | ({"strength": 1e-4 * epoch} if learned else {})
        for epoch in range(1, 9)
    ]
    return {
        "study": "fabricated",
        "variant": None,
        "pruner": method,
        "density": density,
        "model": "conv4",
        "dataset": "digits",
        "seed": seed,
        "axes": {"pruner": method, "density": density, "seed": seed},
        "config": {
            "density": density,
            "seed": seed,
            "recipe": {"pruner": method, "regularizer": {"name": "l2" if learned else "none"}},
            "search": {"epochs": 8 if learned else 0, "lr": 0.1},
        },
        "key": f"{method}-{density}-{seed}",
        "metric": "accuracy",
        "higher_is_better": True,
        "before": before,
        "after": after,
        "kept": sum(kept for _, kept, _ in layers),
        "prunable": sum(size for _, size in LAYERS),
        "layers": layers,
        "controls": {
            "shuffle": {"before": before - 0.1, "after": after - 0.04 + rng.gauss(0, 0.004)},
            "permute": {"before": before, "after": after},
        },
        "unmade": {},
        "measurements": {"linear_mode_connectivity": {"barrier": rng.random()}},
        "curves": {
            "search": search if learned else [],
            "finetune": [
                {"epoch": e, "metric": 0.9 + 0.01 * e, "density": density} for e in (1, 2)
            ],
        },
        "bound": [[0, 1.0], [3, density**0.5], [6, density]] if learned else [],
        "search_epochs": 8 if learned else 0,
        "seconds": 10.0 + rng.random(),
        "cpu_seconds": 9.0 + rng.random(),
        "collapse": None,
        "state": "done",
        "ticket": None,
    } | changes


def study(seeds: int = 5) -> list[dict]:
    """Return three methods at four densities with some seeds."""
    return list(_study(seeds))


def _study(seeds: int) -> Iterator[dict]:
    for method in METHODS:
        for density in DENSITIES:
            for seed in range(seeds):
                yield record(method, density, seed)


def unfinished() -> list[dict]:
    """Return a study with missing, failed and partial cells, and a control that was not made."""
    nothing = dict.fromkeys(("before", "after", "kept", "prunable", "search_epochs"))
    nothing |= {"layers": [], "controls": {}, "measurements": {}, "curves": {}, "bound": []}
    return [
        record(seed=0, unmade={"reinit": "no weights to draw"}),
        record(seed=1, **nothing | {"state": "missing"}),
        record(seed=2, **nothing | {"state": "failed", "problem": "the loss is not finite"}),
        record(seed=3, after=None, state="partial", controls={}),
        record("snip", seed=0, after=None, controls={}, collapse="'conv1' lost every weight"),
    ]
