"""Hutchinson and Fisher scores keep their contracts and equal other ways to compute them."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path

import gemkit_hutchinson
import pytest
import torch
import torch.nn.functional as F
from gemkit_hutchinson import Fisher, Hutchinson
from torch import nn
from torch.func import functional_call, grad, vmap

from gemkit import Probe, load_plugins, search, select
from gemkit.core.errors import ImportanceError
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, generator, parameters_of
from gemkit.testing import CPU, contract, tiny_data, tiny_net

test_plugin = contract(gemkit_hutchinson)
test_pruner_of_hutchinson = contract(Hutchinson(variant="pruner", draws=1, warmup=0))
test_diagonal_in_parts = contract(Hutchinson(variant="diagonal", batches=3, draws=1, warmup=1))
test_diagonal_of_fisher = contract(Fisher(variant="diagonal", per_class=2, warmup=1))

REGISTRY = load_plugins(files=[Path(gemkit_hutchinson.__file__)], only=())
BATCHES = list(tiny_data(samples=30).train.batches(10))


def smooth_net():
    """Build a network small enough for its whole Hessian, with curvature everywhere."""
    torch.manual_seed(0)
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*pooled, nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 3)).double()


def probe(model, batches=BATCHES, seed=0, alive=None):
    parameters = parameters_of(model, prunable_names(model))
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    alive = alive or {name: torch.ones_like(own, dtype=torch.bool) for name, own in weights.items()}
    weights = {name: own * alive[name] for name, own in weights.items()}
    batches = [(images.to(next(model.parameters())), labels) for images, labels in batches]
    return Probe(model, weights, alive, batches, rng=generator(seed, "importance"))


def flat(tensors):
    return torch.cat([own.reshape(-1) for own in tensors.values()])


def hessian_of(probe, images, labels, temperature):
    """Return the gradient and the whole Hessian of one batch, by torch's own function."""
    sizes = [own.numel() for own in probe.weights.values()]
    shapes = [own.shape for own in probe.weights.values()]

    def loss(vector):
        parts = [part.view(s) for part, s in zip(vector.split(sizes), shapes, strict=True)]
        weights = dict(zip(probe.weights, parts, strict=True))
        logits = functional_call(probe.model, weights, (images,))
        return F.cross_entropy(logits / temperature, labels)

    at = flat(probe.weights)
    return torch.func.grad(loss)(at), torch.autograd.functional.hessian(loss, at)


def exact(probe, temperature):
    """Return gradient and Hessian of the mean over all samples."""
    total = sum(len(labels) for _, labels in probe.batches)
    found = [
        [len(labels) / total * own for own in hessian_of(probe, images, labels, temperature)]
        for images, labels in probe.batches
    ]
    return [sum(parts) for parts in zip(*found, strict=True)]


# --- Hutchinson -----------------------------------------------------------------------------------


