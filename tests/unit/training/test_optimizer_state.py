"""What optimizers remember can be saved, loaded from untrusted files, and forgotten."""

import copy
from functools import partial

import pytest
import torch
from tiny import CPU, tiny_net
from torch import nn

from gemkit import Plan
from gemkit.core.errors import CheckpointError
from gemkit.core.prunable import prunable_names
from gemkit.pruning.masked import MaskedNet
from gemkit.training.device import make_fabric, place
from gemkit.training.optimizer_names import FROM_TIMM, NATIVE
from gemkit.training.optimizer_state import load_state_, state_of
from gemkit.training.optimizers import make_optimizer
from gemkit.training.trainer import Trainer

GRADIENTS = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 0.1])]


def moved(optimizer, parameters, gradients=GRADIENTS):
    for gradient in gradients:
        for parameter in parameters:
            parameter.grad = gradient.expand(parameter.shape).clone()
        optimizer.step()
        optimizer.zero_grad()


def remembering(plan):
    """Return an optimizer that has taken steps, its parameters, and what makes another."""
    own = [nn.Parameter(torch.ones(shape)) for shape in ((2,), (2, 2), ())]
    make = partial(make_optimizer, plan)
    optimizer = make(own)
    moved(optimizer, own[:2])
    moved(optimizer, own[2:], [torch.tensor(1.0)])
    return optimizer, own, make


@pytest.mark.parametrize("name", [*NATIVE, *FROM_TIMM])
def test_what_is_remembered_can_be_saved_and_loaded(name):
    optimizer, own, make = remembering(Plan(optimizer=name, lr=0.1))
    saved = copy.deepcopy(state_of(optimizer))
    others = [nn.Parameter(parameter.detach().clone()) for parameter in own]
    again = make(others)
    load_state_(again, saved, make)
    moved(optimizer, own[:2])
    moved(again, others[:2])
    assert all(torch.equal(one, other) for one, other in zip(own, others, strict=True))


def test_a_parameter_of_one_number_resumes_as_well():
    optimizer, own, make = remembering(Plan(optimizer="adam", lr=0.1))
    other = [nn.Parameter(parameter.detach().clone()) for parameter in own]
    again = make(other)
    load_state_(again, copy.deepcopy(state_of(optimizer)), make)
    for made, (*_, parameter) in ((optimizer, own), (again, other)):
        moved(made, [parameter], [torch.tensor(2.0)])
    assert torch.equal(own[-1], other[-1])


def broken_state(name, change):
    optimizer, own, make = remembering(Plan(optimizer=name, lr=0.1))
    saved = copy.deepcopy(state_of(optimizer))
    change(saved)
    load_state_(make(own), saved, make)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sgd", lambda saved: saved["0"].update(extra=torch.ones(2)), "tensors are saved for"),
        ("sgd", lambda saved: saved["0"].clear(), "tensors are saved for none"),
        ("sgd", lambda saved: saved.update({"7": saved["0"]}), "no trained parameter of number"),
        ("sgd", lambda saved: saved.update({"-1": saved["0"]}), "no trained parameter of number"),
        ("sgd", lambda saved: saved.update({"0": [1, 2]}), "not saved as a table"),
        ("lion", lambda saved: saved["0"].update(exp_avg=torch.ones(3)), "another shape or type"),
        ("lion", lambda saved: saved["0"].update(exp_avg=torch.ones(2).double()), "another shape"),
        ("lion", lambda saved: saved["0"].update(exp_avg=1.0), "another shape or type"),
        ("adam", lambda saved: saved["0"].update(step=3.0), "'step' is saved with another"),
        ("adam", lambda saved: saved["0"].update(step=torch.ones(2)), "'step' is saved with"),
        ("adabelief", lambda saved: saved["0"].update(step=3.0), "'step' is saved with another ty"),
        ("adabelief", lambda saved: saved["0"].update(step=True), "'step' is saved with another t"),
        ("adabelief", lambda saved: saved["0"].update(step=-1), "which is not a count"),
        ("adabelief", lambda saved: saved["0"].update(step=10**400), "which is not a count"),
        ("adabelief", lambda saved: saved["0"].pop("step"), "'step' is saved with another type"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(name, change, words):
    broken_state(name, lambda saved: None)
    with pytest.raises(CheckpointError, match=words):
        broken_state(name, change)


@pytest.mark.parametrize(
    "optimizer", ["sgd", "damped", "adam", "nadam", "adagrad", "rmsproptf", torch.optim.NAdam]
)
def test_an_optimizer_that_forgets_is_as_a_fresh_one(optimizer):
    """NAdam begins with a product of 1 and RMSpropTF with squares of 1, so zeros would not do.

    SGD with dampening begins with the whole gradient.
    """
    options = {"dampening": 0.5} if optimizer == "damped" else {}
    optimizer = "sgd" if optimizer == "damped" else optimizer
    plan = Plan(optimizer=optimizer, optimizer_options=options, lr=0.1)
    fabric = make_fabric(CPU)
    model = place(tiny_net(), fabric, CPU)
    first, fresh = (
        Trainer(MaskedNet(copy.deepcopy(model), prunable_names(model)), plan, fabric, CPU)
        for _ in range(2)
    )
    for trainer, times in ((first, 3), (fresh, 0)):
        start = [one.detach().clone() for one in trainer.net.trainable()]
        moved(trainer.optimizer, trainer.net.trainable(), [torch.tensor(0.1)] * times)
        trainer.reset_optimizer_()
        with torch.no_grad():
            for one, before in zip(trainer.net.trainable(), start, strict=True):
                one.copy_(before)
        moved(trainer.optimizer, trainer.net.trainable(), [torch.tensor(0.1)] * 2)
    for one, other in zip(first.net.trainable(), fresh.net.trainable(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("name", "remembered"),
    [
        ("sgd", {"momentum_buffer": torch.ones(2)}),
        (
            "adam",
            {"step": torch.tensor(3.0), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)},
        ),
        (
            "adamw",
            {"step": torch.tensor(3.0), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)},
        ),
    ],
)
def test_checkpoints_from_before_there_were_other_optimizers_load(name, remembered):
    make = partial(make_optimizer, Plan(optimizer=name, lr=0.1))
    optimizer = make([nn.Parameter(torch.ones(2))])
    load_state_(optimizer, {"0": remembered}, make)
    assert state_of(optimizer).keys() == {"0"}
    for key, value in remembered.items():
        assert torch.equal(state_of(optimizer)["0"][key], value)
