"""Every optimizer of timm's keeps the contract or is refused; each rule catches who breaks it."""

import random
from pathlib import Path

import numpy as np
import pytest
import timm.optim
import torch
from pydantic import ValidationError
from torch.optim import Optimizer

from gemkit import Plan
from gemkit.core.errors import OptionError
from gemkit.training.optimizer_contract import RULES, broken_rule
from gemkit.training.optimizer_names import FROM_TIMM, NATIVE, REFUSED
from gemkit.training.optimizers import make_optimizer

# Before 1.0.12, timm does not tell what it has.
LISTED = timm.optim.list_optimizers() if hasattr(timm.optim, "list_optimizers") else []
NEEDS_CUDA = ("bnb", "fused")


def from_timm(name):
    return lambda parameters, decay: timm.optim.create_optimizer_v2(
        [{"params": parameters}], opt=name, lr=0.01, weight_decay=decay
    )


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LISTED)
def test_the_tables_say_of_every_optimizer_of_timms_what_the_contract_says(name):
    broken = broken_rule(from_timm(name))
    if name in (*NATIVE, *FROM_TIMM):
        assert broken is None
    elif name in REFUSED:
        assert broken is not None
        by_trial = REFUSED[name].startswith("it needs") or not broken.startswith("a trial")
        assert by_trial, broken
    else:
        pytest.skip(f"new in timm {timm.__version__}, so unknown to gemkit: {broken or 'fits'}")


@pytest.mark.parametrize("name", NATIVE)
def test_torchs_own_keep_the_contract_as_gemkit_makes_them(name):
    def make(parameters, decay):
        return make_optimizer(Plan(optimizer=name, lr=0.01, weight_decay=decay), parameters)

    assert broken_rule(make) is None


# --- optimizers that break one rule each ---------------------------------------------------------


