"""CTS keeps its contracts, and equals plain PyTorch with ordinary autograd."""

import copy
import math
from pathlib import Path

import gemkit_cts
import pytest
import torch
import torch.nn.functional as F
from gemkit_cts import GateLogits, GradBalance, SoftConcrete, logit
from torch.func import functional_call

from gemkit import Now, Plan, Runtime, load_plugins, search
from gemkit.core.events import PhaseStarted, StepEnded
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, generator, kept
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.search import search_plan
from gemkit.testing import CPU, contract, simulated, tiny_data, tiny_net
from gemkit.training.device import make_fabric
from gemkit.training.loop import endless
from gemkit.training.trainer import Trainer

test_plugin = contract(gemkit_cts)
test_gates_of_low_temperature = contract(SoftConcrete(temperature=0.2))
test_a_balance_without_slack = contract(GradBalance(slack=0.5, smoothing=1.0))

REGISTRY = load_plugins(files=[Path(gemkit_cts.__file__)], only=())
CPU64 = Runtime(device="cpu", precision="64")
EPOCHS, BATCH, TARGET = 5, 8, 0.3
"""Twenty steps."""


# --- plain PyTorch -------------------------------------------------------------------------------


def divergence(sparse, dense):
    p, q = sparse.softmax(1), dense.softmax(1)
    return (p * (p.log() - q.log())).sum(1).mean()


