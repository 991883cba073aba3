"""The contract of objectives: one finite number, with a gradient for the outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from gemkit.core.tensors import Tensors, generator
from gemkit.parts.now import Now
from gemkit.parts.objective import Objective, Targets
from gemkit.testing.cases import Case
from gemkit.testing.clause import clause, require
from gemkit.testing.clauses.state import begun
from gemkit.testing.strategies import CPU, seeds, variants
from gemkit.testing.tiny import CLASSES, SHAPE
from gemkit.testing.watch import copied, no_global_randomness, same, unchanged
from gemkit.training.metrics import LOSS, METRICS

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Outputs(Case):
    """What a network answers to a batch: logits of this size, one row for every image."""

    images: int = 4
    size: float = 1.0
    dtype: torch.dtype = torch.float32
    seed: int = 0
    device: torch.device = CPU
    targets: Targets = "classes"

    def logits(self) -> Tensor:
        """Draw the outputs of the sparse network."""
        drawn = torch.randn(self.images, CLASSES, generator=generator(self.seed, "outputs"))
        return (drawn * self.size).to(self.device, self.dtype)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Draw images and targets."""
        rng = generator(self.seed, "batch")
        images = torch.randn(self.images, *SHAPE, generator=rng).to(self.device, self.dtype)
        return images, drawn_targets(self.targets, self.images, rng).to(self.device)

    def hitting(self, targets: Tensor) -> Tensor:
        """Return outputs that hit every target."""
        if self.targets == "values":
            return targets.to(self.dtype)
        if self.targets == "labels":
            return (20 * targets - 10).to(self.dtype)
        return 20 * torch.eye(CLASSES, dtype=self.dtype, device=self.device)[targets]

    def missing(self, targets: Tensor) -> Tensor:
        """Return outputs that miss every target."""
        if self.targets == "values":
            return targets.to(self.dtype) + 3
        if self.targets == "labels":
            return -self.hitting(targets)
        return self.hitting((targets + 1) % CLASSES)

    def weights(self) -> Tensors:
        """Draw the weights of the network, for the state of an objective."""
        drawn = torch.randn(CLASSES, 72, generator=generator(self.seed, "weights"))
        return {"1.weight": drawn.to(self.device, self.dtype)}

    def now(self, state: Tensors) -> Now:
        """Return a moment in the middle of a search, with a dense network."""
        head = self.weights()["1.weight"]
        return Now(
            step=torch.tensor(5.0, device=self.device),
            steps=10,
            target=0.2,
            alive={"1.weight": head > 0},
            state=state,
            dense=lambda images: images.flatten(1) @ head.T,
        )


def drawn_targets(kind: Targets, count: int, rng: torch.Generator) -> Tensor:
    """Draw targets of a kind, of as many classes, labels or values as the networks have outputs."""
    if kind == "labels":
        return torch.randint(2, (count, CLASSES), generator=rng).float()
    if kind == "values":
        return torch.randn(count, CLASSES, generator=rng)
    return torch.randint(CLASSES, (count,), generator=rng)


Judged = tuple[Objective, Outputs]


def answers(part: Objective, device: torch.device) -> st.SearchStrategy[Judged]:
    """Draw outputs, small and large, of one image or several."""
    drawn = st.builds(
        Outputs,
        images=st.sampled_from([4, 1, 7]),
        size=st.sampled_from([1.0, 0.0, 30.0]),
        dtype=st.sampled_from(DTYPES),
        seed=seeds,
        device=st.just(device),
        targets=st.just(part.targets),
    )
    return st.tuples(variants(part), drawn)


@clause(Objective, answers, on_devices=True)
def the_loss_is_one_finite_number(part: Objective, case: Judged) -> None:
    """`loss` returns a tensor without dimensions, finite, on the device of the outputs."""
    part, drawn = case
    loss = part.loss(drawn.logits(), drawn.batch(), drawn.now(begun(part, drawn.weights())))
    require(isinstance(loss, Tensor), f"it is a {type(loss).__name__}")
    require(loss.ndim == 0, f"it has shape {tuple(loss.shape)}; take the mean over the batch")
    require(bool(loss.isfinite()), f"it is {loss.item()}")
    require(loss.device == drawn.device, f"it is on {loss.device}")


