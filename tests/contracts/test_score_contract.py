"""Every score leaves the model unchanged and returns importance that fits it."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import MeasuredScores, importance, load_plugins, prunable_names, search, select
from gemkit.core.errors import ImportanceError
from gemkit.core.tensors import budget, kept, total
from gemkit.parts.scores import LearnedScores

REGISTRY = load_plugins()
SCORES = sorted(REGISTRY.parts["scores"])
MEASURED = [
    name for name in SCORES if not issubclass(REGISTRY.parts["scores"][name].thing, LearnedScores)
]
# Fields whose other value takes another path through the code.
VARIANTS = [
    ("snip", {"mode": "train"}),
    ("grasp", {"mode": "eval"}),
    ("grasp", {"absolute": True}),
    ("prospr", {"steps": 1, "momentum": 0.9, "compat": True}),
    ("prospr", {"steps": 2, "first_order": True}),
]
# Learned scores measure nothing; their contracts are in test_contracts.py.
ALL = [*((name, {}) for name in MEASURED), *VARIANTS]


def batches(dtype=torch.float32):
    return [(x.to(dtype), y) for x, y in tiny_data().train.batches(8, seed=0)]


def odd_model():
    """Build a model with mixed modes, a gradient, a frozen parameter and dropout."""
    model = tiny_net().eval()
    model.insert(8, nn.Dropout(0.3))
    model[3].train()
    model[9].weight.grad = torch.ones_like(model[9].weight)
    model[0].bias.requires_grad_(False)
    model[1].running_mean.normal_()
    return model


def snapshot(model):
    """Return everything of a model that scoring must not change, and the global generators."""
    return (
        copy.deepcopy(model.state_dict()),
        [module.training for module in model.modules()],
        [parameter.requires_grad for parameter in model.parameters()],
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        torch.get_rng_state(),
    )


def same(one, other):
    state, *flags, gradients, rng = one
    state2, *flags2, gradients2, rng2 = other
    return (
        equal(state, state2) and flags == flags2 and equal(gradients, gradients2)
    ) and torch.equal(rng, rng2)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def half_alive(model):
    """Return boolean masks with every second weight pruned."""
    shapes = {name: model.get_parameter(name) for name in prunable_names(model)}
    return {
        name: (torch.arange(weight.numel()) % 2 == 0).view(weight.shape)
        for name, weight in shapes.items()
    }


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(("scores", "options"), ALL)
def test_scoring_leaves_the_model_identical_to_the_bit(scores, options, pruned):
    model = odd_model()
    before = snapshot(model)
    alive = half_alive(model) if pruned else None
    importance(scores, model, batches(), alive=alive, **options)
    assert same(before, snapshot(model))


@pytest.mark.parametrize("scores", MEASURED)
def test_a_score_can_be_measured_under_no_grad(scores):
    with torch.no_grad():
        quiet = importance(scores, tiny_net(), batches())
    assert equal(quiet, importance(scores, tiny_net(), batches()))


class Careless(MeasuredScores):
    """A broken score; each fault changes the model in another way."""

    name = "careless"
    fault: str

    def importance(self, probe):
        model, (images, labels) = probe.model, probe.batches[0]
        if self.fault == "statistics":
            model[1].train()(model[0](images))
            model[1].eval()
        elif self.fault == "mode":
            model.train()
        elif self.fault == "gradient":
            F.cross_entropy(model(images), labels).backward()
        elif self.fault == "frozen":
            model.requires_grad_(True)
        elif self.fault == "weights":
            with torch.no_grad():
                model[0].weight.abs_()
        return {name: weight.abs() for name, weight in probe.weights.items()}


@pytest.mark.parametrize("fault", ["statistics", "mode", "gradient", "frozen", "weights", "none"])
def test_a_broken_score_is_caught(fault):
    model = odd_model()
    before = snapshot(model)
    expected = nullcontext() if fault == "none" else pytest.raises(ImportanceError, match="changed")
    with expected:
        importance(Careless(fault=fault), model, batches())
    assert same(before, snapshot(model)) == (fault == "none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("scores", "options"), ALL)
def test_importance_has_the_models_names_shapes_and_dtype(scores, options, dtype, device):
    if device.type == "mps" and dtype == torch.float64:
        pytest.skip("this device has no double precision")
    model = tiny_net().to(device, dtype)
    result = importance(scores, model, batches(dtype), **options)
    assert list(result) == prunable_names(model)
    for name, value in result.items():
        assert value.shape == model.get_parameter(name).shape
        assert value.dtype == dtype
        assert value.device.type == device.type
        assert value.isfinite().all()
        assert value.unique().numel() > 1


@pytest.mark.parametrize(("scores", "options"), ALL)
def test_importance_is_the_same_for_the_same_seed(scores, options):
    one, again, other = (
        importance(scores, odd_model(), batches(), seed=seed, **options) for seed in (3, 3, 4)
    )
    assert all(torch.equal(one[name], again[name]) for name in one)
    draws = scores in ("random", "random_start") or scores not in MEASURED
    assert draws != all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("scores", "options"), ALL)
def test_pruned_weights_are_out_of_the_network_that_is_measured(scores, options):
    """Their values must not matter: importance is that of a network with zeros there."""
    model = tiny_net()
    alive = half_alive(model)
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for name, mask in alive.items():
            zeroed.get_parameter(name).mul_(mask)
    one, other = (
        importance(scores, net, batches(), alive=alive, **options) for net in (model, zeroed)
    )
    for name, mask in alive.items():
        assert torch.equal(one[name], other[name])
        assert one[name][mask].isfinite().all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("scores", "options"), [case for case in ALL if case[0] in MEASURED])
def test_scores_iterated_over_a_hundred_rounds_never_revive_a_weight(scores, options):
    model, alive, rounds = tiny_net(), None, 100
    for turn in range(1, rounds + 1):
        density = 0.2 ** (turn / rounds)
        measured = importance(scores, model, batches(), alive=alive, **options)
        chosen = select(measured, density, alive=alive)
        assert kept(chosen) == budget(total(chosen), density)
        if alive is not None:
            assert not any((chosen[name] & ~alive[name]).any() for name in chosen)
        alive = chosen


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scores", MEASURED)
def test_the_engine_iterates_any_measured_score_to_the_exact_count(scores):
    recipe = REGISTRY.recipe(
        {"pruner": "iterated", "scores": scores, "schedule": "exponential"},
        options={"schedule.rounds": 20},
    )
    ticket = search(recipe, tiny_net(), tiny_data(), density=0.2, runtime=CPU, on_collapse="warn")
    counts = [record.alive for record in ticket.info.history]
    assert len(counts) == 20
    assert counts == sorted(counts, reverse=True)
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.2)
