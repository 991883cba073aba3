"""Lean searches: the numbers of any other search, while weights are there only when needed."""

import gc

import pytest
import test_stepping
import torch
import torch.nn.functional as F
from kept import REGISTRY, Told, find, in_lives
from test_stepping import PLANS, LayerL2, Odd, OwnL2, Sloped, assert_same
from tiny import tiny_data, tiny_net
from torch import nn
from torch.utils.checkpoint import checkpoint

from gemkit import Plan, Runtime, lean
from gemkit.compose import check_fit
from gemkit.engine import search
from gemkit.errors import FitError, TrainingError
from gemkit.events import Noted
from gemkit.lean import LeanNet
from gemkit.scored import ScoredNet
from gemkit.tensors import generator, prunable_names
from gemkit.training import Trainer, make_fabric, make_optimizer

LEAN = Runtime(device="cpu", lean=True)
GEM_MINER = REGISTRY.recipe("gem_miner")


@pytest.fixture(autouse=True)
def _every_layer_is_large(monkeypatch):
    monkeypatch.setattr(lean, "LARGE", 1)


def started(kind, model=None, recipe=GEM_MINER):
    """Make a net whose weights begin as the recipe says."""
    model = (model or Odd()).to(memory_format=torch.channels_last).train()
    names = prunable_names(model)
    weights = {name: model.get_parameter(name).detach() for name in names}
    for name, drawn in recipe.init.draw(weights, generator(0, "weights")).items():
        weights[name].copy_(drawn)
    return kind(model, names, recipe, generator(0, "scores"))


def train(net, plan=PLANS["sgd"], **how):
    return test_stepping.train(net, plan, **{"steps": 6, **how})


def assert_all_there(net):
    assert all(parameter.isfinite().all() for parameter in net.parameters.values())
    for name, parameter in net.parameters.items():
        assert parameter.stride() == net.scores[name].stride()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("penalty", ["l2", "l1", "none", LayerL2()], ids=str)
def test_a_lean_search_is_the_same_to_the_bit(plan, penalty):
    own = penalty if isinstance(penalty, LayerL2) else REGISTRY.build("regularizers", penalty)
    recipe = GEM_MINER.model_copy(update={"regularizer": own})
    net = train(started(LeanNet, recipe=recipe), plan)
    assert_all_there(net)
    assert_same(net, train(started(ScoredNet, recipe=recipe), plan))


@pytest.mark.parametrize("precision", ["32", "bf16", "64"])
def test_a_whole_search_finds_the_same_ticket(precision):
    told = {True: Told(), False: Told()}
    found = {}
    for saving, heard in told.items():
        device = Runtime(device="cpu", precision=precision, lean=saving)
        found[saving] = find("learned", heard, device=device)
    assert found[True].digest() == found[False].digest()
    assert told[True] == told[False]
    assert len(told[True]) > 3


def test_a_lean_search_that_dies_goes_on_to_the_same_ticket(tmp_path):
    whole = find("learned", Told(), device=LEAN)

    def run(told, keeper):
        return find("learned", told, keeper, device=LEAN)

    again, _, deaths = in_lives(run, tmp_path, iter([5, 2, 3]))
    assert deaths == 3
    assert again.digest() == whole.digest()


class Watched(LeanNet):
    """Notes how many layers had weights at once."""

    def __init__(self, *given):
        self.most = 0
        super().__init__(*given)

    def _show(self, name, **how):
        super()._show(name, **how)
        there = [each for each in self.folds if each not in self._hidden]
        if not how:
            self.most = max(self.most, len(there))


def test_one_layer_at_a_time_has_weights():
    net = train(started(Watched, tiny_net()))
    assert len(net.folds) == 4
    assert net.most == 1


@pytest.mark.parametrize("make", [tiny_net, lambda: own_net("replaces")])
def test_hidden_weights_take_no_memory_and_are_no_numbers(make):
    net = started(LeanNet, make())
    optimizer = make_optimizer(PLANS["sgd"], net.trainable())
    images, labels = next(iter(tiny_data().train.batches(8, seed=0)))
    with net.passing(images, optimizer):
        loss = F.cross_entropy(net.model(images), labels)
        for parameter in net.parameters.values():
            assert parameter.isnan().all()
            assert parameter.untyped_storage().nbytes() == parameter.element_size()
        assert not net._in_use, "what lies there next would be taken for a weight"
        gc.collect()
        assert net._room._lent() is None, "something holds the weights of a layer"
        loss.backward()
        assert all(parameter.grad is None for parameter in net.parameters.values())
        net.step(optimizer)
    assert_all_there_once_settled(net)


def assert_all_there_once_settled(net):
    assert net.effective
    assert_all_there(net)


