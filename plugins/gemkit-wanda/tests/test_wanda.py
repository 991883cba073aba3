"""Wanda keeps its contract, and equals loops over rows and inputs."""

import itertools
from dataclasses import replace
from pathlib import Path

import gemkit_wanda
import pytest
import torch
import torch.nn.functional as F
from gemkit_wanda import Wanda
from torch import nn

from gemkit import Probe, load_plugins, search
from gemkit.core.errors import ImportanceError
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, generator, parameters_of
from gemkit.testing import CPU, contract, tiny_data, tiny_net

test_plugin = contract(gemkit_wanda)
test_wanda_on_one_batch = contract(Wanda(batches=1))

REGISTRY = load_plugins(files=[Path(gemkit_wanda.__file__)], only=())
BATCHES = list(tiny_data(samples=24).train.batches(12))


def probe(model, batches=BATCHES, alive=None):
    parameters = parameters_of(model, prunable_names(model))
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    alive = alive or {name: torch.ones_like(own, dtype=torch.bool) for name, own in weights.items()}
    weights = {name: own * alive[name] for name, own in weights.items()}
    return Probe(model, weights, alive, batches)


# --- norms ----------------------------------------------------------------------------------------


def test_the_score_of_a_linear_layer_is_that_of_loops():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 3))
    x = torch.cat([images for images, _ in BATCHES]).flatten(1)
    inputs = {"1.weight": x, "3.weight": model[1](x).relu()}
    scores = Wanda().importance(probe(model))
    for name, seen in inputs.items():
        weight, expected = model.get_parameter(name), torch.zeros_like(scores[name])
        for row, column in itertools.product(*map(range, weight.shape)):
            norm = sum(value**2 for value in seen[:, column].tolist()) ** 0.5
            expected[row, column] = abs(weight[row, column].item()) * norm
        torch.testing.assert_close(scores[name], expected)


LAYERS = {
    "plain": nn.Conv2d(4, 6, 3),
    "padded": nn.Conv2d(4, 6, 3, padding=1, stride=2),
    "dilated": nn.Conv2d(4, 6, 3, padding=2, dilation=2, bias=False),
    "grouped": nn.Conv2d(4, 6, (3, 1), groups=2),
    "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "circular": nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
}


def unfolded(layer, x):
    """Return the unfolded inputs of every row: [outputs, samples · positions, row length]."""
    if layer.padding_mode == "circular":
        x = F.pad(x, [1, 1, 1, 1], mode="circular")
    padding = 0 if layer.padding_mode == "circular" else layer.padding
    rows, outputs = [], layer.out_channels // layer.groups
    for part in x.chunk(layer.groups, 1):
        patches = F.unfold(part, layer.kernel_size, layer.dilation, padding, layer.stride)
        rows += [patches.transpose(1, 2).flatten(0, 1)] * outputs
    return torch.stack(rows)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_norms_of_a_convolution_are_those_of_its_unfolded_input(kind):
    first, layer = nn.Conv2d(2, 4, 1), LAYERS[kind]
    model = nn.Sequential(first, nn.Tanh(), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        x = first(torch.cat([images for images, _ in BATCHES])).tanh()
        norms = unfolded(layer, x).norm(dim=1).view_as(layer.weight)
        torch.testing.assert_close(
            layer.weight.abs() * norms, Wanda().importance(probe(model))["2.weight"]
        )


def test_a_transposed_convolution_meets_every_input_at_every_place():
    layer = nn.ConvTranspose2d(2, 3, 2, stride=2)
    model = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.cat([images for images, _ in BATCHES])
    norms = x.transpose(0, 1).flatten(1).norm(dim=1)
    scores = Wanda().importance(probe(model))["0.weight"]
    torch.testing.assert_close(scores, (layer.weight.abs() * norms.view(2, 1, 1, 1)).detach())


def test_a_shared_layer_counts_all_its_inputs():
    shared = nn.Linear(72, 72)
    model = nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared)
    x = torch.cat([images for images, _ in BATCHES]).flatten(1)
    seen = torch.cat([x, shared(x).relu()])
    expected = shared.weight.abs() * seen.norm(dim=0)
    torch.testing.assert_close(Wanda().importance(probe(model))["1.weight"], expected.detach())


def test_batch_norm_uses_running_statistics():
    model = tiny_net()
    one = Wanda().importance(probe(model))
    model[1].running_var.fill_(4.0)
    other = Wanda().importance(probe(model))
    assert torch.equal(one["0.weight"], other["0.weight"])
    torch.testing.assert_close(other["3.weight"], one["3.weight"] / 2, rtol=1e-4, atol=1e-6)


