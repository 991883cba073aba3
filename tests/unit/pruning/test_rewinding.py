"""Rewinding: to the bit, in weights, buffers, learning rates and the order of the data."""

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU, tiny_data, tiny_net
from torch import Tensor, nn

from gemkit import Plan, Rewind, load_plugins, search
from gemkit.core.events import EpochEnded, PhaseStarted, StepEnded
from gemkit.core.prunable import prunable_names
from gemkit.parts.schedule import Freeze
from gemkit.pruning.finetune import finetune_plan
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.rewind import segments, steps_in
from gemkit.training.device import make_fabric
from gemkit.training.loop import endless
from gemkit.training.trainer import Trainer

PER_EPOCH = 4
PLAN = Plan(epochs=4, batch_size=8, lr=0.1, weight_decay=0.1)
DATA = tiny_data(samples=32)
WARM = {"rewind.weights": 1.75, "rewind.clock": 1.75}  # 7 of 16 steps, in the middle of an epoch
K, T = 7, 16


class Step(NamedTuple):
    lr: float
    images: Tensor
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    alive: dict[str, Tensor]


@pytest.fixture
def taken(monkeypatch):
    """Write down every step that any trainer takes."""
    steps = []
    take = Trainer.step

    def step(self, batch, lr, number=0):
        before = self.net.snapshot()
        done = take(self, batch, lr, number)
        steps.append(Step(lr, batch[0], before, self.net.snapshot(), self.net.alive))
        return done

    monkeypatch.setattr(Trainer, "step", step)
    return steps


def find(pruner="imp_long_cold", *, options=None, plan=PLAN, density=0.5, model=None, **how):
    """Four rounds by default: 0.8, 0.64, 0.512 and 0.5."""
    rungs = []
    recipe = load_plugins().recipe(pruner, options=options or {})
    how = {"runtime": CPU, "on_collapse": "warn", "on_ticket": rungs.append, **how}
    search(recipe, model or tiny_net(), DATA, density=density, plan=plan, **how)
    return rungs


def by_hand(net, first, last, plan=PLAN):
    """Train from one step of the clock to another, with nothing of gemkit's own loop."""
    fabric = make_fabric(CPU)
    plan = finetune_plan(plan)
    trainer = Trainer(net, plan, fabric, CPU)
    trainer.module.train()
    batches = itertools.islice(
        endless(DATA.train, plan.batch_size, seed=0, fabric=fabric), first, last
    )
    for step, batch in enumerate(batches, first):
        trainer.step(batch, plan.lr_at(step, PER_EPOCH))
    return net.snapshot()


def net_of(model):
    return MaskedNet(model, prunable_names(model))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_cold_returns_to_the_initial_state_bit_for_bit():
    start = tiny_net().state_dict()
    rungs = find()
    assert len(rungs) == 4
    for rung in rungs:
        assert same(rung.state, start)  # batch norm's statistics are part of it
        worn = rung.apply(tiny_net())
        for name, mask in rung.mask.items():
            assert torch.equal(worn.get_parameter(name), start[name] * mask)


def test_warm_returns_to_what_a_run_of_its_own_has_after_k_steps():
    expected = by_hand(net_of(tiny_net()), 0, K)
    assert not torch.equal(expected["1.running_mean"], tiny_net()[1].running_mean)
    assert expected["1.num_batches_tracked"] == K
    for rung in find(options=WARM):
        assert same(rung.state, expected)


def test_the_network_itself_is_rewound_and_not_only_the_ticket(taken):
    rungs = find(options=WARM)
    for count, rung in enumerate(rungs[:-1]):
        begins = taken[T + count * (T - K)].before
        for name, value in begins.items():
            mask = rung.mask.get(name, torch.tensor(True))
            assert torch.equal(value, rung.state[name] * mask)


def test_a_round_is_what_a_fresh_optimizer_makes_of_the_ticket(taken):
    """Momentum left over from the round before would show in every bit."""
    rungs = find(options=WARM)
    end_of_round = taken[T + (T - K) - 1].after
    net = net_of(rungs[0].apply(tiny_net()))
    net.freeze_(rungs[0].mask, {})
    assert same(by_hand(net, K, T), end_of_round)


@pytest.mark.parametrize("options", [{}, WARM, {**WARM, "rewind.clock": 0.0}])
def test_learning_rates_and_batches_go_on_from_where_the_clock_is_set(taken, options):
    """As OpenLTH has it: after rewinding to k the schedule and the data are those of step k."""
    find(options=options)
    clock = 7 if options.get("rewind.clock") else 0
    shown = [*range(T), *(list(range(clock, T)) * 3)]
    assert [step.lr for step in taken] == [PLAN.lr_at(step, PER_EPOCH) for step in shown]
    first_round = [step.images for step in taken[:T]]
    assert all(
        torch.equal(step.images, first_round[at]) for step, at in zip(taken, shown, strict=True)
    )
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(first_round, 2))