def reference(pruner, slack):
    """Run Algorithm CTS on one flat vector of log-odds; return it, λ, and the loss of each step."""
    model = tiny_net().double()
    own = {name: p.detach() for name, p in model.named_parameters()}
    shapes = {name: own[name].shape for name in prunable_names(model)}
    sizes = [shape.numel() for shape in shapes.values()]
    alpha = torch.full((sum(sizes),), math.log(TARGET / (1 - TARGET)), dtype=torch.float64)
    alpha.requires_grad_()
    optimizer = torch.optim.Adam([alpha], lr=0.1)
    draws, balance, losses, errors = generator(0, "scores"), 0.0, [], []
    source = endless(tiny_data().train, BATCH, seed=0, fabric=make_fabric(CPU64))
    for step in range(EPOCHS * 4):
        images, labels = next(source)
        images = images.double()
        u = torch.rand(len(alpha), generator=draws).double()
        z = 1 / (1 + torch.exp(-(alpha + u.log() - (1 - u).log()) * 1.5))
        parts = zip(shapes.items(), z.split(sizes), strict=True)
        gated = {name: own[name] * part.view(shape) for (name, shape), part in parts}
        logits = functional_call(model, {**own, **gated}, (images,))
        dense = functional_call(model, own, (images,)).detach()
        loss = F.cross_entropy(logits, labels) if pruner == "cts" else divergence(logits, dense)
        excess = 100 * (torch.sigmoid(alpha).sum() / (slack * TARGET * len(alpha)) - 1)
        [task] = torch.autograd.grad(100 * loss, alpha)
        [pull] = torch.autograd.grad(excess, alpha)
        aim = float(task.norm() / pull.norm()) if excess >= 0 else 0.0
        balance = 0.99 * balance + 0.01 * aim
        alpha.grad = task + balance * pull
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * (step // 4) / EPOCHS))
        optimizer.step()
        losses.append(100 * float(loss.detach()))
        errors.append(float(excess.detach()))
    return alpha.detach(), balance, losses, errors


CASES = {1.1: (True, False), 1.002: (True, True), 0.8: (False, True)}
"""Whether the expected density is below and above what is held, in the course of a search."""


class Watching:
    """Notes the scores after every step."""

    def __call__(self, event):
        if isinstance(event, PhaseStarted):
            self.view = event.view
        elif isinstance(event, StepEnded):
            self.scores = self.view.scores()


@pytest.mark.parametrize("slack", CASES)
@pytest.mark.parametrize("pruner", ["cts", "cts_kl"])
def test_a_search_is_that_of_plain_pytorch(pruner, slack, monkeypatch):
    alpha, balance, expected, errors = reference(pruner, slack)
    assert (min(errors) < 0, max(errors) >= 0) == CASES[slack]
    assert (balance > 0) == CASES[slack][1]
    losses, real, watching = [], Trainer._loss, Watching()

    def noting(trainer, images, labels):
        losses.append(real(trainer, images, labels))
        return losses[-1]

    monkeypatch.setattr(Trainer, "_loss", noting)
    weights = []
    real_step = MaskedNet.step

    def stepping(net, optimizer):
        real_step(net, optimizer)
        weights.append(float(net.learned.state["weight"]))

    monkeypatch.setattr(MaskedNet, "step", stepping)
    ticket = search(
        REGISTRY.recipe(
            pruner,
            parts={"init": "as_built"},
            options={"regularizer.slack": slack, "regularizer.smoothing": 0.01},
        ),
        tiny_net().double(),
        tiny_data(),
        density=TARGET,
        plan=Plan(epochs=EPOCHS, batch_size=BATCH, lr=0.1),
        runtime=CPU64,
        observers=[watching],
        on_collapse="warn",
    )
    assert [float(loss.detach()) for loss in losses] == pytest.approx(expected, rel=1e-9)
    assert weights[-1] == pytest.approx(balance, rel=1e-9)
    found = torch.cat([score.flatten() for score in watching.scores.values()])
    torch.testing.assert_close(found + logit(TARGET), alpha, rtol=1e-9, atol=1e-9)
    best = sorted(range(len(alpha)), key=lambda at: (-float(alpha[at]), at))
    mask = torch.cat([own.flatten() for own in ticket.mask.values()])
    assert set(mask.nonzero().flatten().tolist()) == set(best[: budget(len(alpha), TARGET)])


# --- parts ---------------------------------------------------------------------------------------


def test_gates_open_as_often_as_the_density_and_the_scores_say():
    view = {"a": torch.zeros(40_000), "b": torch.full((40_000,), 2.0)}
    gates = SoftConcrete().masks(view, Now(target=0.1, rng=generator(0, "")))
    rates = {name: float((gate > 0.5).float().mean()) for name, gate in gates.items()}
    shifted = 1 / (1 + math.exp(-(logit(0.1) + 2.0)))
    assert rates == pytest.approx({"a": 0.1, "b": shifted}, abs=0.01)


def test_noise_differs_between_layers_and_steps():
    view, rng = {"a": torch.zeros(100), "b": torch.zeros(100)}, generator(0, "")
    one, other = (SoftConcrete().masks(view, Now(rng=rng)) for _ in range(2))
    assert not torch.equal(one["a"], one["b"])
    assert not torch.equal(one["a"], other["a"])


@pytest.mark.parametrize("density", [1e-9, 1.0])
def test_log_odds_are_finite_at_any_density(density):
    assert math.isfinite(logit(density))
    gates = SoftConcrete().masks({"a": torch.zeros(9)}, Now(target=density, rng=generator(0, "")))
    assert gates["a"].isfinite().all()


def test_the_balance_rises_above_the_target_and_falls_below_it():
    part, scores = GradBalance(), {"a": torch.zeros(6, 4), "b": torch.zeros(8)}
    now = Now(target=0.1, steps=1000, state=part.init_state(scores))
    history = []
    for shift in (1.0, 1.0, -1.0, -1.0):
        gradients = {name: torch.ones_like(score) for name, score in scores.items()}
        part.add_gradient_(gradients, {name: own + shift for name, own in scores.items()}, now)
        history.append(float(now.state["weight"]))
    assert 0 < history[0] < history[1]
    assert history[1] > history[2] > history[3] > 0


@pytest.mark.parametrize(("steps", "pace"), [(20 * 391, 0.01), (10**6, 0.01), (782, 0.1), (3, 1)])
def test_the_balance_moves_faster_in_shorter_searches(steps, pace):
    part, scores = GradBalance(slack=0.5), {"a": torch.zeros(50)}
    weights = []
    for own in (part, part.model_copy(update={"smoothing": 1.0})):
        now = Now(target=0.1, steps=steps, state=own.init_state(scores))
        own.add_gradient_({"a": torch.ones(50)}, scores, now)
        weights.append(float(now.state["weight"]))
    assert weights[0] == pytest.approx(pace * weights[1])


def test_gates_and_balance_read_nothing_back_from_the_device():
    device = simulated.install()
    scores = {name: torch.randn(5, 4).to(device) for name in "ab"}
    part, gates = GradBalance(), SoftConcrete()
    now = Now(target=0.1, rng=generator(0, ""), state=part.init_state(scores))
    gradients = {name: torch.ones_like(score) for name, score in scores.items()}
    with simulated.watched() as seen:
        gates.slope(scores, gates.masks(scores, now), now)
        part.add_gradient_(gradients, scores, now)
    assert not seen.waits
    with simulated.watched() as seen:
        assert float(now.state["weight"]) > 0
    assert seen.waits, "a read-back is noticed"


def test_adam_is_the_default_and_another_optimizer_has_its_own_rate():
    recipe, data = REGISTRY.recipe("cts"), tiny_data()
    plan = search_plan(recipe, Plan(epochs=4), data)
    assert (plan.optimizer, plan.lr) == ("adam", 0.3)
    assert GateLogits().default_lr(20 * 391) == GateLogits().default_lr(10**6) == 0.1
    again = search_plan(recipe, plan, data)
    assert again == plan
    assert search_plan(recipe, Plan(epochs=4, optimizer="sgd"), data).optimizer == "sgd"
    assert search_plan(recipe, Plan(epochs=4, optimizer="adamw"), data).lr == 0.01


# --- exact counts and resuming -------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.07, 0.5, 1.0])
def test_a_ticket_keeps_the_exact_count(density):
    ticket = search(
        REGISTRY.recipe("cts_kl"),
        tiny_net(),
        tiny_data(),
        density=density,
        plan=Plan(epochs=3, batch_size=8),
        runtime=CPU,
        on_collapse="warn",
    )
    assert kept(ticket.mask) == budget(ticket.prunable, density)


def test_a_state_that_is_saved_and_loaded_continues_to_the_same_bits():
    batches = list(tiny_data().train.batches(8, seed=0))
    recipe = REGISTRY.recipe("cts_kl", options={"regularizer.slack": 0.9})

    def fresh():
        model = tiny_net()
        rng = generator(0, "scores")
        net = MaskedNet.learning(model, prunable_names(model), recipe, rng, steps=8, target=0.6)
        plan = Plan(optimizer="adam", lr=0.1, weight_decay=0.0)
        return net, Trainer(net, plan, make_fabric(CPU), CPU, recipe.objective)

    net, trainer = fresh()
    for batch in batches:
        trainer.step(batch, 0.1)
    other, resumed = fresh()
    for own, saved in ((other, net), (resumed, trainer)):
        own.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert float(other.learned.state["weight"]) == float(net.learned.state["weight"]) > 0
    for batch in batches:
        trainer.step(batch, 0.1)
        resumed.step(batch, 0.1)
    assert float(other.learned.state["weight"]) == float(net.learned.state["weight"])
    for name, score in net.scores.items():
        assert torch.equal(other.scores[name], score)
