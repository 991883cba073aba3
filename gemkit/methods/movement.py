"""Movement pruning (Sanh et al., "Movement Pruning: Adaptive Sparsity by Fine-Tuning", 2020).

    w_eff = w ⊙ 1[s among the top k]      s ← s − η · w · ∂L/∂w_eff      w trains too

A score grows while its weight moves away from zero: the straight-through gradient under top-k
adds up −w · ∂L/∂w_eff. The density falls along a cubic curve (Zhu and Gupta 2017).
"""

from typing import Any

from gemkit.plugins.markers import hookimpl


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register movement pruning."""
    return {
        "movement": {
            "help": "Movement pruning: scores and weights train together (Sanh et al. 2020)",
            "train": "both",
            "scores": {"name": "constant", "start": 0.0},
            "rounding": "topk",
            "allocation": "global",
            "schedule": {"name": "cubic", "every": 1},
        }
    }