@clause(Objective, answers, on_devices=True)
def the_loss_has_a_gradient_for_the_outputs(part: Objective, case: Judged) -> None:
    """`loss` is differentiable in the outputs, and its gradient is finite."""
    part, drawn = case
    outputs = drawn.logits().requires_grad_()
    loss = part.loss(outputs, drawn.batch(), drawn.now(begun(part, drawn.weights())))
    require(loss.requires_grad, "the loss does not depend on the outputs, as autograd sees it")
    [gradient] = torch.autograd.grad(loss, outputs, allow_unused=True)
    require(gradient is not None, "the loss does not depend on the outputs, as autograd sees it")
    require(bool(gradient.isfinite().all()), f"the gradient is {gradient.tolist()}")


@clause(Objective, answers, on_devices=True)
def a_loss_changes_neither_outputs_nor_batch(part: Objective, case: Judged) -> None:
    """`loss` leaves outputs, batch and what is alive as they were, and draws no random numbers."""
    part, drawn = case
    outputs, (images, labels) = drawn.logits(), drawn.batch()
    now = drawn.now(begun(part, drawn.weights()))
    named = {"outputs": outputs, "images": images, "labels": labels, "step": now.step}
    named |= {f"alive {name}": mask for name, mask in now.alive.items()}
    with no_global_randomness(), unchanged("its input", lambda: copied(named.items())):
        part.loss(outputs, (images, labels), now)


@clause(Objective, answers)
def equal_states_give_equal_losses(part: Objective, case: Judged) -> None:
    """Losses depend on outputs, batch and `now` alone: what is remembered is in `now.state`."""
    part, drawn = case
    runs = []
    for _ in range(2):
        now = drawn.now(begun(part, drawn.weights()))
        losses = [part.loss(drawn.logits(), drawn.batch(), now) for _ in range(3)]
        runs.append([*losses, *now.state.values()])
    equal = all(same(one, other) for one, other in zip(*runs, strict=True))
    require(equal, "three steps from equal states gave two results; keep nothing in the part")


@clause(Objective)
def its_metric_is_for_its_targets(part: Objective, case: None) -> None:
    """`metric` names a metric, and one that is for the `targets` of the objective."""
    known = part.metric in METRICS
    require(known, f"there is no metric {part.metric!r}; there is {', '.join(METRICS)}")
    own = METRICS[part.metric].targets
    fits = "any" in (own, part.targets) or own == part.targets
    require(fits, f"metric '{part.metric}' is for {own}, but its targets are {part.targets}")


def compares(part: Objective) -> bool:
    """Whether an objective compares with targets, rather than with the dense network."""
    return not part.needs_dense


@clause(Objective, answers, applies=compares)
def outputs_that_hit_are_better_than_outputs_that_miss(part: Objective, case: Judged) -> None:
    """Outputs that hit every target have no higher loss, and a better metric."""
    part, drawn = case
    images, targets = drawn.batch()
    losses, values = [], []
    for outputs in (drawn.hitting(targets), drawn.missing(targets)):
        now = drawn.now(begun(part, drawn.weights()))
        losses.append(part.loss(outputs, (images, targets), now).item())
        values.append(_measured(part, outputs, targets, losses[-1]))
    require(losses[0] <= losses[1], f"hits have loss {losses[0]}, and misses {losses[1]}")
    metric = METRICS[part.metric]
    worse = metric.worse_by(values[1], than=values[0])
    require(worse > 0, f"{metric.name} is {values[0]} for hits, and {values[1]} for misses")


def _measured(part: Objective, outputs: Tensor, targets: Tensor, loss: float) -> float:
    """Return the metric of outputs."""
    metric = METRICS[part.metric]
    if metric.name == LOSS:
        return loss
    meter = metric.make(CLASSES).to(outputs.device)
    meter.update(*metric.prepared(outputs, targets))
    return float(meter.compute())