class Elsewhere(nn.Module):
    """A network that uses weights behind the backs of the layers they belong to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.mixed = nn.Linear(6, 6)
        self.called = nn.Linear(6, 6)
        self.past = nn.Linear(6, 6)
        self.usual = nn.Linear(6, 6)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        x = x.mean(dim=1)
        x, _ = self.attention(x, x, x)
        x = F.relu(F.linear(x, self.mixed.weight.t(), self.mixed.bias))
        x = F.relu(self.called.forward(x)) + self.past.weight.detach().sum() * x
        assert self.usual.weight.shape == (6, 6)
        x = F.relu(self.usual(self.past(x))).mean(dim=1)
        return self.head(torch.cat([x, x.square()], dim=1))


def test_weights_that_are_used_elsewhere_stay():
    net = train(started(Watched, Elsewhere()))
    hidden = {name for names in net._owners.values() for name in names}
    assert hidden == {"attention.in_proj_weight", "usual.weight", "head.weight"}
    assert_same(net, train(started(ScoredNet, Elsewhere())))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_within_the_network_change_nothing(reentrant):
    net, plain = started(LeanNet, tiny_net()), started(ScoredNet, tiny_net())

    def forward(images):
        first, rest = net.model[:5], net.model[5:]
        images.requires_grad_()
        return checkpoint(
            rest, checkpoint(first, images, use_reentrant=reentrant), use_reentrant=reentrant
        )

    assert_same(train(net, forward=forward), train(plain))


def test_a_layer_that_checkpoints_share_is_refused_where_its_gradient_comes_in_parts():
    net, plain = started(LeanNet), started(ScoredNet)

    def forward(reentrant):
        return lambda images: net.model(
            images, lambda part, x: checkpoint(part, x, use_reentrant=reentrant)
        )

    assert_same(train(net, forward=forward(False)), train(plain))
    with pytest.raises(TrainingError, match=r"'twice\.weight' is needed again after"):
        train(net, forward=forward(True))
    assert_all_there(net)


class Owner(nn.Linear):
    """A layer that does something else with its weight than to multiply."""

    def __init__(self, what):
        super().__init__(6, 6)
        self.what = what
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.what == "detaches":
            x = torch.tanh(F.linear(x, self.weight.detach()))
        if self.what == "changes":
            with torch.no_grad():
                self.weight.mul_(1.5)
        if self.what == "replaces":
            self.weight.data = self.weight.data * 1.5
        if self.what == "counts":
            x = x * self.calls
        return super().forward(x)


class Tidy(LeanNet):
    """Sees that nothing is taken for a weight once the layers have run."""

    def _take(self, *given):
        assert not self._in_use
        super()._take(*given)


def own_net(what):
    torch.manual_seed(0)
    ends = nn.Linear(72, 6), nn.Linear(6, 3)
    return nn.Sequential(nn.Flatten(), ends[0], nn.Tanh(), Owner(what), nn.Tanh(), ends[1])


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("what", ["changes", "replaces", "counts"])
def test_layers_with_habits_of_their_own_learn_the_same(what, room, monkeypatch):
    if not room:  # as on other devices
        monkeypatch.setattr(lean._Room, "lend", lambda self, like: None)
    net = train(started(Tidy, own_net(what)))
    assert_same(net, train(started(ScoredNet, own_net(what))))


def test_a_weight_that_is_needed_after_its_gradient_is_refused():
    with pytest.raises(TrainingError, match=r"'3\.weight' is needed again.*search without --lean"):
        train(started(LeanNet, own_net("detaches")))


class Illegal(nn.Module):
    """Changes in place what its own backward pass needs."""

    def forward(self, x):
        kept = x * 2
        squared = kept * kept
        kept.add_(1)
        return squared


@pytest.mark.parametrize("kind", [LeanNet, ScoredNet])
def test_what_torch_refuses_stays_refused(kind):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), Illegal(), nn.Linear(6, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(started(kind, model))


class Late(nn.Module):
    """Begins to use a weight elsewhere when nobody looks any more."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.calls = nn.Linear(72, 6), nn.Linear(6, 3), 0

    def forward(self, x):
        self.calls += 1
        late = self.layer.weight.sum() if self.calls > 2 else 0
        return self.head(self.layer(x.flatten(1)) + late)


def test_a_weight_that_is_used_elsewhere_later_on_is_told_with_a_way_out():
    trainer = Trainer(started(LeanNet, Late()), Plan(lr=0.1), make_fabric(LEAN), LEAN)
    batch = next(iter(tiny_data().train.batches(8, seed=0)))
    assert trainer.step(batch, lr=0.1, number=1)
    assert trainer.step(batch, lr=0.1, number=2)
    with pytest.raises(TrainingError, match=r"outside of its layer.*search without --lean"):
        trainer.step(batch, lr=0.1, number=3)


