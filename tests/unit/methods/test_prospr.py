"""ProsPr against the unrolled graph and finite differences in the mask."""

import pytest
import torch
import torch.nn.functional as F
from tiny import CPU, tiny_data, tiny_net
from torch import nn
from torch.func import functional_call

from gemkit import importance, load_plugins, search
from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Wanted
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, kept, total
from gemkit.methods.prospr import Prospr


def batches(parts=4):
    images, labels = next(tiny_data().train.batches(32))
    return list(zip(images.double().chunk(parts), labels.chunk(parts), strict=True))


def smooth_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    ).double()


def outer_loss(model, masks, data, *, steps, lr, momentum, compat=False, graph=True):
    """The formula, written naively: masks at the start, SGD unrolled, a loss at the end."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    now = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    now |= {name: now[name] * mask for name, mask in masks.items()}
    velocity = None
    for step in range(steps + 1):
        images, labels = data[step % len(data)]
        logits = functional_call(model.train(), {**buffers, **now}, (images,))
        loss = F.cross_entropy(logits, labels)
        if step == steps:
            return loss
        slopes = torch.autograd.grad(loss, list(now.values()), create_graph=graph)
        if velocity is None:
            cut = compat and momentum
            velocity = [slope.detach() if cut else slope for slope in slopes]
        else:
            velocity = [momentum * v + slope for v, slope in zip(velocity, slopes, strict=True)]
        now = {
            name: value - lr * v if model.get_parameter(name).requires_grad else value
            for (name, value), v in zip(now.items(), velocity, strict=True)
        }


def masks_of(model):
    return {
        name: torch.ones_like(model.get_parameter(name)).requires_grad_()
        for name in prunable_names(model, frozen=True)
    }


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("parts", [1, 4])
def test_going_back_step_by_step_equals_the_unrolled_graph(steps, momentum, compat, parts):
    """With one batch it is used in every step; with four, five steps begin with the first again."""
    model, data = tiny_net().double(), batches(parts)
    options = {"steps": steps, "lr": 0.3, "momentum": momentum, "compat": compat}
    masks = masks_of(model)
    outer = outer_loss(model, masks, data, **options)
    expected = torch.autograd.grad(outer, list(masks.values()))
    measured = importance("prospr", model, data, **options)
    for name, value in zip(masks, expected, strict=True):
        torch.testing.assert_close(measured[name], value.abs(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_score_is_the_slope_of_the_last_loss_by_the_mask(momentum):
    model, data = smooth_net(), batches()
    options = {"steps": 3, "lr": 0.3, "momentum": momentum}
    measured = importance("prospr", model, data, **options)
    for name, index in (("0.weight", (1, 1, 2, 0)), ("4.weight", (2, 17))):
        losses = []
        for factor in (1 + 1e-5, 1 - 1e-5):
            masks = {name: mask.detach() for name, mask in masks_of(model).items()}
            masks[name][index] = factor
            losses.append(outer_loss(model, masks, data, graph=False, **options).item())
        slope = abs(losses[0] - losses[1]) / 2e-5
        assert float(measured[name][index]) == pytest.approx(slope, abs=1e-8)


def test_the_first_buffer_cut_off_is_another_score():
    """What `compat` repeats: with one step and momentum all curvature is lost."""
    cut, exact, first = (
        importance("prospr", smooth_net(), batches(), steps=1, momentum=0.9, **options)["0.weight"]
        for options in ({"compat": True}, {}, {"first_order": True})
    )
    torch.testing.assert_close(cut, first, rtol=0, atol=1e-15)
    assert not torch.allclose(cut, exact, rtol=1e-3)


def test_without_steps_it_is_snip_in_training_mode():
    one = importance("prospr", tiny_net(), batches(), steps=0)
    other = importance("snip", tiny_net(), batches()[:1], mode="train")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_biases_and_norms_take_the_steps_too_unless_they_are_frozen():
    model, frozen = tiny_net(), tiny_net()
    for name in ("0.bias", "1.weight", "1.bias", "8.bias"):
        frozen.get_parameter(name).requires_grad_(False)
    one, other = (importance("prospr", net, batches()) for net in (model, frozen))
    assert not torch.allclose(one["0.weight"], other["0.weight"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_frozen_weights_are_measured_but_do_not_take_the_steps(momentum):
    model, data = tiny_net().double(), batches()
    for name in ("3.weight", "8.weight", "8.bias"):
        model.get_parameter(name).requires_grad_(False)
    options = {"steps": 3, "lr": 0.3, "momentum": momentum}
    masks = masks_of(model)
    expected = torch.autograd.grad(outer_loss(model, masks, data, **options), list(masks.values()))
    measured = importance("prospr", model, data, prune_frozen=True, **options)
    for name, value in zip(masks, expected, strict=True):
        torch.testing.assert_close(measured[name], value.abs(), rtol=0, atol=1e-12)


def test_pruned_weights_stay_out_of_the_steps():
    """They start at zero and must be zero after every step, or the loss is another network's."""
    model, data = smooth_net(), batches()
    alive = {name: torch.ones_like(model.get_parameter(name)) for name in prunable_names(model)}
    alive["4.weight"][:, 16:] = 0
    measured = importance("prospr", model, data, alive=alive, lr=0.5)
    # The same network with the pruned columns cut out.
    small = smooth_net()
    small[4] = nn.Linear(16, 3).double()
    small.insert(4, nn.Unflatten(1, (4, 16)))
    small.insert(5, First())
    with torch.no_grad():
        small[6].weight.copy_(model[4].weight[:, :16])
        small[6].bias.copy_(model[4].bias)
    expected = importance("prospr", small, data, lr=0.5)
    torch.testing.assert_close(measured["0.weight"], expected["0.weight"])
    torch.testing.assert_close(measured["4.weight"][:, :16], expected["6.weight"])


class First(nn.Module):
    def forward(self, x):
        return x[:, 0]


def test_a_batch_for_every_step_and_one_more():
    assert Prospr().batches_wanted() == Wanted(batches=4)
    assert Prospr(steps=7).batches_wanted() == Wanted(batches=8)
    with pytest.raises(ImportanceError, match="at least one batch"):
        importance("prospr", tiny_net(), [])


def test_the_pruner_reaches_its_count():
    assert load_plugins().recipe("prospr").schedule.name == "once"
    ticket = search("prospr", tiny_net(), tiny_data(), density=0.3, runtime=CPU, on_collapse="warn")
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.3)
