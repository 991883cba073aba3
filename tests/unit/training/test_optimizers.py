"""Making optimizers, from names, options, functions and groups, and saving what they remember."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny import CPU, tiny_net
from torch import nn

from gemkit import Plan, Runtime
from gemkit.core.errors import OptionError
from gemkit.core.prunable import prunable_names
from gemkit.pruning.finetune import finetune_plan
from gemkit.pruning.masked import MaskedNet
from gemkit.training.device import make_fabric, place
from gemkit.training.optimizer_names import NATIVE
from gemkit.training.optimizers import can_compile, make_optimizer, set_lr
from gemkit.training.trainer import Trainer

GRADIENTS = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 0.1])]


def weights(*shapes):
    return [nn.Parameter(torch.ones(shape)) for shape in shapes or [(2,)]]


def moved(optimizer, parameters, gradients=GRADIENTS):
    for gradient in gradients:
        for parameter in parameters:
            parameter.grad = gradient.expand(parameter.shape).clone()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in parameters]


def path(plan):
    (weight,) = own = weights()
    moved(make_optimizer(plan, own), own)
    return weight.detach()


# --- by name -------------------------------------------------------------------------------------

OWN = {
    "sgd": (Plan(lr=0.1, momentum=0.8), partial(torch.optim.SGD, momentum=0.8)),
    "adam": (Plan(lr=0.1, optimizer="adam"), torch.optim.Adam),
    "adamw": (
        Plan(lr=0.1, optimizer="adamw", momentum=0.8),
        partial(torch.optim.AdamW, betas=(0.8, 0.999)),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_torchs_own_are_torchs_own_fused_to_the_bit(name):
    plan, make = OWN[name]
    (weight,) = own = weights()
    optimizer = make([weight], lr=0.1, weight_decay=0.01, fused=True)
    expected = moved(optimizer, own)[0]
    assert torch.equal(path(plan.model_copy(update={"weight_decay": 0.01})), expected)
    assert make_optimizer(plan, weights()).defaults["fused"] is True


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_first_gradient_may_come_later_than_others(dampening):
    options = {"dampening": dampening}
    plan = Plan(lr=0.1, momentum=0.9, weight_decay=0.2, optimizer_options=options)
    ours, theirs = ([torch.nn.Parameter(torch.ones(3)) for _ in range(2)] for _ in range(2))
    optimizers = (
        make_optimizer(plan, ours),
        torch.optim.SGD(theirs, 0.1, 0.9, dampening, weight_decay=0.2, foreach=False),
    )
    for step in range(4):
        for optimizer, (early, late) in zip(optimizers, (ours, theirs), strict=True):
            early.grad = torch.full((3,), 1.0 + step)
            late.grad = None if step in (0, 2) else torch.full((3,), 2.0 - step)
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_lion_follows_its_formula():
    weight, mean = torch.ones(2), torch.zeros(2)
    for gradient in GRADIENTS:
        weight = weight * (1 - 0.1 * 0.3) - 0.1 * (0.9 * mean + 0.1 * gradient).sign()
        mean = 0.99 * mean + 0.01 * gradient
    torch.testing.assert_close(path(Plan(optimizer="lion", lr=0.1, weight_decay=0.3)), weight)


@pytest.mark.parametrize("name", [*NATIVE, "rmsprop", "lion", "momentum"])
def test_weight_decay_reaches_every_parameter_biases_too(name):
    plan = Plan(optimizer=name, lr=0.1, weight_decay=0.5)
    own = weights((3,), (2, 2))
    moved(make_optimizer(plan, own), own, [torch.zeros(1)])
    assert all((weight < 1).all() for weight in own)


@pytest.mark.parametrize("name", ["momentum", "rmsprop", "sgdw"])
def test_momentum_reaches_optimizers_that_have_one(name):
    plans = [Plan(optimizer=name, lr=0.1, momentum=momentum) for momentum in (0.9, 0.5)]
    assert not torch.equal(*map(path, plans))


def test_what_an_optimizer_would_ignore_is_refused():
    lion = {"optimizer": "lion", "lr": 0.1}
    for wrong, words in [
        ({"momentum": 0.5}, "'lion' ignores momentum; leave it out"),
        ({"nesterov": True}, "'lion' ignores nesterov"),
        ({"optimizer_options": {"eps": 1e-3}}, r"optimizer_options\.eps: .*'lion' has no such"),
        ({"optimizer_options": {"beta": [0.5, 0.5]}}, "unexpected keyword argument 'beta'; check"),
        ({"optimizer_options": {"layer_decay": 0.5}}, "has no such option"),
        ({"optimizer_options": {"betas": [2.0, 0.5]}}, "cannot be made: Invalid beta"),
        ({"optimizer_options": {"betas": "high"}}, "cannot be made"),
        ({"optimizer_options": {"opt": "kron"}}, "cannot be made"),
        ({"optimizer_options": {"caution": True}}, "cannot be used: the step of a weight depends"),
    ]:
        with pytest.raises(OptionError, match=words):
            make_optimizer(Plan(**lion, **wrong), weights())
    with pytest.raises(ValidationError, match="lr, momentum: set by the field of that name"):
        Plan(**lion, optimizer_options={"lr": 1.0, "momentum": 0.1})


def test_options_reach_the_optimizer():
    betas = {"betas": [0.9, 0.5]}
    for name in ("adam", "lion"):
        plain = Plan(optimizer=name, lr=0.1)
        other = Plan(optimizer=name, lr=0.1, optimizer_options=betas)
        assert not torch.equal(path(plain), path(other))
        assert make_optimizer(other, weights()).param_groups[0]["betas"] == (0.9, 0.5)
    assert torch.equal(
        path(Plan(optimizer="adam", lr=0.1, momentum=0.7)),
        path(Plan(optimizer="adam", lr=0.1, optimizer_options={"betas": [0.7, 0.999]})),
    )


def test_a_name_that_this_timm_does_not_have_is_refused(monkeypatch):
    def old(*given, **named):
        raise AssertionError  # which is all that timm 1.0.10 says

    monkeypatch.setattr("timm.optim.create_optimizer_v2", old)
    with pytest.raises(OptionError, match=r"'adopt' cannot be made: .*whether timm is too old"):
        make_optimizer(Plan(optimizer="adopt", lr=0.1), weights())


def test_an_optimizer_without_a_default_asks_for_a_learning_rate():
    for optimizer in ("lion", torch.optim.RMSprop):
        with pytest.raises(ValidationError, match=r"there is no default for optimizer .*; set it"):
            Plan(optimizer=optimizer)
    assert all(Plan(optimizer=name).lr is None for name in NATIVE)


# --- functions -----------------------------------------------------------------------------------


def rmsprop(params, lr, weight_decay):
    return torch.optim.RMSprop(params, lr=lr, weight_decay=weight_decay, alpha=0.5)


def test_a_function_makes_the_optimizer():
    expected = weights()
    moved(torch.optim.RMSprop(expected, lr=0.1, weight_decay=0.3, alpha=0.5), expected)
    plan = Plan(optimizer=rmsprop, lr=0.1, weight_decay=0.3)
    assert torch.equal(path(plan), expected[0])


def test_a_function_may_form_groups_of_its_own():
    def apart(params, lr, weight_decay):
        own = [one for group in params for one in group["params"]]
        decayed = {"params": [one for one in own if one.ndim > 1], "weight_decay": weight_decay}
        return torch.optim.SGD([decayed, {"params": [one for one in own if one.ndim < 2]}], lr=lr)

    plan, (bias, matrix) = Plan(optimizer=apart, lr=0.1, weight_decay=1.0), weights((2,), (2, 2))
    moved(make_optimizer(plan, [bias, matrix]), [bias, matrix], [torch.zeros(1)])
    assert (bias == 1).all()
    assert (matrix < 1).all()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda params, lr, weight_decay: 3, "returns int; it must return a torch.optim.Optimizer"),
        (lambda params: 3, "cannot be made: .*unexpected keyword argument 'lr'"),
        (
            lambda params, lr, weight_decay: torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr),
            "trains other parameters than it is given; pass on all",
        ),
        (lambda params, lr, weight_decay: 1 / 0, "cannot be made: division by zero"),
    ],
)
def test_a_function_that_makes_no_optimizer_is_refused_in_one_sentence(function, words):
    with pytest.raises(OptionError, match=words) as refused:
        make_optimizer(Plan(optimizer=function, lr=0.1), weights())
    assert "\n" not in str(refused.value)
    assert "custom:test_optimizers.<lambda>" in str(refused.value)


def test_settings_that_a_function_would_not_see_are_refused():
    for wrong in ({"momentum": 0.5}, {"nesterov": True}):
        with pytest.raises(OptionError, match=r"ignores .*; leave it out and set it in "):
            make_optimizer(Plan(optimizer=rmsprop, lr=0.1, **wrong), weights())
    with pytest.raises(ValidationError, match="the optimizer is a function; set its options there"):
        Plan(optimizer=rmsprop, lr=0.1, optimizer_options={"alpha": 0.5})


def test_a_plan_for_fine_tuning_is_refused_before_anything_is_trained():
    with pytest.raises(OptionError, match="returns int"):
        finetune_plan(Plan(optimizer=lambda params, lr, weight_decay: 3, lr=0.1))


# --- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [*NATIVE, "lion", torch.optim.RMSprop])
@pytest.mark.parametrize("compiled", [False, True])
def test_groups_keep_their_own_rates_and_decay(optimizer, compiled):
    plan = Plan(optimizer=optimizer, lr=0.1, weight_decay=0.5)
    if compiled and not can_compile(plan):
        pytest.skip("only torch's own are compiled")
    (one, other) = weights((2,), (2,))
    groups = [{"params": [one]}, {"params": [other], "lr": 0.4, "weight_decay": 0.0}]
    made = make_optimizer(plan, groups, compiled=compiled)
    assert [group["weight_decay"] for group in made.param_groups] == [0.5, 0.0]
    for rate in (0.1, 0.05, 0.0):
        set_lr(made, rate)
        assert [float(group["lr"]) for group in made.param_groups] == pytest.approx(
            [rate, 4 * rate]
        )
        assert all(isinstance(group["lr"], torch.Tensor) == compiled for group in made.param_groups)


@given(st.floats(1e-6, 10), st.floats(0, 1))
def test_without_groups_the_rate_is_just_what_is_asked_for(peak, factor):
    made = make_optimizer(Plan(lr=peak), weights())
    set_lr(made, peak * factor)
    assert made.param_groups[0]["lr"] == peak * factor


# --- compiled ------------------------------------------------------------------------------------


def trainer_of(plan, runtime=CPU):
    fabric = make_fabric(runtime)
    model = place(tiny_net(), fabric, runtime)
    return Trainer(MaskedNet(model, prunable_names(model)), plan, fabric, runtime)


def test_only_torchs_own_are_compiled_with_the_update(monkeypatch):
    compiled = []
    monkeypatch.setattr(MaskedNet, "compile_", lambda net: compiled.append(net))
    monkeypatch.setattr(torch, "compile", lambda what, **_: what)
    runtime = Runtime(device="cpu", compile=True)
    for plan, expected in [
        (Plan(lr=0.1), 1),
        (Plan(lr=0.1, clip_grad=1.0), 0),
        (Plan(lr=0.1, optimizer="lion"), 0),
        (Plan(lr=0.1, optimizer=rmsprop), 0),
    ]:
        compiled.clear()
        trainer_of(plan, runtime)
        assert len(compiled) == expected