def test_layers_of_several_types_are_lean_side_by_side():
    def mixed():
        torch.manual_seed(0)
        first, last = nn.Linear(72, 6), nn.Linear(6, 3).double()
        return nn.Sequential(nn.Flatten(), first, Cast(), last)

    assert_same(train(started(LeanNet, mixed())), train(started(ScoredNet, mixed())))


class Cast(nn.Module):
    """From single to double precision."""

    def forward(self, x):
        return x.double()


def test_memory_is_given_back_once_after_a_pause(monkeypatch):
    given = []
    monkeypatch.setattr(lean, "give_back", lambda: given.append(1))
    train(started(LeanNet, tiny_net()), steps=6)
    assert len(given) == 2, "before the first step, and after the freeze"


def test_room_that_somebody_still_uses_is_not_given_away():
    like = torch.zeros(4, 3)
    room = lean._Room([like, torch.zeros(2)])
    first = room.lend(like)
    held = first.t().detach()
    first = None
    assert room.lend(like) is None
    held = None  # noqa: F841
    assert room.lend(like).shape == like.shape


def test_what_goes_wrong_in_a_pass_leaves_the_model_as_it_is():
    net = started(LeanNet, tiny_net())
    optimizer = make_optimizer(PLANS["sgd"], net.trainable())
    images, _ = next(iter(tiny_data().train.batches(8, seed=0)))
    with pytest.raises(RuntimeError), net.passing(images, optimizer):
        net.model(images[:, :1])
    assert_all_there(net)
    assert not any(module._forward_hooks for module in net.model.modules())
    assert not any(module._forward_pre_hooks for module in net.model.modules())


def test_to_look_for_uses_of_weights_leaves_no_trace():
    model = nn.Sequential(*tiny_net()[:-1], nn.Dropout(0.5), tiny_net()[-1])
    net = started(LeanNet, model)
    before = {name: tensor.clone() for name, tensor in net.model.state_dict().items()}
    drawn = torch.get_rng_state()
    net._find_owners(next(iter(tiny_data().train.batches(8, seed=0)))[0])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], now) for name, now in net.model.state_dict().items())


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_bad_loss_is_told_as_in_any_search(on_nan):
    net = started(LeanNet, tiny_net())
    plan = Plan(lr=0.1, on_nan=on_nan)
    trainer = Trainer(net, plan, make_fabric(LEAN), LEAN)
    images, labels = next(iter(tiny_data().train.batches(8, seed=0)))
    assert trainer.step((images, labels), lr=0.1, number=1)
    bad = images.clone()
    bad[0, 0, 0, 0] = torch.nan
    if on_nan == "skip":
        assert not trainer.step((bad, labels), lr=0.1, number=2)
    else:
        with pytest.raises(TrainingError, match="the images of this batch are not finite"):
            trainer.step((bad, labels), lr=0.1, number=2)
    assert_all_there(net)
    assert trainer.step((images, labels), lr=0.1, number=3)


def test_layers_too_small_to_hide_are_told(monkeypatch):
    monkeypatch.setattr(lean, "LARGE", 10**6)
    told = []
    found = search(
        GEM_MINER,
        tiny_net(),
        tiny_data(),
        density=0.3,
        plan=Plan(epochs=6),
        runtime=LEAN,
        observers=[told.append],
    )
    assert any(
        "being lean saves nothing" in event.message for event in told if isinstance(event, Noted)
    )
    plain = search(
        GEM_MINER,
        tiny_net(),
        tiny_data(),
        density=0.3,
        plan=Plan(epochs=6),
        runtime=Runtime(device="cpu"),
    )
    assert found.digest() == plain.digest()


@pytest.mark.parametrize(
    ("changes", "runtime", "words"),
    [
        ({"rounding": Sloped()}, {}, "rounding 'sloped' does not round every score by itself"),
        ({"regularizer": OwnL2()}, {}, "regularizer 'own_l2' looks at all layers"),
        ({}, {"devices": 2}, "several devices"),
        ({}, {"compile": True}, "leave out --compile"),
    ],
)
def test_what_cannot_be_lean_is_refused(changes, runtime, words):
    with pytest.raises(FitError, match=words):
        check_fit(
            GEM_MINER.model_copy(update=changes),
            epochs=30,
            density=0.3,
            runtime=Runtime(lean=True, **runtime),
        )


def test_weights_of_many_sizes_are_refused():
    recipe = REGISTRY.recipe("gem_miner", parts={"init": "as_built"})
    with pytest.raises(FitError, match="no layer has weights that differ in nothing but"):
        search(recipe, tiny_net(), tiny_data(), density=0.3, plan=Plan(epochs=6), runtime=LEAN)
