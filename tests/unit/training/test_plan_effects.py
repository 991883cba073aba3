"""Options that change only numbers really change them: to ignore one would go unnoticed."""

from itertools import pairwise

import pytest
import torch
from tiny import CPU, tiny_data, tiny_net
from torch._dynamo.backends.registry import lookup_backend

from gemkit import Now, Plan, Runtime, load_plugins
from gemkit.builtin.roundings import Bernoulli
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.pruning.masked import MaskedNet
from gemkit.training.device import make_fabric, place
from gemkit.training.optimizers import make_optimizer
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins(only=[])
GRADIENTS = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 0.1])]


def path(plan):
    """Where a weight at one goes, given three gradients."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer(plan, [weight])
    for gradient in GRADIENTS:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_follows_its_formula(nesterov):
    weight, speed = torch.ones(2), torch.zeros(2)
    for gradient in GRADIENTS:
        pull = gradient + 0.01 * weight
        speed = 0.8 * speed + pull
        weight = weight - 0.1 * (pull + 0.8 * speed if nesterov else speed)
    plan = Plan(lr=0.1, momentum=0.8, nesterov=nesterov, weight_decay=0.01)
    torch.testing.assert_close(path(plan), weight)


@pytest.mark.parametrize("rule", ["adam", "adamw"])
def test_adam_adds_weight_decay_to_the_gradient_and_adamw_to_the_step(rule):
    weight, mean, square = torch.ones(2), torch.zeros(2), torch.zeros(2)
    for step, gradient in enumerate(GRADIENTS, start=1):
        pull = gradient + 0.3 * weight if rule == "adam" else gradient
        shrink = 1.0 if rule == "adam" else 1 - 0.1 * 0.3
        mean = 0.8 * mean + 0.2 * pull
        square = 0.999 * square + 0.001 * pull.square()
        size = (square / (1 - 0.999**step)).sqrt() + 1e-8
        weight = weight * shrink - 0.1 * mean / (1 - 0.8**step) / size
    plan = Plan(lr=0.1, momentum=0.8, optimizer=rule, weight_decay=0.3)
    torch.testing.assert_close(path(plan), weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_a_step_moves_every_entry(rule, dtype):
    """Old fused kernels skipped whole vectors of numbers in half precision."""
    weight = torch.nn.Parameter(torch.ones(67, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    make_optimizer(Plan(lr=0.1, optimizer=rule), [weight]).step()
    assert (weight < 1).all()


def trainer_of(parts=None, runtime=CPU):
    fabric = make_fabric(runtime)
    model = place(tiny_net(), fabric, runtime)
    recipe = REGISTRY.recipe("gem_miner", parts=parts or {})
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    trainer = Trainer(net, Plan(lr=0.1), fabric, runtime)
    trainer.module.train()
    return trainer


def test_mixed_precision_computes_in_bf16_and_keeps_scores_in_float32():
    seen = set()

    def look(module, inputs, output):
        seen.add(output.dtype)

    trainers = [trainer_of(runtime=Runtime(device="cpu", precision=p)) for p in ("bf16", "32")]
    for trainer, dtype in zip(trainers, (torch.bfloat16, torch.float32), strict=True):
        handle = trainer.net.model[0].register_forward_hook(look)
        trainer.step(next(iter(tiny_data().train.batches(8, seed=0))), lr=0.1)
        handle.remove()
        assert seen == {dtype}
        seen.clear()
        for state in (trainer.net.scores, trainer.net.effective, trainer.net.weights):
            assert all(value.dtype == torch.float32 for value in state.values())
        for score in trainer.net.trainable():
            assert trainer.optimizer.state[score]["momentum_buffer"].dtype == torch.float32
    rough, fine = (trainer.net.scores for trainer in trainers)
    assert any(not torch.equal(rough[name], fine[name]) for name in fine)


def test_randomized_rounding_is_drawn_anew_in_every_step():
    trainer = trainer_of({"rounding": "bernoulli", "regularizer": "none"})
    batch = next(iter(tiny_data().train.batches(8, seed=0)))
    masks = []
    for _ in range(3):
        trainer.step(batch, lr=0.0)  # the scores stand still, so only the draw can differ
        masks.append(trainer.net.mask)
        used = {name: weight != 0 for name, weight in trainer.net.effective.items()}
        assert all(torch.equal(used[name], mask) for name, mask in masks[-1].items())
    for one, other in pairwise(masks):
        assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_draw_depends_on_the_generator_alone():
    scores = {"a": torch.full((1000,), 0.5)}
    rng = generator(0, "")
    one, other = (Bernoulli().masks(scores, Now(rng=rng))["a"] for _ in range(2))
    again = Bernoulli().masks(scores, Now(rng=generator(0, "")))["a"]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup"])
def test_mixed_precision_computes_in_halves_and_keeps_scores_whole(pruner):
    runtime = Runtime(device="cpu", precision="bf16")
    fabric = make_fabric(runtime)
    model = place(tiny_net(), fabric, runtime)
    net = MaskedNet.learning(
        model, prunable_names(model), REGISTRY.recipe(pruner), generator(0, "scores")
    )
    trainer = Trainer(net, Plan(lr=0.1), fabric, runtime)
    kinds = set()
    first = next(module for module in model.modules() if isinstance(module, torch.nn.Conv2d))
    first.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
    before = {name: score.clone() for name, score in net.scores.items()}
    trainer.step(next(tiny_data().train.batches(8, seed=0)), lr=1e-4)
    assert kinds == {torch.bfloat16}
    for name, score in net.scores.items():
        assert score.dtype == net.effective[name].dtype == torch.float32
    moved = [(net.scores[name] - before[name]).abs().max() for name in before]
    assert 0 < max(moved) < 2**-9, "less than a half near one could tell"


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup"])
def test_a_compiled_network_is_compiled_once_whatever_is_frozen(pruner, monkeypatch):
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    real = torch.compile

    def compile_network(what, **_):
        return real(what, backend=count) if isinstance(what, torch.nn.Module) else what

    monkeypatch.setattr(torch, "compile", compile_network)
    runtime = Runtime(device="cpu", compile=True)
    fabric = make_fabric(runtime)
    model = place(tiny_net(), fabric, runtime)
    recipe = REGISTRY.recipe(pruner)
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    trainer = Trainer(net, Plan(lr=0.1), fabric, runtime)
    plain = MaskedNet.learning(
        place(tiny_net(), fabric, runtime), prunable_names(model), recipe, generator(0, "scores")
    )
    beside = Trainer(plain, Plan(lr=0.1), fabric, CPU)
    torch._dynamo.reset()
    compiled = 0
    for step, batch in enumerate(list(tiny_data().train.batches(8, seed=0)) * 2):
        for each in (trainer, beside):
            if step in {3, 6}:
                alive = {
                    name: torch.rand(q.shape, generator=generator(step, name)) < 0.7
                    for name, q in each.net.alive.items()
                }
                each.net.freeze_(alive, {(name,): int(q.sum()) for name, q in alive.items()})
            each.module.train()
            each.step(batch, lr=0.1)
        compiled = compiled or len(graphs)
        assert len(graphs) == compiled > 0
    for name, score in net.scores.items():
        torch.testing.assert_close(score, plain.scores[name])