def test_pruned_weights_score_nothing_and_pass_nothing_on():
    model = tiny_net()
    rng = generator(0, "alive")
    alive = {
        name: torch.rand(own.shape, generator=rng) < 0.5
        for name, own in probe(model).weights.items()
    }
    dense, part = Wanda().importance(probe(model)), Wanda().importance(probe(model, alive=alive))
    assert all((part[name][~mask] == 0).all() for name, mask in alive.items())
    assert torch.equal(part["0.weight"][alive["0.weight"]], dense["0.weight"][alive["0.weight"]])
    assert not torch.allclose(part["3.weight"], dense["3.weight"] * alive["3.weight"])


# --- rows and blocks ------------------------------------------------------------------------------


def ticket_of(model, density=0.25, **parts):
    recipe = REGISTRY.recipe("wanda", parts=parts)
    return search(
        recipe, model, tiny_data(samples=24), density=density, runtime=CPU, on_collapse="warn"
    )


def wide_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4, bias=False),
        nn.Linear(4, 3),
    )


def test_every_row_keeps_its_largest_and_the_same_share():
    model = wide_net()
    ticket = ticket_of(model)
    assert ticket.kept == budget(ticket.prunable, 0.25)
    batches = list(itertools.islice(tiny_data(samples=24).train.batches(24, seed=0, epoch=0), 1))
    scores = Wanda().importance(probe(model, batches * 4))  # all of the data, four times
    for name, mask in ticket.mask.items():
        rows = mask.flatten(1).sum(1)
        assert rows.max() - rows.min() <= 1
        for row, kept, chosen in zip(scores[name].flatten(1), rows, mask.flatten(1), strict=True):
            ranked = sorted(range(len(row)), key=lambda at, row=row: (-row[at].item(), at))
            assert chosen.nonzero().view(-1).tolist() == sorted(ranked[: int(kept)])
    assert [int(row.sum()) for row in ticket.mask["2.weight"].flatten(1)] == [18] * 8


def test_it_differs_from_magnitude_by_its_inputs():
    recipe = REGISTRY.recipe("wanda", parts={"scores": "magnitude"})
    options = {"density": 0.25, "runtime": CPU, "on_collapse": "warn"}
    other = search(recipe, wide_net(), tiny_data(samples=24), **options).mask
    own = ticket_of(wide_net()).mask
    assert any(not torch.equal(mask, other[name]) for name, mask in own.items())


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 8)])
def test_blocks_keep_exactly_n_of_m(n, m):
    ticket = ticket_of(wide_net(), n / m, structure={"name": "nm", "n": n, "m": m})
    blocks = {"2.weight", "5.weight"} | ({"6.weight"} if m == 4 else set())
    assert set(ticket.mask) == blocks
    for mask in ticket.mask.values():
        along = mask.movedim(1, -1).reshape(-1, m)
        assert (along.sum(1) == n).all()


def test_other_structures_and_allocations_compose():
    for parts in (
        {"structure": "weights", "allocation": "global"},
        {"structure": "filters"},
        {"allocation": "erk"},
    ):
        ticket = ticket_of(wide_net(), 0.5, **parts)
        assert 0 < ticket.kept <= budget(ticket.prunable, 0.5)


# --- what it refuses ------------------------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        tokens = images.flatten(1, 2)
        return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))


class Multiplies(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(72, 3)

    def forward(self, images):
        return images.flatten(1) @ self.head.weight.T


@pytest.mark.parametrize(
    ("network", "weight", "function"),
    [
        (Attends, "attention.in_proj_weight", "multi_head_attention_forward"),
        (Multiplies, "head.weight", "__get__"),
    ],
)
def test_weights_whose_input_cannot_be_seen_are_refused(network, weight, function):
    with pytest.raises(ImportanceError, match=f"'{weight}' in '{function}'; leave that weight out"):
        Wanda().importance(probe(network()))


def test_attention_that_is_left_out_is_no_trouble():
    recipe = REGISTRY.recipe("wanda", options={"prunable.skip": ["attention.*"]})
    ticket = search(recipe, Attends(), tiny_data(samples=24), density=0.5, runtime=CPU)
    assert set(ticket.mask) == {"head.weight"}


def test_without_data_it_is_refused():
    with pytest.raises(ImportanceError, match="at least one batch"):
        Wanda().importance(replace(probe(tiny_net()), batches=[]))
