"""The contract of regularizers: a number, and its derivative."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.core.probe import gradients as gradients_of
from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.parts.regularizer import Regularizer
from gemkit.testing.cases import Layers
from gemkit.testing.clause import clause, require
from gemkit.testing.clauses.state import begun
from gemkit.testing.strategies import layers, variants
from gemkit.testing.watch import copied, no_global_randomness, same, unchanged

Penalized = tuple[Regularizer, Layers]


def scored(part: Regularizer, device: torch.device) -> st.SearchStrategy[Penalized]:
    """Draw raw scores, on both sides of zero."""
    return st.tuples(variants(part), layers(("drawn", "equal"), device))


def raw(part: Regularizer, case: Layers) -> Tensors:
    """Return the scores, or the gates, of a case."""
    if part.on == "gates":
        return case.values()
    return {name: value * 4 - 1 for name, value in case.values().items()}


def moment(part: Regularizer, case: Layers, state: Tensors | None = None) -> Now:
    """Return a moment in the middle of a search; gates are there for those who ask for them."""
    asks = part.on == "gates" or part.needs_density
    gates = {name: (value > 0.5).float() for name, value in case.values().items() if asks}
    return Now(
        step=torch.tensor(5.0, device=case.device),
        steps=10,
        target=0.2,
        alive=case.masks(),
        gates=gates,
        state=begun(part, raw(part, case)) if state is None else state,
    )


def pulled(part: Regularizer, values: Tensors, now: Now) -> Tensors:
    """Return what the penalty adds to gradients of zero."""
    gradients = {name: torch.zeros_like(value) for name, value in values.items()}
    part.add_gradient_(gradients, values, now)
    return gradients


@clause(Regularizer, scored, on_devices=True)
def the_penalty_is_one_finite_number(part: Regularizer, case: Penalized) -> None:
    """`penalty` returns a tensor without dimensions, finite."""
    part, drawn = case
    penalty = part.penalty(raw(part, drawn), moment(part, drawn))
    require(isinstance(penalty, torch.Tensor), f"it is a {type(penalty).__name__}")
    require(penalty.ndim == 0, f"it has shape {tuple(penalty.shape)}")
    require(bool(penalty.isfinite()), f"it is {penalty.item()}")


@clause(Regularizer, scored)
def the_gradient_is_the_derivative_of_the_penalty(part: Regularizer, case: Penalized) -> None:
    """`add_gradient_` adds d penalty / d score to what is there already.

    A penalty with a state may change it before or after.
    """
    part, drawn = case
    scores = {name: score.double() for name, score in raw(part, drawn).items()}
    gradients = {name: torch.ones_like(score) for name, score in scores.items()}
    now = moment(part, drawn)
    part.add_gradient_(gradients, scores, now)
    before, after = (
        derivative(part, scores, moment(part, drawn, state)) for state in (None, now.state)
    )
    for name, gradient in gradients.items():
        pull = gradient - 1
        close = any(
            bool(torch.isclose(pull, wanted[name], rtol=1e-6, atol=1e-9).all())
            for wanted in (before, after)
        )
        message = f"'{name}' got {pull.tolist()}, the derivative is {before[name].tolist()}"
        require(close, message)


def derivative(part: Regularizer, scores: Tensors, now: Now) -> Tensors:
    """Differentiate the penalty with autograd."""
    leaves = {name: score.clone().requires_grad_() for name, score in scores.items()}
    penalty = part.penalty(leaves, now)
    if not penalty.requires_grad:
        return {name: torch.zeros_like(score) for name, score in scores.items()}
    return gradients_of(penalty, leaves)


@clause(Regularizer, scored, on_devices=True)
def a_penalty_changes_no_score(part: Regularizer, case: Penalized) -> None:
    """Neither method changes a score, a gate or what is alive, or draws random numbers.

    `penalty` leaves the state alone, which `add_gradient_` may change, once in a step.
    """
    part, drawn = case
    scores, now = raw(part, drawn), moment(part, drawn)
    groups = {"score of": scores, "alive": now.alive, "gates of": now.gates}
    named = {f"{of} {name}": own for of, group in groups.items() for name, own in group.items()}
    with no_global_randomness(), unchanged("its input", lambda: copied(named.items())):
        with unchanged("the state", lambda: copied(now.state.items())):
            part.penalty(scores, now)
        pulled(part, scores, now)


@clause(Regularizer, scored)
def equal_states_give_equal_penalties(part: Regularizer, case: Penalized) -> None:
    """Penalties depend on scores and `now` alone: what is remembered is in `now.state`."""
    part, drawn = case
    scores, runs = raw(part, drawn), []
    for _ in range(2):
        now, found = moment(part, drawn), []
        for _ in range(3):
            found += [part.penalty(scores, now), *pulled(part, scores, now).values()]
        runs.append([*found, *now.state.values()])
    equal = all(same(one, other) for one, other in zip(*runs, strict=True))
    require(equal, "three steps from equal states gave two results; keep nothing in the part")
