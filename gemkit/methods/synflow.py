"""SynFlow (Tanaka et al., "Pruning neural networks without any data by iteratively conserving
synaptic flow", 2020).

    R = 1ᵀ f_|θ|(1)          the summed output for an input of ones, every tensor replaced by |θ|
    s = |w| ⊙ ∂R/∂|w|        keep the largest, over the whole network, in 100 rounds of scoring

Every tensor means weights, biases, the scale and shift of norms and the running statistics of batch
norm, which works in evaluation mode. No data are used, only the shape of an input. In round k the
density falls to target^(k/100), and the scores are those of what the round before has left. The
scores of a layer sum to R, whatever its size; so while rounds are small no layer is pruned away.

R grows with depth beyond any single-precision number, so all computing is in double precision.
Activations that saturate, gates, attention and norms, under which R would not grow in proportion
to each layer, have stand-ins: see `gemkit.methods.positive_flow`.
"""

from typing import Any

import torch

from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Probe, gradients
from gemkit.core.tensors import Tensors, names_where
from gemkit.methods.positive_flow import PositiveFlow
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Synflow(MeasuredScores):
    """How much of the flow from input to output passes a weight: |w| · ∂R/∂|w| (SynFlow)."""

    name = "synflow"

    def importance(self, probe: Probe) -> Tensors:
        """Return |w| · ∂R/∂|w| in double precision."""
        if probe.shape is None:
            raise ImportanceError(
                "SynFlow uses no data but the shape of an input: give it one batch to see that"
            )
        if probe.indices:
            raise ImportanceError(
                "SynFlow passes an input of ones through the network, and these inputs are indices "
                "such as tokens, which have no size; use other scores, such as 'snip'"
            )
        # Apple's GPUs have no double precision.
        device = torch.device("cpu") if _device(probe).type == "mps" else _device(probe)
        state = {
            name: tensor.to(device, torch.float64).abs()
            for name, tensor in {**probe.rest(), **probe.weights}.items()
            if tensor.is_floating_point()
        }
        weights = {name: state[name].requires_grad_() for name in probe.weights}
        ones = torch.ones(1, *probe.shape, dtype=torch.float64, device=device)
        with PositiveFlow():
            flow = probe.forward(state, ones).sum()
        slopes = gradients(flow, weights)
        score = {name: weight.detach() * slopes[name] for name, weight in weights.items()}
        _check(probe.alive, weights, slopes, score)
        return score


def _device(probe: Probe) -> torch.device:
    return next(iter(probe.weights.values())).device


@torch.no_grad()
def _check(alive: Tensors, weights: Tensors, slopes: Tensors, score: Tensors) -> None:
    """Refuse scores that are no flow, after one look at the device.

    In a network that lost nothing yet, flow must pass every layer.
    """
    pruned, zero, stopped, overflowing, negative = names_where(
        {name: ~mask.all().to(score[name].device) for name, mask in alive.items()},
        {name: ~weight.any() for name, weight in weights.items() if weight.numel()},
        {name: ~slope.any() for name, slope in slopes.items() if slope.numel()},
        {name: ~value.isfinite().all() for name, value in score.items()},
        {name: (value < 0).any() for name, value in score.items()},
    )
    if zero and not pruned:
        raise ImportanceError(
            f"all weights of '{zero[0]}' are zero, so no synaptic flow passes it: draw them, for "
            "example with the initializer 'kaiming_normal', or use other scores"
        )
    if stopped and not pruned:
        raise ImportanceError(
            f"no synaptic flow passes '{stopped[0]}': a factor after it is zero from the start "
            "(build the model without such an initialization), or SynFlow has no stand-in for "
            "an activation that saturates; use other scores, such as 'snip' or 'magnitude'"
        )
    if overflowing:
        raise ImportanceError(
            f"the synaptic flow through '{overflowing[0]}' overflows even double precision: start "
            "from smaller weights, or use other scores"
        )
    if negative:
        raise ImportanceError(
            f"the synaptic flow through '{negative[0]}' is negative: the network subtracts "
            "something from its signal, which SynFlow has no sense for; use other scores"
        )


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Synflow]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register SynFlow."""
    return {
        "synflow": {
            "help": "SynFlow: without data, conserving flow in 100 rounds (Tanaka et al. 2020)",
            "scores": "synflow",
            "schedule": {"name": "exponential", "rounds": 100},
        }
    }
