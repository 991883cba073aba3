"""The contract of regularizers: a number, and its derivative."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.parts import Regularizer
from gemkit.tensors import Tensors
from gemkit.testing.cases import Layers
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import layers, variants
from gemkit.testing.watch import copied, no_global_randomness, same, unchanged

Penalized = tuple[Regularizer, Layers]


def scored(part: Regularizer, device: torch.device) -> st.SearchStrategy[Penalized]:
    """Draw raw scores, on both sides of zero."""
    return st.tuples(variants(part), layers(("drawn", "equal"), device))


def raw(case: Layers) -> Tensors:
    """Return the scores of a case."""
    return {name: value * 4 - 1 for name, value in case.values().items()}


@clause(Regularizer, scored, on_devices=True)
def the_penalty_is_one_finite_number(part: Regularizer, case: Penalized) -> None:
    """`penalty` returns a tensor without dimensions, finite."""
    part, drawn = case
    penalty = part.penalty(raw(drawn))
    require(isinstance(penalty, torch.Tensor), f"it is a {type(penalty).__name__}")
    require(penalty.ndim == 0, f"it has shape {tuple(penalty.shape)}")
    require(bool(penalty.isfinite()), f"it is {penalty.item()}")


@clause(Regularizer, scored)
def the_gradient_is_the_derivative_of_the_penalty(part: Regularizer, case: Penalized) -> None:
    """`add_gradient_` adds d penalty / d score to what is there already."""
    part, drawn = case
    scores = {name: score.double() for name, score in raw(drawn).items()}
    gradients = {name: torch.ones_like(score) for name, score in scores.items()}
    part.add_gradient_(gradients, scores)
    leaves = {name: score.clone().requires_grad_() for name, score in scores.items()}
    penalty = part.penalty(leaves)
    for name, leaf in leaves.items():
        pull = torch.zeros_like(leaf)
        if penalty.requires_grad:
            [found] = torch.autograd.grad(penalty, leaf, retain_graph=True, allow_unused=True)
            pull = pull if found is None else found
        close = torch.isclose(gradients[name], 1 + pull, rtol=1e-6, atol=1e-9).all()
        told = f"'{name}' got {(gradients[name] - 1).tolist()}, the derivative is {pull.tolist()}"
        require(bool(close), told)


@clause(Regularizer, scored, on_devices=True)
def a_penalty_changes_no_score(part: Regularizer, case: Penalized) -> None:
    """Neither method changes a score or draws random numbers, and asking twice gives the same."""
    part, drawn = case
    scores = raw(drawn)
    gradients = {name: torch.zeros_like(score) for name, score in scores.items()}
    with no_global_randomness(), unchanged("the scores", lambda: copied(scores.items())):
        one = part.penalty(scores)
        part.add_gradient_(gradients, scores)
    require(same(one, part.penalty(scores)), "asking twice gave two penalties")
