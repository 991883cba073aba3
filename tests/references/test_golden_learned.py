"""Gem-Miner and Edge-Popup against numbers from the original authors' code, through the engine."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gemkit import Now, Plan, Runtime, load_plugins
from gemkit.core.tensors import generator, kept, total
from gemkit.pruning.freeze import freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.update import pull_back_
from gemkit.training.device import make_fabric
from gemkit.training.trainer import Trainer

NAMES = ["conv1.weight", "conv2.weight", "fc.weight"]
RUNTIME = Runtime(device="cpu", precision="64", channels_last=False)
TOLERANCE = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module")
def golden():
    with np.load(
        Path(__file__).parents[1] / "golden" / "learned.npz", allow_pickle=False
    ) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def named(golden, prefix):
    return {name: golden[f"{prefix}/{name}"] for name in NAMES}


def tinyconv(golden):
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 4, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(4, affine=False),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(4, 8, 3, padding=1, bias=False),
            relu2=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            fc=nn.Linear(8, 5, bias=False),
        )
    ).double()
    model.load_state_dict(named(golden, "in/param"), strict=False)
    return model


def scored(golden, recipe, scores, flags=None):
    """A network of the engine's own, put into the golden's state."""
    net = MaskedNet.learning(tinyconv(golden), NAMES, recipe, generator(0, "scores"))
    with torch.no_grad():
        for name, value in named(golden, f"in/{scores}").items():
            net.scores[name].copy_(value)
        recipe.scores.project_(net.scores)  # the golden scores start out of bounds
    net.freeze_(named(golden, f"in/{flags}") if flags else net.alive, net.shares)
    return net


def score_gradients(net):
    """Turn the gradients that a backward pass has left into those of the scores."""
    net.learned.take_gradients_(net.parameters)
    with torch.no_grad():
        pull_back_(net.learned)
    return {name: score.grad for name, score in net.learned.parameters.items()}


def gem_miner(weight):
    return load_plugins().recipe("gem_miner", options={"regularizer.weight": weight})


def loss_of(net, golden):
    net.model.train()
    logits = net.model(golden["in/x"])
    return logits, F.cross_entropy(logits, golden["in/y"])


def assert_same(actual, expected):
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].to(value.dtype), value, **TOLERANCE)


@pytest.mark.parametrize("case", ["flags0", "flags1"])
def test_gem_miner_gradients_pass_straight_through_as_in_the_authors_code(golden, case):
    flags = "gm_flags" if case == "flags1" else None
    net = scored(golden, gem_miner(0.0), "gm_scores", flags)
    assert_same(net.mask, named(golden, f"gm_ste_{case}/mask"))
    logits, loss = loss_of(net, golden)
    torch.testing.assert_close(logits, golden[f"gm_ste_{case}/logits"], **TOLERANCE)
    torch.testing.assert_close(loss, golden[f"gm_ste_{case}/loss"], **TOLERANCE)
    loss.backward()
    gradients = score_gradients(net)
    assert_same(gradients, named(golden, f"gm_ste_{case}/score_grad"))


@pytest.mark.parametrize("case", ["flags0", "flags1"])
def test_the_l2_penalty_counts_every_score_also_frozen_ones(golden, case):
    recipe = gem_miner(1e-3)
    net = scored(golden, recipe, "gm_scores", "gm_flags" if case == "flags1" else None)
    penalty = recipe.regularizer.penalty(net.scores, Now())
    torch.testing.assert_close(penalty, golden[f"gm_ste_{case}/reg_loss"], **TOLERANCE)


@pytest.mark.parametrize("case", ["flags0", "flags1"])
@pytest.mark.parametrize("steps", [1, 3])
def test_gem_miner_training_steps_and_freeze_equal_the_authors(golden, case, steps):
    recipe = gem_miner(1e-3)
    net = scored(golden, recipe, "gm_scores", "gm_flags" if case == "flags1" else None)
    trainer = Trainer(net, Plan(lr=0.1, momentum=0.9), make_fabric(RUNTIME), RUNTIME)
    trainer.module.train()
    for _ in range(steps):
        trainer.step((golden["in/x"], golden["in/y"]), lr=0.1)
    assert_same(net.scores, named(golden, f"gm_train{steps}_{case}/scores_after"))

    before, after = golden[f"gm_train{steps}_{case}/active_before_after"].tolist()
    assert kept(net.alive) == before
    freeze(net, recipe, after / total(net.alive), net.scores)
    assert_same(net.alive, named(golden, f"gm_train{steps}_{case}/flag_after_bottomk"))


@pytest.mark.parametrize("ratio", [0.5, 0.3])
def test_edge_popup_masks_and_gradients_equal_the_authors(golden, ratio):
    """Upstream rounds the kept count up in every layer; gemkit meets the total exactly.

    So the layer counts are upstream's here, and everything else is the engine's.
    """
    net = scored(golden, load_plugins().recipe("edge_popup"), "ep_scores")
    sizes = {name: score.numel() for name, score in net.scores.items()}
    net.freeze_(net.alive, {(name,): n - int((1 - ratio) * n) for name, n in sizes.items()})
    assert_same(net.mask, named(golden, f"ep_k{ratio}/mask"))
    logits, loss = loss_of(net, golden)
    torch.testing.assert_close(logits, golden[f"ep_k{ratio}/logits"], **TOLERANCE)
    loss.backward()
    gradients = score_gradients(net)
    assert_same(gradients, named(golden, f"ep_k{ratio}/score_grad"))


def test_edge_popup_through_a_freeze_keeps_the_exact_total(golden):
    recipe = load_plugins().recipe("edge_popup")
    net = scored(golden, recipe, "ep_scores")
    freeze(net, recipe, 0.5, net.learned.view)
    assert_same(net.mask, named(golden, "ep_k0.5/mask"))


def test_a_clamp_inside_the_gradient_would_not_pass(golden):
    """The broken version: gradients cut where a score sits at the edge of its box."""
    net = scored(golden, gem_miner(0.0), "gm_scores")
    loss_of(net, golden)[1].backward()
    gradients = score_gradients(net)
    cut = {
        name: gradients[name] * ((score > 0) & (score < 1)) for name, score in net.scores.items()
    }
    with pytest.raises(AssertionError):
        assert_same(cut, named(golden, "gm_ste_flags0/score_grad"))