class Descent(Optimizer):
    """Gradient descent, to be broken by those below."""

    def __init__(self, params, lr=0.1, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                pull = parameter.grad + group["weight_decay"] * parameter
                self.move(parameter, -group["lr"] * self.turned(pull), self.state[parameter])

    def move(self, parameter, way, state):
        parameter.add_(way)

    def turned(self, pull):
        return pull


class DrawsFromTorch(Descent):
    def turned(self, pull):
        return pull * torch.rand(())


class DrawsFromNumpy(Descent):
    def turned(self, pull):
        return pull * np.random.random()


class DrawsFromPython(Descent):
    def turned(self, pull):
        return pull * random.random()


class DrawsInVain(Descent):
    def turned(self, pull):
        torch.rand(())
        return pull


class RemembersText(Descent):
    def move(self, parameter, way, state):
        state["note"] = "moved"
        parameter.add_(way)


class RemembersRows(Descent):
    def move(self, parameter, way, state):
        state["row"] = parameter.flatten()[:3].clone()
        parameter.add_(way)


class RemembersBesideParameters(Descent):
    def move(self, parameter, way, state):
        self.state["steps"] = {"count": 1}
        parameter.add_(way)


class Normalized(Descent):
    def turned(self, pull):
        return pull / pull.norm()


class NormalizedOverTensors(Descent):
    def step(self):
        gradients = [one.grad for group in self.param_groups for one in group["params"]]
        torch._foreach_mul_(gradients, 1 / torch.stack([one.norm() for one in gradients]).norm())
        super().step()


class ByItsSize(Descent):
    """Looks at no other weight's value, but at how many there are."""

    def turned(self, pull):
        return pull / pull.numel()


class Restless(Descent):
    def turned(self, pull):
        return pull + 1e-3


class Flips(Descent):
    """Does not leave weights alone whose state was cleared."""

    def move(self, parameter, way, state):
        seen = state.setdefault("seen", torch.ones_like(parameter))
        parameter.add_(way + 1e-3 * (seen == 0))


class Anchored(Descent):
    """Pulls back to where its weights began, as if nothing else wrote into them."""

    def move(self, parameter, way, state):
        slow = state.setdefault("slow", parameter.clone())
        slow.add_(way)
        parameter.copy_(torch.where(way == 0, parameter, slow))


class CountsElsewhere(Descent):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.steps = 0

    def step(self):
        self.steps += 1
        super().step()

    def turned(self, pull):
        return pull / self.steps


class RemembersMoreLater(Descent):
    def move(self, parameter, way, state):
        if "step" in state:
            state["last"] = way.clone()
        state["step"] = 1
        parameter.add_(way)


BROKEN = {
    "it draws global random numbers": [
        *(DrawsFromTorch, DrawsFromNumpy, DrawsFromPython, DrawsInVain),
    ],
    "its state holds more than tensors and numbers of each weight": [
        *(RemembersText, RemembersRows, RemembersBesideParameters),
    ],
    "the step of a weight depends on other weights": [Normalized, NormalizedOverTensors, ByItsSize],
    "it moves weights that have no gradient": [Restless, Flips],
    "it ignores what is written into the weights between two steps": [Anchored],
    "with its state saved and loaded, it does not take the same steps": [
        *(CountsElsewhere, RemembersMoreLater),
    ],
}
CASES = [(rule, broken) for rule, classes in BROKEN.items() for broken in classes]


def as_made(cls):
    return lambda parameters, decay: cls([{"params": parameters}], lr=0.1, weight_decay=decay)


def test_every_rule_has_an_optimizer_that_breaks_it():
    assert BROKEN.keys() == RULES.keys()
    assert broken_rule(as_made(Descent)) is None


@pytest.mark.parametrize(("rule", "broken"), CASES, ids=[cls.__name__ for _, cls in CASES])
def test_who_breaks_a_rule_is_caught_and_refused_by_that_rule(rule, broken):
    assert broken_rule(as_made(broken)) == rule
    with pytest.raises(OptionError, match=rf"test_optimizer_contract\.{broken.__name__}.*{rule}"):
        make_optimizer(Plan(optimizer=broken, lr=0.1), [torch.nn.Parameter(torch.zeros(3))])


def test_every_rule_is_needed(monkeypatch):
    """Some break several, as those do that draw; of every rule, one breaks that one alone."""
    missed = set()
    for rule, broken in CASES:
        with monkeypatch.context() as without:
            without.delitem(RULES, rule)
            if broken_rule(as_made(broken)) is None:
                missed.add(rule)
    assert missed == RULES.keys()


@pytest.mark.parametrize(
    "cls", [torch.optim.LBFGS, torch.optim.SparseAdam, torch.optim.Adafactor], ids=str
)
def test_optimizers_that_need_more_than_a_gradient_are_refused(cls):
    with pytest.raises(OptionError, match=r"cannot be (used|made)"):
        make_optimizer(Plan(optimizer=cls, lr=0.1), [torch.nn.Parameter(torch.zeros(3))])


def test_a_trial_leaves_no_trace():
    before = torch.get_rng_state(), random.getstate()
    make_optimizer(Plan(optimizer=torch.optim.NAdam, lr=0.1), [torch.nn.Parameter(torch.zeros(3))])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lamb", "the step of a weight depends on other weights.*use sgd"),
        ("muon", "depends on other weights"),
        ("kron", "draws global random numbers"),
        ("adahessian", "closure, or second derivatives"),
        ("madgrad", "keeps a copy of the weights"),
        ("lookahead_adamw", "keeps a copy of the weights"),
        ("adan", "counts steps outside"),
        ("bnbadam", "needs CUDA"),
        ("lyon", "there is no optimizer of this name; did you mean 'lion'"),
        ("", "there is no optimizer"),
        (3, "give a name or, from Python, a function"),
        ("x" * 600, "give a name"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_in_one_sentence(name, words):
    with pytest.raises(ValidationError, match=words) as refused:
        Plan(optimizer=name, lr=0.1)
    assert refused.value.error_count() == 1


def test_the_tables_do_not_overlap_and_the_documentation_lists_them():
    accepted = (*NATIVE, *FROM_TIMM)
    assert len({*accepted}) == len(accepted)
    assert not {*accepted} & {*REFUSED}
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    assert [name for name in accepted if f"`{name}`" not in page] == []
