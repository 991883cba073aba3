"""Baselines every method must beat: magnitude at initialization, chance, and no pruning at all."""

from typing import Any

import torch

from gemkit.core.probe import Probe
from gemkit.core.tensors import Tensors
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Magnitude(MeasuredScores):
    """The size of the weight: |w|."""

    name = "magnitude"
    needs_signal = False

    def importance(self, probe: Probe) -> Tensors:
        """Return |w|."""
        return {name: weight.abs() for name, weight in probe.weights.items()}


class Random(MeasuredScores):
    """Chance: every weight as good as any other, drawn from the seed."""

    name = "random"
    needs_signal = False

    def importance(self, probe: Probe) -> Tensors:
        """Draw U[0, 1) for every weight."""
        return {
            name: torch.rand(weight.shape, generator=probe.rng, dtype=weight.dtype).to(weight)
            for name, weight in probe.weights.items()
        }


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [Magnitude, Random]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register the baselines."""
    return {
        "magnitude": {
            "help": "The largest weights at initialization, over the whole network",
            "scores": "magnitude",
        },
        "random": {
            "help": "Weights drawn by chance, the same density in every layer",
            "scores": "random",
            "allocation": "uniform",
        },
        "dense": {
            "help": "No pruning: the dense network, as the upper reference",
            "scores": "magnitude",
            "density": 1.0,
        },
    }