def test_over_all_signs_hutchinson_is_the_diagonal_of_the_hessian(monkeypatch):
    """Everything off the diagonal cancels: z and −z give the same, so half of all signs will do."""
    here = probe(smooth_net(), batches=BATCHES[:1])
    _, hessian = exact(here, 200.0)
    size = len(hessian)
    every = torch.tensor(list(itertools.product((1.0, -1.0), repeat=size)))[: 2 ** (size - 1)]
    drawn = (part for row in every.double() for part in row.split([4, size - 4]))
    monkeypatch.setattr(gemkit_hutchinson, "_signs", lambda like, rng: next(drawn).view_as(like))
    scores = Hutchinson(variant="diagonal", draws=len(every)).importance(here)
    assert hessian.diagonal().abs().max() > 1e-8
    torch.testing.assert_close(flat(scores), hessian.diagonal(), rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("variant", ["taylor", "pruner", "diagonal"])
@pytest.mark.parametrize("temperature", [1.0, 200.0])
def test_the_variants_are_the_papers(variant, temperature):
    """The signs are drawn once more, and multiplied with the whole Hessian."""
    here = probe(smooth_net(), batches=[BATCHES[0], (BATCHES[1][0][:4], BATCHES[1][1][:4])])
    rng, diagonal = generator(0, "importance"), 0
    for images, labels in here.batches:
        _, hessian = hessian_of(here, images, labels, temperature)
        for _ in range(4):
            drawn = [torch.randint(2, own.shape, generator=rng) for own in here.weights.values()]
            z = torch.cat([own.view(-1) for own in drawn]) * 2.0 - 1.0
            diagonal = diagonal + z * (hessian @ z.to(hessian)) * len(labels) / 14 / 4
    gradient, _ = exact(here, temperature)
    w = flat(here.weights)
    expected = {
        "taylor": (w * gradient + 0.5 * w**2 * diagonal).abs(),
        "pruner": 0.5 * w**2 * diagonal,
        "diagonal": diagonal,
    }[variant]
    scores = Hutchinson(variant=variant, temperature=temperature, draws=4)
    torch.testing.assert_close(flat(scores.importance(here)), expected)


def test_the_signs_depend_on_the_seed_alone():
    one, same, other = (
        flat(Hutchinson().importance(probe(tiny_net(), seed=seed))) for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


# --- Fisher ---------------------------------------------------------------------------------------


def per_sample_gradients(model, names, images, labels, temperature):
    """Return the gradient of every sample, all at once, of a model in evaluation mode."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: own.detach() for name, own in state.items()}
    weights = {name: state.pop(name) for name in names}

    def loss(weights, image, label):
        logits = functional_call(model, {**state, **weights}, (image[None],))
        return F.cross_entropy(logits / temperature, label[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)


@pytest.mark.parametrize("temperature", [1.0, 200.0])
@pytest.mark.parametrize("variant", ["taylor", "pruner", "diagonal"])
def test_fisher_is_the_mean_square_of_the_gradients_of_samples(variant, temperature):
    model = tiny_net().double().eval()
    here = probe(model, batches=[BATCHES[0], (BATCHES[1][0][:3], BATCHES[1][1][:3])])
    images, labels = (torch.cat(parts) for parts in zip(*here.batches, strict=True))
    each = per_sample_gradients(model, list(here.weights), images, labels, temperature)
    scores = Fisher(variant=variant, temperature=temperature, warmup=0).importance(here)
    for name, w in here.weights.items():
        g, h = each[name].mean(0), each[name].square().mean(0)
        expected = {
            "taylor": (w * g + 0.5 * w**2 * h).abs(),
            "pruner": 0.5 * w**2 * h,
            "diagonal": h,
        }[variant]
        torch.testing.assert_close(scores[name], expected)


def test_fisher_does_not_depend_on_how_samples_are_cut_into_batches():
    images, labels = (torch.cat(parts) for parts in zip(*BATCHES, strict=True))
    one = Fisher(warmup=0).importance(probe(tiny_net()))
    other = Fisher(warmup=0).importance(probe(tiny_net(), batches=[(images, labels)]))
    for name, own in one.items():
        torch.testing.assert_close(own, other[name])


# --- batch norm -----------------------------------------------------------------------------------


def warmed(model, passes):
    """Return a copy of the model whose statistics were updated by plain forward passes."""
    model = copy.deepcopy(model).train()
    for _ in range(passes):
        for images, _ in BATCHES:
            model(images.to(next(model.parameters())))
    return model.eval()


@pytest.mark.parametrize("scores", [Hutchinson, Fisher])
def test_the_warm_up_is_that_of_a_trained_copy(scores):
    model = tiny_net().double()
    after = scores(warmup=3).importance(probe(model))
    expected = scores(warmup=0).importance(probe(warmed(model, 3)))
    before = scores(warmup=0).importance(probe(model))
    for name, own in after.items():
        torch.testing.assert_close(own, expected[name])
    assert any(not torch.allclose(own, before[name]) for name, own in after.items())
    assert model[1].running_mean.eq(0).all()
    assert model[1].num_batches_tracked == 0


def test_by_default_almost_nothing_is_left_of_the_first_statistics():
    model = tiny_net().double()
    probe_here = probe(model, batches=BATCHES[:1])
    buffers = Fisher()._statistics(probe_here, probe_here.leaves())
    hidden = model[0](BATCHES[0][0].double()).transpose(0, 1).flatten(1)
    torch.testing.assert_close(buffers["1.running_mean"], hidden.mean(1), rtol=0.01, atol=1e-3)
    torch.testing.assert_close(buffers["1.running_var"], hidden.var(1), rtol=0.02, atol=0.01)


# --- what else they depend on ---------------------------------------------------------------------


@pytest.mark.parametrize("scores", [Hutchinson(), Fisher(), Hutchinson(variant="diagonal")])
def test_pruned_weights_count_as_zero_and_score_nothing(scores):
    model = tiny_net().double()
    rng = generator(0, "alive")
    alive = {
        name: torch.rand(own.shape, generator=rng) < 0.5
        for name, own in probe(model).weights.items()
    }
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        for name, mask in alive.items():
            pruned.get_parameter(name).mul_(mask)
    part = scores.importance(probe(model, alive=alive))
    whole = scores.importance(probe(pruned))
    for name, mask in alive.items():
        assert (part[name][~mask] == 0).all()
        if scores.name == "fisher":  # signs of pruned weights add noise to Hutchinson's
            torch.testing.assert_close(part[name][mask], whole[name][mask])


def test_without_data_they_are_refused():
    with pytest.raises(ImportanceError, match="at least one batch"):
        Hutchinson().importance(replace(probe(tiny_net()), batches=[]))


def test_attention_has_the_derivatives():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, images):
            tokens = images.flatten(1, 2)
            return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))

    torch.manual_seed(0)
    here = probe(Attends())
    for scores in (Hutchinson(), Fisher()):
        assert all(own.isfinite().all() for own in scores.importance(here).values())


def mask_of(pruner, **options):
    recipe = REGISTRY.recipe(pruner, options=options)
    ticket = search(
        recipe, tiny_net(), tiny_data(samples=60), density=0.3, runtime=CPU, on_collapse="warn"
    )
    assert ticket.kept == budget(ticket.prunable, 0.3)
    return flat(ticket.mask)


@pytest.mark.parametrize(
    ("pruner", "option"),
    [
        ("hutchinson", {"scores.variant": "diagonal"}),
        ("hutchinson", {"scores.draws": 1, "scores.variant": "pruner"}),
        ("hutchinson", {"scores.warmup": 0}),
        ("fisher", {"scores.variant": "diagonal"}),
        ("fisher", {"scores.warmup": 0}),
        ("fisher", {"scores.per_class": 2}),
    ],
)
def test_the_mask_depends_on_the_options(pruner, option):
    assert torch.equal(mask_of(pruner), mask_of(pruner))
    assert not torch.equal(mask_of(pruner), mask_of(pruner, **option))


def test_both_differ_from_snip():
    """To first order they are SNIP, so the second order must show."""
    snip, hutchinson, fisher = (mask_of(name) for name in ("snip", "hutchinson", "fisher"))
    assert not torch.equal(hutchinson, fisher)
    assert not torch.equal(hutchinson, snip)


def test_selection_takes_the_largest():
    scores = Fisher(variant="diagonal").importance(probe(tiny_net()))
    mask = select(scores, 0.2)
    lowest = min(own[mask[name]].min() for name, own in scores.items() if mask[name].any())
    assert all((own[~mask[name]] <= lowest).all() for name, own in scores.items())
