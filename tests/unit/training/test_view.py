"""Observers see masks and scores on demand, and may ask to stop."""

from itertools import chain, repeat

import pytest
import torch
from kept import PLAN, REGISTRY, Recorder, in_lives
from tiny import CPU, tiny_data, tiny_net

from gemkit.core.events import EpochEnded, Froze, Noted, PhaseStarted, StepEnded
from gemkit.core.tensors import budget, kept, total
from gemkit.pruning.finetune import finetune
from gemkit.pruning.search import search


class Observer:
    """Looks after every step, and stops after one."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at
        self.steps, self.looks, self.notes, self.froze, self.densities = 0, [], [], 0, []

    def __call__(self, event):
        if isinstance(event, PhaseStarted):
            self.view = event.view
        elif isinstance(event, Noted):
            self.notes.append(event.message)
        elif isinstance(event, Froze):
            self.froze += 1
        elif isinstance(event, EpochEnded):
            self.densities.append((event.density, kept(self.view.masks())))
        elif isinstance(event, StepEnded):
            self.steps += 1
            self.looks.append((self.view.masks(), self.view.scores()))
            if event.step == self.stop_at:
                self.view.stop("good enough")


def found(pruner, observer, options=None, checkpointer=None, density=0.3):
    torch.manual_seed(99)
    return search(
        REGISTRY.recipe(pruner, options=options or {}),
        tiny_net(),
        tiny_data(),
        density=density,
        plan=PLAN,
        runtime=CPU,
        on_collapse="warn",
        observers=[observer],
        checkpointer=checkpointer,
    )


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_masks_and_scores_are_those_of_the_moment():
    observer = Observer()
    ticket = found("edge_popup", observer)
    masks, scores = zip(*observer.looks, strict=True)
    assert observer.steps == len(masks) == 12
    assert same(masks[-1], ticket.mask)
    assert not same(scores[0], scores[-1])
    assert all(kept(mask) == ticket.kept for mask in masks)
    assert [density for density, _ in observer.densities] == pytest.approx(
        [count / total(ticket.mask) for _, count in observer.densities]
    )


def test_what_an_observer_does_to_its_copies_harms_nothing():
    class Careless(Observer):
        def __call__(self, event):
            super().__call__(event)
            for tensors in self.looks[-1] if self.looks else ():
                for tensor in tensors.values():
                    tensor.zero_()

    assert same(found("gem_miner", Careless()).mask, found("gem_miner", Observer()).mask)


def test_weights_that_train_have_no_scores():
    observer = Observer()
    found("gradual_magnitude", observer)
    assert all(not scores for _, scores in observer.looks)


STOPPED = {
    "gem_miner": {"schedule.every": 1, "finalize": "alive"},
    "edge_popup": {},
    "gradual_magnitude": {"schedule.every": 1},
    "imp_long_cold": {"schedule.fraction": 0.5},
    "rigl": {"schedule.every": 2},
    "movement": {},
}


@pytest.mark.parametrize("pruner", STOPPED)
def test_a_search_that_is_stopped_takes_no_more_steps_and_reaches_its_density(pruner):
    observer, whole = Observer(stop_at=2), Observer()
    found(pruner, whole, STOPPED[pruner])
    ticket = found(pruner, observer, STOPPED[pruner])
    assert observer.steps == 2 < whole.steps
    assert observer.froze == 1  # straight to the target
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.3)
    assert "stopped after step 2: good enough" in observer.notes


def test_nothing_is_trained_where_it_is_stopped_before_the_first_step():
    class AtOnce(Observer):
        def __call__(self, event):
            super().__call__(event)
            if isinstance(event, PhaseStarted):
                event.view.stop("not today")

    observer = AtOnce()
    ticket = found("gradual_magnitude", observer)
    assert observer.steps == 0
    assert all(torch.equal(ticket.state[name], p) for name, p in tiny_net().state_dict().items())


def test_fine_tuning_that_is_stopped_keeps_the_mask_and_what_it_has_learned():
    ticket = found("gem_miner", Observer())

    def tuned(stop_at):
        observer = Observer(stop_at)
        done = finetune(
            ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=CPU, observers=[observer]
        )
        return done, observer

    done, observer = tuned(stop_at=3)
    assert observer.steps == 3
    assert same(done.mask, ticket.mask)
    assert all(same(masks, ticket.mask) for masks, _ in observer.looks)
    name = next(iter(ticket.mask))
    applied = done.apply(tiny_net()).get_parameter(name)
    assert applied[~ticket.mask[name]].count_nonzero() == 0
    assert not torch.equal(done.state[name], ticket.state[name])
    whole, _ = tuned(stop_at=None)
    assert not torch.equal(done.state[name], whole.state[name])


def test_a_search_that_is_killed_after_it_was_stopped_stays_stopped(tmp_path):
    def run(told, checkpointer):
        observer = Observer(stop_at=5)

        def both(event):
            told(event)
            observer(event)

        steps.append(observer)
        return found("gradual_magnitude", both, {"schedule.every": 1}, checkpointer)

    steps = []
    straight = run(Recorder(), None)
    resumed, _, deaths = in_lives(run, tmp_path, chain([3], repeat(1)))
    assert deaths > 3
    assert same(straight.state, resumed.state)
    assert same(straight.mask, resumed.mask)
    assert sum(observer.steps for observer in steps[1:]) == 5
