"""SNIP against a closed form, and the choices its authors made."""

import pytest
import torch
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import importance, load_plugins, search
from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Wanted
from gemkit.core.tensors import budget, kept, total
from gemkit.methods.snip import Snip


def batches(parts=2, dtype=torch.float64):
    images, labels = next(tiny_data().train.batches(32))
    return list(zip(images.to(dtype).chunk(parts), labels.chunk(parts), strict=True))


def test_a_linear_network_has_a_closed_form():
    """dL/dW = Σ_b (softmax − one-hot)ᵀ x / n_b, so the score is |W ⊙ dL/dW|."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3, bias=False)).double()
    weight = model[1].weight.detach()
    gradient = torch.zeros_like(weight)
    for images, labels in batches():
        x = images.flatten(1)
        error = (x @ weight.T).softmax(1) - nn.functional.one_hot(labels, 3)
        gradient += error.T @ x / len(labels)
    measured = importance("snip", model, batches())["1.weight"]
    torch.testing.assert_close(measured, (weight * gradient).abs(), rtol=0, atol=1e-12)


def test_the_score_is_the_derivative_of_the_loss_by_a_mask():
    model = tiny_net().double().eval()
    measured = importance("snip", model, batches())
    weight, step = model[3].weight, 1e-6

    def loss(factor):
        with torch.no_grad():
            kept_aside = weight[2, 1, 0, 0].clone()
            weight[2, 1, 0, 0] *= factor
            total = sum(nn.functional.cross_entropy(model(x), y) for x, y in batches())
            weight[2, 1, 0, 0] = kept_aside
        return total

    slope = (loss(1 + step) - loss(1 - step)) / (2 * step)
    assert measured["3.weight"][2, 1, 0, 0] == pytest.approx(abs(float(slope)), abs=1e-8)


def test_by_default_batch_norm_uses_its_running_statistics_as_in_the_authors_program():
    model = tiny_net().double().train()
    default, trained, evaluated = (
        importance("snip", model, batches(), **options)["0.weight"]
        for options in ({}, {"mode": "train"}, {"mode": "eval"})
    )
    assert torch.equal(default, evaluated)
    assert not torch.allclose(default, trained)


def test_one_batch_is_wanted_unless_more_are():
    assert Snip().batches_wanted() == Wanted(batches=1)
    assert Snip(batches=5).batches_wanted() == Wanted(batches=5)


def test_without_data_there_is_a_clear_error():
    with pytest.raises(ImportanceError, match="at least one batch"):
        importance("snip", tiny_net(), [])


def test_the_pruner_is_one_shot_and_global():
    recipe = load_plugins().recipe("snip")
    assert [part.name for part in recipe.parts().values()] == [
        "snip",
        "open",
        "global",
        "once",
        "none",
        "as_built",
        "weights",
    ]
    model = tiny_net()
    ticket = search("snip", model, tiny_data(), density=0.3, runtime=CPU, on_collapse="warn")
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.3)
    assert ticket.info.epochs == 0
    assert torch.equal(ticket.state["0.weight"], model[0].weight)
