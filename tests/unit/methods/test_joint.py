"""Scores and weights that train together, against plain PyTorch with ordinary autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_data, tiny_net
from torch.func import functional_call

from gemkit import Now, Plan, Runtime, load_plugins, search
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, generator, total
from gemkit.methods.continuous_sparsification import GateSum
from gemkit.parts.regularizer import Regularizer
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.update import pull_back_
from gemkit.training.device import make_fabric
from gemkit.training.loop import endless
from gemkit.training.optimizers import make_optimizer
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins(only=[])
CPU64 = Runtime(device="cpu", precision="64")
EPOCHS, BATCH, TARGET = 4, 8, 0.3
PLAN = Plan(epochs=EPOCHS, batch_size=BATCH, lr=0.05, score_lr=0.7, weight_decay=0.01)
"""Sixteen steps, the rate falling along a cosine."""
EXACT = {"rtol": 1e-10, "atol": 1e-10}


# --- plain PyTorch -------------------------------------------------------------------------------


class Plain:
    """Weights, scores and the rest of a network, trained by ordinary autograd and torch's SGD."""

    def __init__(self, start):
        self.model = tiny_net().double()
        names = prunable_names(self.model)
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.weights = {name: own[name].requires_grad_() for name in names}
        self.rest = {name: p.requires_grad_() for name, p in own.items() if name not in names}
        self.scores = {
            name: torch.full_like(w, start).requires_grad_() for name, w in self.weights.items()
        }
        trained = [*self.weights.values(), *self.rest.values()]
        self.optimizer = torch.optim.SGD(
            [
                {"params": list(self.scores.values()), "peak": 0.7, "weight_decay": 0.0},
                {"params": trained, "peak": 0.05, "weight_decay": 0.01},
            ],
            lr=1.0,
            momentum=0.9,
        )
        self.losses = []

    def step(self, batch, epoch, gates, penalty):
        """Take one step with these gates; `penalty` is added to the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * 0.5 * (1 + math.cos(math.pi * epoch / EPOCHS))
        images, labels = batch
        effective = {name: w * gates[name] for name, w in self.weights.items()}
        logits = functional_call(self.model, {**self.rest, **effective}, (images.double(),))
        loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        (loss + penalty).backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def top(self, count):
        """Return masks of the highest scores of the network, ties by position."""
        flat = torch.cat([score.detach().flatten() for score in self.scores.values()])
        order = sorted(range(len(flat)), key=lambda at: (-flat[at].item(), at))
        mask = torch.zeros(len(flat), dtype=torch.bool)
        mask[order[:count]] = True
        parts = torch.split(mask, [score.numel() for score in self.scores.values()])
        return {
            name: part.view_as(self.scores[name])
            for name, part in zip(self.scores, parts, strict=True)
        }


def batches():
    source = endless(tiny_data().train, BATCH, seed=0, fabric=make_fabric(CPU64))
    return [next(source) for _ in range(EPOCHS * 4)]


def continuous_sparsification(start, weight):
    """Savarese et al. 2020: w ⊙ σ(βs), β = 200^(t/T), loss + λ Σ σ(βs), ticket 1[s > 0]."""
    plain, steps = Plain(start), EPOCHS * 4
    for at, batch in enumerate(batches()):
        gates = {name: torch.sigmoid(200 ** (at / steps) * s) for name, s in plain.scores.items()}
        plain.step(batch, at // 4, gates, weight * sum(gate.sum() for gate in gates.values()))
    most = plain.top(budget(total(plain.scores), TARGET))
    return plain, {name: (s > 0) & most[name] for name, s in plain.scores.items()}


def movement():
    """Sanh et al. 2020: top-k of scores, straight through; density falls as Zhu and Gupta's."""
    plain, count = Plain(0.0), None
    size = total(plain.scores)
    for at, batch in enumerate(batches()):
        masks = plain.top(size if count is None else count)
        gates = {name: masks[name] + s - s.detach() for name, s in plain.scores.items()}
        plain.step(batch, at // 4, gates, torch.zeros(()))
        epoch, ended = divmod(at + 1, 4)
        if not ended and epoch <= 3:  # three freezes, the last at 75 % of the epochs
            density = TARGET + (1 - TARGET) * (1 - epoch / 3) ** 3
            count = budget(size, density if epoch < 3 else TARGET)
    return plain, plain.top(count)


def searched(pruner, **options):
    """Search, and note the loss of every step; events tell it in single precision."""
    losses, real = [], Trainer._loss

    def noting(trainer, images, labels):
        losses.append(real(trainer, images, labels))
        return losses[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_loss", noting)
        ticket = search(
            REGISTRY.recipe(pruner, options=options),
            tiny_net().double(),
            tiny_data(),
            density=TARGET,
            plan=PLAN,
            runtime=CPU64,
            on_collapse="warn",
        )
    return ticket, [loss.item() for loss in losses]


def assert_same(ticket, losses, plain, mask):
    assert losses == pytest.approx(plain.losses, rel=1e-10)
    for name, own in {**plain.weights, **plain.rest}.items():
        torch.testing.assert_close(ticket.state[name], own.detach(), **EXACT)
    for name, own in mask.items():
        assert torch.equal(ticket.mask[name], own), name


def test_continuous_sparsification_is_that_of_plain_pytorch():
    options = {"scores.start": 0.02, "regularizer.weight": 1e-3}
    plain, mask = continuous_sparsification(0.02, 1e-3)
    kept = sum(int(own.sum()) for own in mask.values())
    assert 0 < kept < budget(total(mask), TARGET)  # the signs of scores decide, not the target
    assert_same(*searched("continuous_sparsification", **options), plain, mask)


def test_where_too_many_scores_are_positive_the_highest_stay():
    options = {"scores.start": 0.3, "regularizer.weight": 0.0}
    plain, mask = continuous_sparsification(0.3, 0.0)
    assert sum(int(own.sum()) for own in mask.values()) == budget(total(mask), TARGET)
    assert_same(*searched("continuous_sparsification", **options), plain, mask)


def test_movement_pruning_is_that_of_plain_pytorch():
    plain, mask = movement()
    assert_same(*searched("movement"), plain, mask)


@pytest.mark.parametrize(
    "change",
    [
        {"regularizer.weight": 1.01e-3},
        {"scores.start": 0.0201},
        {"rounding.last": 199.0},
    ],
)
def test_a_slightly_different_search_would_be_noticed(change):
    plain, mask = continuous_sparsification(0.02, 1e-3)
    options = {"scores.start": 0.02, "regularizer.weight": 1e-3} | change
    with pytest.raises(AssertionError):
        assert_same(*searched("continuous_sparsification", **options), plain, mask)


# --- gradients -----------------------------------------------------------------------------------


def joint_net(*, steps=10, at=3, pruned=0.3, **options):
    """A network some steps into a search, with scores of all sorts and some weights pruned."""
    model = tiny_net().double()
    recipe = REGISTRY.recipe("continuous_sparsification", options=options)
    net = MaskedNet.learning(
        model, prunable_names(model), recipe, generator(0, "scores"), steps=steps
    )
    net.now.step.fill_(at)
    with torch.no_grad():
        for name, score in net.scores.items():
            score.copy_(torch.randn(score.shape, generator=generator(1, name)))
    alive = {
        name: torch.rand(mask.shape, generator=generator(2, name)) >= pruned
        for name, mask in net.alive.items()
    }
    net.freeze_(alive, net.shares)
    return net


def test_gradients_of_scores_and_weights_are_those_of_autograd():
    weight, beta = 0.05, 200 ** (3 / 10)
    net = joint_net(**{"regularizer.weight": weight})
    images, labels = next(iter(tiny_data().train.batches(8, seed=0)))
    images = images.double()

    w = {name: free.detach().clone().requires_grad_() for name, free in net.learned.free.items()}
    s = {name: score.clone().requires_grad_() for name, score in net.scores.items()}
    gates = {name: torch.sigmoid(beta * s[name]) * net.alive[name] for name in s}
    effective = {name: w[name] * gates[name] for name in s}
    loss = F.cross_entropy(functional_call(net.model, effective, (images,)), labels)
    loss = loss + weight * sum(gate.sum() for gate in gates.values())
    expected = torch.autograd.grad(loss, [*w.values(), *s.values()])
    expected_w, expected_s = expected[: len(w)], expected[len(w) :]

    F.cross_entropy(net.model(images), labels).backward()
    net.now.step.add_(1)  # as a step does before its update
    net.learned.take_gradients_(net.parameters)
    with torch.no_grad():
        pull_back_(net.learned)
    for name, grad_w, grad_s in zip(w, expected_w, expected_s, strict=True):
        pruned = ~net.alive[name]
        torch.testing.assert_close(net.learned.free[name].grad, grad_w, **EXACT)
        torch.testing.assert_close(net.learned.parameters[name].grad, grad_s, **EXACT)
        assert net.learned.parameters[name].grad[pruned].count_nonzero() == 0


def stays_zero(net):
    """Train with momentum, prune in between, and tell whether pruned weights stay zero."""
    plan = Plan(lr=0.1, score_lr=0.1, momentum=0.9)
    optimizer = make_optimizer(plan, net.groups(plan))
    data = list(tiny_data().train.batches(8, seed=0))
    for turn, (images, labels) in enumerate([*data, *data]):
        if turn == 4:
            alive = {
                name: mask & (torch.rand(mask.shape, generator=generator(3, name)) < 0.7)
                for name, mask in net.alive.items()
            }
            net.freeze_(alive, net.shares)
            net.clear_state(optimizer)
        F.cross_entropy(net.model(images.double()), labels).backward()
        net.step(optimizer)
    tensors = (net.effective, net.learned.free)
    return all(not own[name][~net.alive[name]].any() for own in tensors for name in net.alive)


def test_pruned_weights_beside_scores_stay_zero(monkeypatch):
    assert stays_zero(joint_net(steps=50))
    monkeypatch.setattr(MaskedNet, "clear_state", lambda net, optimizer: None)
    assert stays_zero(joint_net(steps=50))  # the mask is applied again after every step
    take = "gemkit.pruning.masked.take_step"
    real = MaskedNet.step.__globals__["take_step"]
    monkeypatch.setattr(take, lambda update, e, t, kept, *rest: real(update, e, t, [], *rest))
    assert not stays_zero(joint_net(steps=50))  # the broken version


def test_frozen_weights_beside_scores_keep_their_values():
    model = tiny_net()
    names = prunable_names(model)
    model.get_parameter(names[0]).requires_grad_(False)
    recipe = REGISTRY.recipe("continuous_sparsification")
    net = MaskedNet.learning(model, names, recipe, generator(0, "scores"), steps=8)
    plan = Plan(lr=0.1, score_lr=0.1)
    before = {name: own.clone() for name, own in net.weights.items()}
    optimizer = make_optimizer(plan, net.groups(plan))
    for images, labels in tiny_data().train.batches(8, seed=0):
        F.cross_entropy(net.model(images), labels).backward()
        net.step(optimizer)
    moved = [name for name, own in net.weights.items() if not torch.equal(own, before[name])]
    assert moved == names[1:]
    assert net.scores[names[0]].count_nonzero() > 0


def test_the_sum_of_gates_has_the_gradient_of_its_penalty():
    part = GateSum(weight=0.3)
    gates = {"a": torch.rand(4, 3).double(), "b": torch.rand(7).double()}
    closed = {name: torch.ones_like(gate) for name, gate in gates.items()}
    generic = {name: torch.ones_like(gate) for name, gate in gates.items()}
    part.add_gradient_(closed, gates, Now())
    Regularizer.add_gradient_(part, generic, gates, Now())
    for name in gates:
        torch.testing.assert_close(closed[name], generic[name], **EXACT)
        torch.testing.assert_close(closed[name], torch.full_like(gates[name], 1.3), **EXACT)