def test_learning_rate_rewinding_keeps_the_weights_and_restarts_the_clock(taken):
    rungs = find("lr_rewinding")
    assert [step.lr for step in taken] == 4 * [PLAN.lr_at(step, PER_EPOCH) for step in range(T)]
    ends, begins = taken[T - 1].after, taken[T].before
    for name, value in begins.items():
        assert torch.equal(value, ends[name] * rungs[0].mask.get(name, torch.tensor(True)))
    for name, weight in ends.items():
        assert torch.equal(rungs[0].state[name], weight)
    assert begins["1.num_batches_tracked"] == T


def test_without_rewinding_momentum_and_clock_run_on(taken):
    find("gradual_magnitude", options={"schedule.end": 1.0})
    assert [step.lr for step in taken] == [PLAN.lr_at(step, PER_EPOCH) for step in range(T)]
    for one, other in itertools.pairwise(taken):
        alive = other.alive
        assert all(torch.equal(other.before[n], one.after[n] * alive[n]) for n in alive)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("pruner", ["imp_long_cold", "lr_rewinding", "gradual_magnitude"])
def test_pruned_weights_are_exactly_zero_after_every_step(taken, pruner, optimizer):
    find(pruner, plan=Plan(epochs=4, batch_size=8, lr=0.01, weight_decay=0.1, optimizer=optimizer))
    assert sum(int((~mask).sum()) for mask in taken[-1].alive.values()) > 100
    for step in taken:
        for name, mask in step.alive.items():
            assert step.after[name][~mask].count_nonzero() == 0
            assert step.after[name][mask].count_nonzero() > 0


def test_rewinding_runs_on_every_device(fabric):
    rungs = find(options=WARM, fabric=fabric)
    assert [rung.kept for rung in rungs] == [274, 219, 175, 171]
    assert all(same(rung.state, rungs[0].state) for rung in rungs)


def test_tied_weights_and_buffers_nobody_saves_are_rewound_too():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Embedding(72, 72)  # shares its weight, but is not itself prunable
            self.linear = nn.Linear(72, 72)
            self.linear.weight = self.first.weight
            self.head = nn.Linear(72, 3)
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def forward(self, x):
            if self.training:
                self.seen += 1
            return self.head(self.linear(x.flatten(1)).relu()) + 0 * self.seen

    model = Tied()
    rungs = find(model=model)
    for rung in rungs:
        assert same(rung.state, model.state_dict())
    net = net_of(Tied())
    early = net.snapshot()
    by_hand(net, 0, 3)
    assert net.model.seen == 3
    net.rewind_(early)
    assert net.model.seen == 0


MOMENTS = [None, 0.0, 0.6, 1.75, 3.0]


@pytest.mark.parametrize("clock", MOMENTS)
@pytest.mark.parametrize("weights", MOMENTS)
def test_what_a_phase_announces_is_what_happens(weights, clock):
    """Whole rounds and broken ones, with the clock set back or not."""
    events = []
    options = {"rewind.weights": weights, "rewind.clock": clock}
    options = {name: value for name, value in options.items() if value is not None}
    schedule = {"name": "linear", "every": 3, "end": 1.0} if clock is None else "iterative"
    recipe = load_plugins().recipe("magnitude", parts={"schedule": schedule}, options=options)
    ticket = search(
        recipe, tiny_net(), DATA, density=0.5, plan=PLAN, runtime=CPU, observers=[events.append]
    )
    [started] = [event for event in events if isinstance(event, PhaseStarted)]
    steps = [event.step for event in events if isinstance(event, StepEnded)]
    epochs = [event.epoch for event in events if isinstance(event, EpochEnded)]
    assert steps == list(range(1, started.steps + 1))
    assert epochs == list(range(1, started.epochs + 1))
    assert ticket.info.epochs == round(started.steps / PER_EPOCH)
    if clock is not None:
        assert started.steps == T + 3 * (T - int(clock * PER_EPOCH))


def test_a_search_that_rewinds_ends_with_its_last_freeze():
    freezes = [Freeze(6, 0.5), Freeze(10, 0.2)]
    assert segments(Rewind(), freezes, 16, 4) == [range(6), range(6, 10), range(10, 16)]
    cold = Rewind(weights=0.0, clock=0.0)
    assert segments(cold, freezes, 16, 4) == [range(6), range(10), range(10, 10)]
    weights_alone = Rewind(weights=0.0)
    assert segments(weights_alone, freezes, 16, 4) == [range(6), range(6, 10), range(10, 10)]


def test_a_moment_is_counted_in_whole_steps_at_its_face_value():
    assert steps_in(2.56, 391) == 1000  # CIFAR-10 in batches of 128
    assert steps_in(0.29, 100) == 29
    assert int(0.29 * 100) == 28


@given(samples=st.integers(2, 40), size=st.integers(1, 12), start=st.integers(0, 60))
def test_batches_from_the_middle_are_those_that_would_have_come(samples, size, start):
    """Also where an epoch leaves its last, too small batch out."""
    source, fabric = tiny_data(samples=samples).train, make_fabric(CPU)
    from_zero = endless(source, size, seed=3, fabric=fabric)
    there = endless(source, size, seed=3, fabric=fabric, start=start)
    expected = itertools.islice(from_zero, start, start + 5)
    for one, other in zip(expected, itertools.islice(there, 5), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
