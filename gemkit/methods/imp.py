"""Pruning while training: iterative magnitude pruning, learning-rate rewinding, gradual magnitude.

    repeat: train a round, take the smallest 20 % of the surviving weights, rewind

The methods differ in what is rewound after every freeze (`gemkit.parts.recipe.Rewind`):

    cold                   weights and clock to the very beginning (Frankle and Carbin 2019)
    warm                   weights and clock to an early moment k (Frankle et al. 2020)
    learning-rate          the clock alone; weights train on (Renda et al. 2020)
    gradual                nothing (Zhu and Gupta 2017)

After rewinding to k a round has T − k steps left, on the same learning rates and batches as the
first round had from there. "Long" rounds last as long as training does, "short" ones 5 epochs, as
in the scripts of the Rare Gems authors (their paper says 8: `schedule.every`). 2.56 epochs are
their 1000 steps of CIFAR-10 in batches of 128; they restart the clock even so (`rewind.clock = 0`).
"""

from typing import Any

from gemkit.plugins.markers import hookimpl

_EARLY = 2.56
"""Epochs after which a network is stable enough to return to."""


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register them all."""
    return {
        f"imp_{length}_{start}": {
            "help": f"Iterative magnitude pruning, {rounds}, back to {begin} ({source})",
            "scores": "magnitude",
            "schedule": {"name": "iterative", **period},
            "rewind": {"weights": moment, "clock": moment},
        }
        for length, rounds, period in (
            ("short", "rounds of 5 epochs", {"every": 5}),
            ("long", "rounds of full training", {}),
        )
        for start, begin, moment, source in (
            ("cold", "the initial weights", 0.0, "Frankle and Carbin 2019"),
            ("warm", "early weights", _EARLY, "Frankle et al. 2020"),
        )
    } | {
        "lr_rewinding": {
            "help": "Iterative magnitude pruning that rewinds the clock only (Renda et al. 2020)",
            "scores": "magnitude",
            "schedule": "iterative",
            "rewind": {"clock": 0.0},
        },
        "gradual_magnitude": {
            "help": "The smallest weights of every layer go during training (Zhu and Gupta 2017)",
            "scores": "magnitude",
            "allocation": "uniform",
            "schedule": {"name": "cubic", "every": 1},
        },
    }
