"""Pruning while training: exact counts, nothing revived, and how the originals differ."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Plan, evaluate, finetune, load_plugins, search
from gemkit.builtin.schedules import Cubic
from gemkit.core.selection import keep_top
from gemkit.core.tensors import budget, kept, total
from gemkit.pruning.freeze import freeze
from gemkit.pruning.masked import MaskedNet

NAMES = ["conv1.weight", "conv2.weight", "fc.weight"]
ITERATIVE = ["imp_short_cold", "imp_short_warm", "imp_long_cold", "imp_long_warm", "lr_rewinding"]
PLAN = Plan(epochs=3, batch_size=16, lr=0.1, weight_decay=0.1)


def ladder(pruner, *, density=0.3, plan=PLAN, options=None, **how):
    """Search, and return the ticket of every round and the last one."""
    rungs = []
    recipe = load_plugins().recipe(pruner, options=options or {})
    how = {"runtime": CPU, "on_collapse": "warn", "on_ticket": rungs.append, **how}
    ticket = search(recipe, tiny_net(), tiny_data(), density=density, plan=plan, **how)
    return rungs, ticket


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parents[2] / "golden" / "imp.npz", allow_pickle=False) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def named(golden, prefix):
    return {name: golden[f"{prefix}/{name}"] for name in NAMES}


def trained_net(golden):
    """The golden's network: only its weights matter here."""
    model = nn.ModuleDict(
        {
            "conv1": nn.Conv2d(3, 4, 3, bias=False),
            "conv2": nn.Conv2d(4, 8, 3, bias=False),
            "fc": nn.Linear(8, 5, bias=False),
        }
    ).double()
    model.load_state_dict(named(golden, "in/trained"))
    net = MaskedNet(model, NAMES)
    net.freeze_(named(golden, "in/cur_mask"), {})
    return net


def magnitude_freeze(net, density):
    recipe = load_plugins().recipe("imp_long_cold")
    freeze(net, recipe, density, {name: weight.abs() for name, weight in net.effective.items()})
    return net.alive


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_open_lth_takes_the_same_weights_in_the_same_order_and_one_too_many(golden, fraction):
    before, after = golden[f"imp_openlth_{fraction}/before_after"].tolist()
    assert before - after == math.ceil(fraction * before) + 1  # threshold at sorted[n], not [n-1]
    theirs = named(golden, f"imp_openlth_{fraction}/mask")
    same = magnitude_freeze(trained_net(golden), after / 436)
    assert all(torch.equal(same[name], theirs[name]) for name in NAMES)
    ours = magnitude_freeze(trained_net(golden), (1 - fraction) * before / 436)
    assert kept(ours) == budget(before, 1 - fraction) > after
    assert all((ours[name] | ~theirs[name]).all() for name in NAMES)


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_the_2019_code_takes_one_too_many_of_every_layer(golden, fraction):
    theirs = named(golden, f"imp_lth2019_{fraction}/mask")
    alive = named(golden, "in/cur_mask")
    removed = golden[f"imp_lth2019_{fraction}/removed_per_layer"].tolist()
    fractions = [fraction, fraction, fraction / 2]  # half of it in the output layer
    counts = [int(alive[name].sum()) for name in NAMES]
    exact = [round(part * count) for part, count in zip(fractions, counts, strict=True)]
    assert removed == [count + 1 for count in exact]
    shares = {(name,): int(theirs[name].sum()) for name in NAMES}
    importance = {name: golden[f"in/trained/{name}"].abs() for name in NAMES}
    ours = keep_top(importance, alive, shares)
    assert all(torch.equal(ours[name], theirs[name]) for name in NAMES)


def test_the_cubic_curve_is_zhu_and_guptas(golden):
    curve = [1 - Cubic().curve(part, 0.1) for part in golden["gmp_schedule/progress"].tolist()]
    assert curve == pytest.approx(golden["gmp_schedule/sparsity"].tolist(), abs=1e-12)
    assert curve[0] == 0
    freezes = Cubic(every=1, end=1.0).freezes(0.1, 10, 1)
    assert [1 - freeze.density for freeze in freezes] == pytest.approx(curve[1:], abs=1e-12)


@pytest.mark.parametrize("pruner", ITERATIVE)
def test_every_round_leaves_four_fifths_to_the_weight(pruner):
    rungs, ticket = ladder(pruner, density=0.2)
    counts = [budget(342, 0.8**count) for count in range(1, 8)] + [budget(342, 0.2)]
    assert [rung.kept for rung in rungs] == counts
    assert [record.alive for record in ticket.info.history] == counts
    assert ticket.kept == counts[-1]


@pytest.mark.parametrize("pruner", ITERATIVE)
def test_the_last_rung_is_the_ticket(pruner):
    rungs, ticket = ladder(pruner)
    assert rungs[-1] == ticket
    assert len({rung.digest() for rung in rungs}) == len(rungs)


