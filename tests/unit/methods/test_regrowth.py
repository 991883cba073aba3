"""Regrowth: counts stay, what grows starts at zero, and nothing returns without being asked."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CPU, tiny_data, tiny_net

from gemkit import Plan, Probe, load_plugins, search
from gemkit.core.errors import FitError
from gemkit.core.events import Froze, Noted, PhaseStarted, StepEnded
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator, parameters_of
from gemkit.methods.regrowth import Gradient, RandomStart
from gemkit.parts.schedule import Freeze
from gemkit.pruning import freeze as freezing
from gemkit.pruning.freeze import regrow
from gemkit.pruning.masked import MaskedNet
from gemkit.training.optimizers import make_optimizer

REGISTRY = load_plugins(only=[])
PLAN = Plan(epochs=4, batch_size=8, lr=0.1)
"""Sixteen steps."""


def rigl(**options):
    return REGISTRY.recipe("rigl", options={"schedule.every": 2, **options})


def net_under(density, seed=0):
    """A network with a random mask whose layers have this density."""
    net = MaskedNet(tiny_net(), prunable_names(tiny_net()))
    alive = {
        name: torch.rand(mask.shape, generator=generator(seed, name)) < density
        for name, mask in net.alive.items()
    }
    net.freeze_(alive, {})
    return net


def drawn(net, purpose, seed):
    """Draw small whole numbers, so that many are equal."""
    return {
        name: torch.randint(0, 6, mask.shape, generator=generator(seed, purpose + name)).float()
        for name, mask in net.alive.items()
    }


def regrown_slowly(alive, importance, growth, fraction, count):
    """Drop and grow the weights of one layer, one by one; return what is alive then."""
    alive, places = alive.flatten().tolist(), range(alive.numel())
    score, gain = importance.flatten().tolist(), growth.flatten().tolist()
    living = [place for place in places if alive[place]]
    dropped = int(fraction * len(living))
    stay = sorted(living, key=lambda place: (-score[place], place))[
        : min(count, len(living) - dropped)
    ]
    others = sorted(set(places) - set(stay), key=lambda place: (-gain[place], place))
    return {*stay, *others[: count - len(stay)]}


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999),
    density=st.sampled_from([0.3, 0.6, 1.0]),
    target=st.sampled_from([0.1, 0.3, 0.7]),
    fraction=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_every_layer_drops_and_grows_as_plain_python_does(seed, density, target, fraction):
    net = net_under(density, seed)
    before, recipe = dict(net.alive), rigl()
    importance, growth = drawn(net, "drop", seed), drawn(net, "grow", seed)
    regrow(net, recipe, Freeze(1, target, fraction), importance, lambda: growth)
    everything = {name: torch.ones_like(mask) for name, mask in before.items()}
    counts = recipe.allocation.keep(importance, everything, target)
    for name, mask in net.alive.items():
        count = counts[(name,)]
        expected = regrown_slowly(before[name], importance[name], growth[name], fraction, count)
        assert set(mask.flatten().nonzero().flatten().tolist()) == expected
        assert int(mask.sum()) == count


def trained(net, steps=4):
    """Train under the mask, so that there is momentum."""
    plan = Plan(lr=0.05, weight_decay=0.01)
    optimizer = make_optimizer(plan, net.groups(plan))
    for images, labels in list(tiny_data().train.batches(8, seed=0))[:steps]:
        F.cross_entropy(net.model(images), labels).backward()
        net.step(optimizer)
    return optimizer


def momentum(optimizer, net):
    return {name: optimizer.state[own]["momentum_buffer"] for name, own in net.parameters.items()}


def test_what_grows_starts_at_zero_without_momentum_and_learns():
    net = net_under(0.4)
    optimizer = trained(net)
    old, before = dict(net.alive), {name: own.clone() for name, own in net.effective.items()}
    importance = {name: own.abs() for name, own in before.items()}
    growth = {name: torch.where(mask, 0.0, 1.0) for name, mask in old.items()}  # no old ones
    regrow(net, rigl(), Freeze(4, 0.4, 0.5), importance, lambda: growth)
    net.clear_state(optimizer)
    grown = {name: mask & ~old[name] for name, mask in net.alive.items()}
    stayed = {name: mask & old[name] for name, mask in net.alive.items()}
    assert all(mask.any() for mask in grown.values())
    for name, buffer in momentum(optimizer, net).items():
        assert net.effective[name][grown[name]].count_nonzero() == 0
        assert torch.equal(net.effective[name][stayed[name]], before[name][stayed[name]])
        assert buffer[~stayed[name]].count_nonzero() == 0
        assert buffer[stayed[name]].count_nonzero() > 0
    trained(net, steps=1)
    moved = [net.effective[name][mask].count_nonzero() for name, mask in grown.items()]
    assert any(count > 0 for count in moved)


def test_a_weight_that_is_dropped_and_grown_at_once_keeps_its_value_and_momentum():
    net = net_under(0.4)
    optimizer = trained(net)
    old, before = dict(net.alive), {name: own.clone() for name, own in net.effective.items()}
    rolling = {name: buffer.clone() for name, buffer in momentum(optimizer, net).items()}
    importance = {name: own.abs() for name, own in before.items()}
    growth = {name: mask.float() for name, mask in old.items()}  # all dropped ones come first
    counts = {(name,): int(mask.sum()) for name, mask in old.items()}
    recipe = rigl().model_copy(update={"allocation": Fixed(counts)})
    regrow(net, recipe, Freeze(4, 0.4, 0.5), importance, lambda: growth)
    net.clear_state(optimizer)
    for name, mask in old.items():
        assert torch.equal(net.alive[name], mask)
        assert torch.equal(net.effective[name], before[name])
        assert torch.equal(momentum(optimizer, net)[name], rolling[name])


class Fixed:
    """An allocation of these counts."""

    def __init__(self, counts):
        self.counts = counts

    def keep(self, importance, alive, density):
        return self.counts


# --- whole searches ------------------------------------------------------------------------------


class Watching:
    """Notes the mask after every freeze."""

    def __init__(self, stop_at=None):
        self.masks, self.notes, self.view, self.stop_at = [], [], None, stop_at

    def __call__(self, event):
        if isinstance(event, PhaseStarted):
            self.view = event.view
        elif isinstance(event, Froze):
            self.masks.append(self.view.masks())
        elif isinstance(event, Noted):
            self.notes.append(event.message)
        elif isinstance(event, StepEnded) and event.step == self.stop_at:
            self.view.stop("enough")


def found(recipe, watching, density=0.4):
    return search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=density,
        plan=PLAN,
        runtime=CPU,
        observers=[watching],
        on_collapse="warn",
    )


@pytest.mark.parametrize("pruner", ["rigl", "set"])
def test_layers_keep_their_count_while_their_masks_move(pruner):
    watching = Watching()
    recipe = REGISTRY.recipe(pruner, options={"schedule.every": 2})
    ticket = found(recipe, watching)
    assert len(watching.masks) == 6  # before the first step, then after 2, 4, ... 10 of 16
    counts = [{name: int(mask.sum()) for name, mask in one.items()} for one in watching.masks]
    assert all(one == counts[0] for one in counts)
    for earlier, later in pairwise(watching.masks[:4]):  # later, the fraction is too small
        assert any(not torch.equal(earlier[name], mask) for name, mask in later.items())
    assert all(torch.equal(ticket.mask[name], mask) for name, mask in watching.masks[-1].items())
    for name, mask in ticket.mask.items():
        assert ticket.state[name][mask].count_nonzero() > 0


def anything_returns(recipe):
    """Whether a weight that was pruned is used again after a later freeze."""
    watching = Watching()
    found(recipe, watching)
    assert len(watching.masks) > 1
    return any((new[n] & ~old[n]).any() for old, new in pairwise(watching.masks) for n in old)


FALLING = {
    "gradual_magnitude": {"schedule.every": 1},
    "imp_long_cold": {"schedule.fraction": 0.3},
    "synflow": {"schedule.rounds": 4},
}


@pytest.mark.parametrize("pruner", FALLING)
def test_nothing_returns_without_grow(pruner):
    assert not anything_returns(REGISTRY.recipe(pruner, options=FALLING[pruner]))
    assert anything_returns(rigl())


def test_a_freeze_that_revives_weights_would_be_noticed(monkeypatch):
    """The broken version: it selects from all weights, whatever is alive."""

    def careless(net, recipe, density, importance, *policy, **named):
        everything = {name: torch.ones_like(mask) for name, mask in net.alive.items()}
        chance = {name: torch.rand(value.shape) for name, value in importance.items()}
        shares = recipe.allocation.keep(chance, everything, density)
        alive = recipe.structure.select(chance, everything, shares, density)
        net.freeze_(alive, shares, density)

    monkeypatch.setattr(freezing, "freeze", careless)
    recipe = REGISTRY.recipe("gradual_magnitude", options=FALLING["gradual_magnitude"])
    assert anything_returns(recipe)


def test_a_schedule_that_regrows_needs_grow():
    recipe = REGISTRY.recipe("magnitude", parts={"schedule": {"name": "regrow", "every": 2}})
    with pytest.raises(FitError, match="schedule 'regrow' lets pruned weights return"):
        found(recipe, Watching())


def test_growth_that_never_happens_is_told():
    watching = Watching()
    found(rigl(**{"schedule.every": 100}), watching)
    assert any("grow 'gradient' has no effect" in note for note in watching.notes)
    watching = Watching()
    found(rigl(), watching)
    assert not any("no effect" in note for note in watching.notes)


def test_a_stopped_search_grows_nothing_that_would_not_be_trained():
    watching = Watching(stop_at=5)
    ticket = found(rigl(), watching)
    for mask in watching.masks[2:]:
        assert all(torch.equal(mask[name], own) for name, own in watching.masks[2].items())
    assert all(torch.equal(ticket.mask[name], own) for name, own in watching.masks[2].items())


# --- scores --------------------------------------------------------------------------------------


def probe_of(net, batches):
    return Probe(
        model=net.model,
        weights={name: own.clone() for name, own in net.effective.items()},
        alive=net.alive,
        batches=batches,
        rng=generator(0, "importance"),
    )


def test_the_gradient_is_that_of_the_dense_network_at_the_pruned_weights():
    net = net_under(0.3)
    images, labels = next(iter(tiny_data().train.batches(8, seed=0)))
    importance = Gradient().importance(probe_of(net, [(images, labels)]))
    leaves = {
        name: own.detach().clone().requires_grad_()
        for name, own in parameters_of(net.model, list(net.alive)).items()
    }
    net.model.train()
    logits = torch.func.functional_call(net.model, leaves, (images,))
    F.cross_entropy(logits, labels).backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(importance[name], leaf.grad.abs())
        assert importance[name][~net.alive[name]].count_nonzero() > 0


def test_the_first_freeze_is_random_and_the_others_are_not():
    whole, pruned = net_under(1.0), net_under(0.5)
    by_magnitude = {name: own.abs() for name, own in pruned.effective.items()}
    second = RandomStart().importance(replace(probe_of(pruned, []), turn=1))
    assert all(torch.equal(second[name], own) for name, own in by_magnitude.items())
    first = RandomStart().importance(probe_of(whole, []))
    assert not any(torch.equal(first[n], own.abs()) for n, own in whole.effective.items())


# --- rows ----------------------------------------------------------------------------------------


def even_rows(mask):
    """Whether all rows keep as many, the first ones one more where they must."""
    counts = mask.flatten(1).sum(1).tolist()
    short, over = divmod(sum(counts), len(counts))
    return counts == [short + 1] * over + [short] * (len(counts) - over)


@given(
    seed=st.integers(0, 99),
    density=st.floats(0.1, 1),
    target=st.floats(0.1, 0.9),
    fraction=st.floats(0, 1),
)
@settings(max_examples=30, deadline=None)
def test_rows_keep_the_same_share_when_weights_return(seed, density, target, fraction):
    recipe = REGISTRY.recipe("rigl", parts={"structure": "rows", "allocation": "uniform"})
    net = MaskedNet(tiny_net(), prunable_names(tiny_net()))
    first = recipe.allocation.keep(net.effective, net.alive, density)
    alive = recipe.structure.select(drawn(net, "first", seed), net.alive, first, density)
    net.freeze_(alive, first)
    assert all(map(even_rows, net.alive.values()))
    planned = Freeze(1, target, fraction)
    everything = {name: torch.ones_like(mask) for name, mask in net.alive.items()}
    shares = recipe.allocation.keep(net.effective, everything, target)
    regrow(net, recipe, planned, drawn(net, "score", seed), lambda: drawn(net, "growth", seed))
    for name, mask in net.alive.items():
        assert even_rows(mask), name
        assert mask.sum() == shares[(name,)]


def test_the_best_pruned_weights_of_every_row_return():
    """Rows of two: the one that lost both gets both back, each row by its own growth."""
    alive = {"a": torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()}
    growth = {"a": torch.tensor([[9.0, 9, 1, 2], [1, 2, 3, 4], [9, 3, 2, 1]])}
    structure = REGISTRY.build("structures", "rows")
    grown = structure.grow(growth, alive, {("a",): 3}, 0.5)["a"]
    assert grown.int().tolist() == [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    grown = structure.grow(growth, alive, {("a",): 4}, 0.5)["a"]
    assert grown.int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 0]]


@pytest.mark.parametrize("pruner", ["rigl", "set"])
def test_a_search_over_rows_ends_with_even_rows(pruner):
    parts = {"structure": "rows", "allocation": "uniform"}
    recipe = REGISTRY.recipe(pruner, parts=parts, options={"schedule.every": 2})
    how = {"density": 0.4, "plan": PLAN, "runtime": CPU}
    ticket = search(recipe, tiny_net(), tiny_data(), **how)
    assert all(map(even_rows, ticket.mask.values()))
