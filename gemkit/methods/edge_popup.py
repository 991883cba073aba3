"""Edge-Popup (Ramanujan et al. 2020) and the steps from it to Gem-Miner (Rare Gems, ablation).

    w_eff = w ⊙ 1[|s| among the top k]      s ← s − η · sign(s) ⊙ w ⊙ ∂L/∂w_eff

    edge_popup      top k within every layer, k = density from the first step
    global_ep       top k over the whole network
    gradual_ep      … with k falling exponentially to the target
    gradual_ep_l2   … and an L2 penalty on the scores

One part changes per row. Weights are never frozen: a weight outside the top k may return. As in the
authors' runs the scores decay by 5e-4 in every row, so the last one adds to a penalty that is there
already. Theirs start the gradual rows one freeze below density 1; these start at 1.
"""

import math
from typing import Any, ClassVar

import torch

from gemkit.builtin.initializers import fan_in
from gemkit.core.tensors import Tensors
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.plugins.markers import hookimpl


class PopupScores(LearnedScores):
    """Signed scores of any size, ranked by magnitude (Edge-Popup)."""

    name = "popup"
    fastest_lr: ClassVar[float] = 0.3
    default_weight_decay: ClassVar[float] = 5e-4

    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw s ~ U(−1/√fan_in, 1/√fan_in)."""
        return {
            name: (torch.rand(weight.shape, generator=rng, dtype=weight.dtype) * 2 - 1)
            / math.sqrt(fan_in(weight))
            for name, weight in weights.items()
        }

    def view(self, scores: Tensors) -> Tensors:
        """Return |s|."""
        return dict(zip(scores, torch._foreach_abs(list(scores.values())), strict=True))

    def slope(self, scores: Tensors) -> Tensors:
        """Return sign(s), since the magnitude is taken outside the straight-through step."""
        return dict(zip(scores, torch._foreach_sign(list(scores.values())), strict=True))

    def project_(self, scores: Tensors) -> None:
        """Leave the scores free."""


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [PopupScores]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register Edge-Popup and its variants."""
    edge_popup = {
        "help": "Edge-Popup: the top scores of every layer, learned (Ramanujan et al. 2020)",
        "scores": "popup",
        "rounding": "topk",
        "allocation": "uniform",
        "schedule": "constant",
        "init": "signed_constant",
    }
    global_ep = edge_popup | {
        "help": "Edge-Popup with one ranking over the whole network",
        "allocation": "global",
    }
    gradual_ep = global_ep | {
        "help": "Global Edge-Popup whose density falls exponentially to the target",
        "schedule": "exponential",
    }
    gradual_ep_l2 = gradual_ep | {
        "help": "Gradual global Edge-Popup with an L2 penalty on the scores",
        "regularizer": "l2",
    }
    return {
        "edge_popup": edge_popup,
        "global_ep": global_ep,
        "gradual_ep": gradual_ep,
        "gradual_ep_l2": gradual_ep_l2,
    }