def test_gradual_pruning_gives_a_rung_for_every_freeze_and_trains_on_after_the_last():
    rungs, ticket = ladder("gradual_magnitude", plan=PLAN.lasting(8))
    assert [rung.density for rung in rungs] == pytest.approx(
        [0.3 + 0.7 * (1 - count / 6) ** 3 for count in range(1, 7)], abs=2e-3
    )
    last = rungs[-1]
    assert last.info.epochs == 6
    assert ticket.info.epochs == 8
    for name, mask in ticket.mask.items():
        assert torch.equal(mask, last.mask[name])
        assert not torch.equal(ticket.state[name][mask], last.state[name][mask])


def test_gradual_pruning_takes_the_same_share_of_every_layer():
    _, ticket = ladder("gradual_magnitude")
    for layer in ticket.layers:
        assert layer.kept == pytest.approx(0.3 * layer.prunable, abs=1)


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "magnitude", "random", "dense"])
def test_searches_that_train_no_weights_have_no_ladder(pruner):
    assert ladder(pruner)[0] == []


@pytest.mark.parametrize("pruner", ["imp_short_warm", "lr_rewinding", "gradual_magnitude"])
def test_any_rung_can_be_measured_and_trained(pruner):
    rungs, _ = ladder(pruner)
    for rung in rungs[::2]:
        trained = finetune(rung, tiny_net(), tiny_data(), epochs=1, runtime=CPU)
        assert 0 <= evaluate(trained, tiny_net(), tiny_data(), runtime=CPU) <= 1
        assert trained.kept == rung.kept


def test_what_a_rung_says_of_itself():
    rungs, _ = ladder("imp_short_cold")
    assert [rung.info.epochs for rung in rungs] == [5, 10, 15, 20, 25, 30]
    assert [rung.info.density_target for rung in rungs] == pytest.approx(
        [0.8, 0.64, 0.512, 0.4096, 0.32768, 0.3]
    )
    assert [len(rung.info.history) for rung in rungs] == [1, 2, 3, 4, 5, 6]
    assert [record.step for record in rungs[-1].info.history] == [10, 20, 30, 40, 50, 60]
    assert {rung.info.stage for rung in rungs} == {"found"}


def test_long_and_short_rounds_differ_in_length_alone():
    long, _ = ladder("imp_long_cold", plan=PLAN.lasting(5))
    short, _ = ladder("imp_short_cold", plan=PLAN.lasting(2))
    for one, other in zip(long, short, strict=True):
        assert all(torch.equal(one.mask[name], other.mask[name]) for name in one.mask)


def test_one_shot_lottery_tickets_are_one_round():
    """A schedule that freezes once, after training, with the weights sent back."""
    recipe = load_plugins().recipe(
        "imp_long_cold", parts={"schedule": "once"}, options={"schedule.after": 1.0}
    )
    rungs = []
    search(
        recipe, tiny_net(), tiny_data(), density=0.3, plan=PLAN, runtime=CPU, on_ticket=rungs.append
    )
    [rung] = rungs
    start = tiny_net().state_dict()
    assert all(torch.equal(rung.state[name], start[name]) for name in start)


def test_a_rung_names_the_plugins_that_made_it_as_the_ticket_does(monkeypatch):
    monkeypatch.setattr("gemkit.api.versions_of", lambda parts, registry: {"mine": "7.1"})
    rungs, ticket = ladder("imp_long_cold")
    assert rungs[-1].info.versions == ticket.info.versions
    assert rungs[0].info.versions["mine"] == "7.1"


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 99),
    fraction=st.floats(0.05, 0.9),
    scores=st.sampled_from(["magnitude", "random"]),
    allocation=st.sampled_from(["global", "uniform", "erk"]),
    rewind=st.fixed_dictionaries(
        {"rewind.clock": st.sampled_from([0.0, 0.5])},
        optional={"rewind.weights": st.sampled_from([0.0, 0.5, 1.0])},
    ),
)
def test_no_weight_ever_returns(seed, fraction, scores, allocation, rewind):
    recipe = load_plugins().recipe(
        "lr_rewinding",
        parts={"scores": scores, "allocation": allocation},
        options={"schedule.fraction": fraction, **rewind},
    )
    rungs = []
    how = {"plan": PLAN.lasting(1), "runtime": CPU, "on_collapse": "warn", "seed": seed}
    search(recipe, tiny_net(), tiny_data(), density=0.4, on_ticket=rungs.append, **how)
    for above, below in itertools.pairwise(rungs):
        assert below.kept == budget(total(below.mask), below.info.density_target)
        for name, mask in below.mask.items():
            assert not (mask & ~above.mask[name]).any()
