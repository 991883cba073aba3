"""The contract of learned scores: initial values, view, slope and projection."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

from gemkit.core.tensors import Tensors, generator
from gemkit.parts.scores import LearnedScores
from gemkit.testing.cases import Layers
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import layers, seeds
from gemkit.testing.watch import (
    at_global_seed,
    copied,
    no_global_randomness,
    same,
    same_everywhere,
    unchanged,
)


def dense_layers(part: LearnedScores, device: torch.device) -> st.SearchStrategy[Layers]:
    """Draw weights to score."""
    return layers(("drawn", "equal"))


def any_scores(part: LearnedScores, device: torch.device) -> st.SearchStrategy[Layers]:
    """Draw layers for `raw_scores`."""
    return layers(("drawn",), device)


def raw_scores(case: Layers) -> Tensors:
    """Return scores as after an optimizer step, some of them large."""
    return {
        name: (value.double() * 2 - 1).mul(10 ** (at % 3)).to(value)
        for at, (name, value) in enumerate(case.values().items())
    }


def reversed_flat(scores: Tensors) -> Tensors:
    """Return the same entries flattened, in reverse order."""
    return {name: score.reshape(-1).flip(0) for name, score in scores.items()}


@clause(LearnedScores, dense_layers)
def the_initial_scores_fit_the_weights(part: LearnedScores, case: Layers) -> None:
    """`init` returns one finite tensor per weight, of its shape and dtype, on the CPU."""
    weights = case.values()
    scores = part.init(weights, generator(case.seed, "scores"))
    require(list(scores) == list(weights), f"it returned {list(scores)}")
    for name, weight in weights.items():
        score = scores[name]
        require(score.shape == weight.shape, f"'{name}' has shape {tuple(score.shape)}")
        require(score.dtype == weight.dtype, f"'{name}' is {score.dtype}, not {weight.dtype}")
        require(score.device.type == "cpu", f"'{name}' is on {score.device}")
        require(bool(score.isfinite().all()), f"'{name}' is not finite")


@clause(LearnedScores, dense_layers)
def the_same_generator_draws_the_same_scores(part: LearnedScores, case: Layers) -> None:
    """`init` uses only the given generator, and changes no weight."""
    weights = case.values()
    with (
        no_global_randomness(),
        unchanged("the weights", lambda: copied(weights.items())),
    ):
        part.init(weights, generator(case.seed, "scores"))
    one, other = (
        at_global_seed(seed, lambda: part.init(weights, generator(case.seed, "scores")))
        for seed in (1, 2)
    )
    require(same_everywhere(one, other), "drawing twice gave two results")


@clause(LearnedScores, any_scores, on_devices=True)
def the_view_is_elementwise(part: LearnedScores, case: Layers) -> None:
    """`view` is elementwise and finite, and does not change the scores."""
    scores = raw_scores(case)
    part.project_(scores)
    with unchanged("the scores", lambda: copied(scores.items())):
        view, again = part.view(scores), part.view(reversed_flat(scores))
    require(list(view) == list(scores), f"the layers are {list(scores)}, the views {list(view)}")
    for name, seen in view.items():
        require(seen.shape == scores[name].shape, f"the view has shape {tuple(seen.shape)}")
        require(bool(seen.isfinite().all()), "the view is not finite")
        # Not bit-equal: the last few entries of a tensor take another code path in the kernel.
        close = torch.allclose(
            seen.reshape(-1).flip(0), again[name], rtol=4 * torch.finfo(seen.dtype).eps, atol=1e-6
        )
        require(close, "the view of a score depends on other scores")


@clause(LearnedScores, any_scores)
def the_slope_is_the_derivative_of_the_view(part: LearnedScores, case: Layers) -> None:
    """`slope` is d view / d score, or None if that is 1 everywhere."""
    exact = {name: score.double() for name, score in raw_scores(case).items()}
    part.project_(exact)
    leaves = {name: score.clone().requires_grad_() for name, score in exact.items()}
    total = torch.stack([seen.sum() for seen in part.view(leaves).values()]).sum()
    derivatives = torch.autograd.grad(total, list(leaves.values()))
    slopes = part.slope(exact)
    for (name, score), derivative in zip(exact.items(), derivatives, strict=True):
        slope = torch.ones_like(score) if slopes is None else slopes[name]
        require(slope.shape == score.shape, f"the slope has shape {tuple(slope.shape)}")
        close = torch.isclose(slope, derivative, rtol=1e-6, atol=1e-9).all()
        require(bool(close), f"the slope is {slope.tolist()}, the derivative {derivative.tolist()}")


@clause(LearnedScores, any_scores, on_devices=True)
def projecting_twice_is_projecting_once(part: LearnedScores, case: Layers) -> None:
    """`project_` works in place and elementwise, and does not move projected scores."""
    once = raw_scores(case)
    pieces = {
        f"{name} {at}": piece.clone()
        for name, score in once.items()
        for at, piece in enumerate(torch.split(score.reshape(-1), 5))
    }
    part.project_(pieces)
    require(part.project_(once) is None, "it returned something; it works in place")
    together = torch.cat([score.reshape(-1) for score in once.values()])
    close = torch.allclose(torch.cat([*pieces.values()]), together, rtol=1e-5, atol=1e-6)
    require(close, "the projection of a score depends on other scores")
    twice = {name: score.clone() for name, score in once.items()}
    part.project_(twice)
    for name, score in once.items():
        require(same(score, twice[name]), f"{score.tolist()} became {twice[name].tolist()}")


@clause(LearnedScores, any_scores, applies=lambda part: part.unit_interval)
def the_view_stays_in_the_unit_interval(part: LearnedScores, case: Layers) -> None:
    """With `unit_interval` every view of projected scores is in [0, 1], also initially."""
    for scores in (part.init(case.values(), generator(case.seed, "scores")), raw_scores(case)):
        part.project_(scores)
        for seen in part.view(scores).values():
            require(bool(((seen >= 0) & (seen <= 1)).all()), f"it is {seen.tolist()}")


@clause(LearnedScores, lambda part, device: st.integers(0, 10**6) | seeds)
def the_learning_rate_is_a_positive_number(part: LearnedScores, case: int) -> None:
    """`default_lr` is positive and finite for a search of any length."""
    rate = part.default_lr(case)
    require(math.isfinite(rate) and rate > 0, f"it is {rate} for {case} steps")
