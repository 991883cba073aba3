"""Concrete Ticket Search (Arora and Teuscher, arXiv 2512.07142) for gemkit: CTS and CTS-KL.

Weights θ stay as they are. Every weight has log-odds α of being kept, which start at those of the
target density κ and are learned by gradient descent:

    z = σ((α + logit u) / τ),  u ~ U(0, 1),  τ = 2/3        gates of the forward pass, f(x; θ ⊙ z)
    R = 100·CE (CTS)   or   100·KL(p_sparse ‖ p_dense) (CTS-KL)
    S = 100·(Σ σ(α) / (1.1·κ·N) − 1)
    λ* = ‖∇R‖ / ‖∇S‖  where S ≥ 0, otherwise 0
    λ ← 0.99·λ + 0.01·λ*,   α ← Adam(∇R + λ·∇S)             GradBalance
    ticket: the κ·N highest α of the whole network

As in the authors' program, gates are soft in the forward pass too, all layers compete, weights are
Kaiming-normal, and batch norm uses the statistics of the batch, because theirs keeps no others.
"""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gemkit import LearnedScores, Now, Regularizer, Rounding, Scores, Tensors, hookimpl

PAPER_STEPS = 20 * 391
"""Optimizer steps of the paper's searches: 20 epochs of CIFAR-10 in batches of 128."""
_SMALLEST = 1e-7
"""Probabilities are kept this far from 0 and 1, whose log-odds are infinite."""


def logit(density: float) -> float:
    """Return the log-odds of a density."""
    inside = min(max(density, _SMALLEST), 1 - _SMALLEST)
    return math.log(inside) - math.log1p(-inside)


class GateLogits(LearnedScores):
    """Log-odds of keeping a weight, counted from those of the target density: α − logit κ.

    They start at 0, and may be any number.
    """

    name = "gate_logits"
    default_optimizer = "adam"
    fastest_lr = 0.3

    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Return zeros."""
        return {
            name: torch.zeros(weight.shape, dtype=weight.dtype) for name, weight in weights.items()
        }

    def view(self, scores: Tensors) -> Tensors:
        """Return them as they are."""
        return scores

    def slope(self, scores: Tensors) -> None:
        """View is the identity."""

    def project_(self, scores: Tensors) -> None:
        """Leave them free."""

    def default_lr(self, steps: int) -> float:
        """Return the paper's 0.1 for the paper's length, and more for fewer steps, up to 0.3."""
        return min(self.fastest_lr, max(0.1, 0.1 * PAPER_STEPS / max(1, steps)))


class SoftConcrete(Rounding):
    """Soft random gates: z = σ((α + logit u) / τ), u uniform (Maddison et al. 2017).

    The scores are α − logit κ, with the target density κ. A ticket keeps the highest.
    """

    name = "soft_concrete"
    soft = True

    temperature: float = Field(
        default=2 / 3, ge=0.01, le=100, description="τ; lower is closer to gates of 0 and 1"
    )

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Draw the gates."""
        gates = torch._foreach_add(list(view.values()), logit(now.target))
        torch._foreach_add_(gates, _noise(view, now.rng))
        torch._foreach_div_(gates, self.temperature)
        torch._foreach_sigmoid_(gates)
        return dict(zip(view, gates, strict=True))

    def slope(self, view: Tensors, masks: Tensors, now: Now) -> Tensors:
        """Return dz/dα = z·(1 − z) / τ."""
        slopes = torch._foreach_mul(list(masks.values()), list(masks.values()))
        slopes = torch._foreach_sub(list(masks.values()), slopes)
        torch._foreach_div_(slopes, self.temperature)
        return dict(zip(view, slopes, strict=True))

    def hard(self, view: Tensors, now: Now) -> Tensors:
        """Keep the highest, as many as the last freeze left."""
        return now.select(view)


def _noise(view: Tensors, rng: torch.Generator) -> list[Tensor]:
    """Draw logit u for all layers at once."""
    sizes = [own.numel() for own in view.values()]
    like = next(iter(view.values()))
    flat = torch.logit(torch.rand(sum(sizes), generator=rng).to(like), eps=_SMALLEST)
    parts = zip(torch.split(flat, sizes), view.values(), strict=True)
    return [part.view(own.shape) for part, own in parts]


class GradBalance(Regularizer):
    """Hold the expected density of log-odds scores at the target, by a weight λ that balances.

    S = 100·(Σ σ(α) / (slack·κ·N) − 1). While S ≥ 0, λ moves towards ‖∇R‖ / ‖∇S‖, at which the loss
    and the penalty pull equally, and otherwise towards 0. λ is the state of this part.
    """

    name = "grad_balance"

    slack: float = Field(
        default=1.1, ge=0.01, le=100, description="expected density to hold, in multiples of κ"
    )
    smoothing: float | None = Field(
        default=None,
        ge=1e-6,
        le=1,
        description="part of the way that λ goes in a step; unset: 0.01 in searches of 7820 steps "
        "or more, as in the paper, and in proportion more in shorter ones",
    )

    def init_state(self, weights: Tensors) -> Tensors:
        """Begin with λ = 0."""
        return {"weight": next(iter(weights.values())).new_zeros(())}

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·S."""
        return now.state["weight"] * self._excess(self._gates(values, now), now)

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Move λ, and add λ·∇S to ∇R, which `gradients` hold; ∂S/∂α ∝ σ(α)·(1 − σ(α))."""
        gates, weight = self._gates(values, now), now.state["weight"]
        pulls = list(torch._foreach_sub(gates, torch._foreach_mul(gates, gates)))
        torch._foreach_mul_(pulls, 100 / self._held(gates, now))
        balance = _norm(list(gradients.values())) / _norm(pulls).clamp_min(1e-12)
        wanted = torch.where(self._excess(gates, now) >= 0, balance, 0)
        pace = self.smoothing or min(1.0, max(0.01, 0.01 * PAPER_STEPS / now.steps))
        weight.lerp_(wanted.to(weight), pace)
        torch._foreach_mul_(pulls, weight)
        torch._foreach_add_(list(gradients.values()), pulls)

    def _gates(self, values: Tensors, now: Now) -> list[Tensor]:
        """Return σ(α), the probabilities of keeping weights."""
        return list(
            torch._foreach_sigmoid(torch._foreach_add(list(values.values()), logit(now.target)))
        )

    def _held(self, gates: list[Tensor], now: Now) -> float:
        """Return how many weights may be expected to stay, slack·κ·N."""
        return self.slack * now.target * max(1, sum(gate.numel() for gate in gates))

    def _excess(self, gates: list[Tensor], now: Now) -> Tensor:
        """Return S."""
        sums: tuple[Tensor, ...] = torch._foreach_norm(gates, 1)
        return 100 * (torch.stack(sums).sum() / self._held(gates, now) - 1)


def _norm(tensors: list[Tensor]) -> Tensor:
    """Return the norm of all entries together."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [GateLogits]


@hookimpl
def gemkit_roundings() -> list[type[Rounding]]:
    """Register the gates."""
    return [SoftConcrete]


@hookimpl
def gemkit_regularizers() -> list[type[Regularizer]]:
    """Register the penalty."""
    return [GradBalance]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register CTS and CTS-KL."""
    cts = {
        "help": "Concrete Ticket Search: gates of learned log-odds, balanced penalty (Arora 2025)",
        "scores": "gate_logits",
        "rounding": "soft_concrete",
        "regularizer": "grad_balance",
        "schedule": {"name": "once", "after": 1.0},
        "init": "kaiming_normal",
        "objective": {"name": "cross_entropy", "weight": 100.0},
    }
    return {
        "cts": cts,
        "cts_kl": cts
        | {
            "help": "CTS-KL: gates whose network computes what the dense one does (Arora 2025)",
            "objective": {"name": "kl", "weight": 100.0},
        },
    }
