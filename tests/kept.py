"""Searches and fine-tunings in this process that are killed and resumed from checkpoints."""

from dataclasses import asdict

import torch
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Plan, load_plugins
from gemkit.core.events import Collapsed, EpochEnded, Froze
from gemkit.pruning.finetune import finetune
from gemkit.pruning.search import search
from gemkit.training.checkpointer import DiskCheckpointer

PLAN = Plan(epochs=3, batch_size=8, lr=0.5)
"""Twelve steps, four per epoch."""

REGISTRY = load_plugins(only=())
RECIPES = {
    "learned": ("gem_miner", {}, {"schedule.every": 1, "schedule.timing": "paper"}),
    "learned, drawn": ("gem_miner", {"rounding": "bernoulli"}, {"schedule.every": 1}),
    "learned, top k": ("edge_popup", {}, {}),
    "measured in rounds": ("synflow", {}, {"schedule.rounds": 4}),
    "measured by chance": ("random", {"schedule": "cubic"}, {"schedule.every": 1}),
    "rewinding": ("imp_long_warm", {}, {"rewind.weights": 1.5, "rewind.clock": 1.5}),
    "rewinding the clock": ("lr_rewinding", {}, {}),
    "gradual": ("gradual_magnitude", {}, {}),
    "dense": ("dense", {}, {}),
}
"""One recipe for each way to search: a pruner, its replaced parts, and fields."""


class Killed(Exception):  # noqa: N818
    """Stands for the death of the process."""


class Mortal(DiskCheckpointer):
    """Save after every step, and raise Killed after `lives` of them."""

    def __init__(self, folder, lives=None, **settings):
        super().__init__(folder, "this run", **{"minutes": 0, **settings})
        self.lives = lives

    def maybe_save(self, *, epoch_ended=False):
        super().maybe_save(epoch_ended=epoch_ended)
        if self.lives is not None:
            self.lives -= 1
            if self.lives == 0:
                raise Killed


def dropping_net():
    """Return a network that draws global random numbers in every step."""
    return nn.Sequential(*tiny_net()[:-1], nn.Dropout(0.3), tiny_net()[-1])


class Recorder(list):
    """Record the events that go into the metrics, without their times."""

    def __call__(self, event):
        if isinstance(event, EpochEnded | Froze | Collapsed):
            self.append(without_time(event))

    def state_dict(self):
        return {"events": list(self)}

    def load_state_dict(self, state):
        self[:] = state["events"]


def without_time(event):
    known = asdict(event)
    known.pop("seconds", None)
    if "layers" in known:
        known["layers"] = list(known["layers"])
    return [type(event).__name__, known]


def find(recipe, events, checkpointer=None, net=dropping_net, device=CPU, plan=PLAN, fabric=None):
    """Search; `recipe` is a key of `RECIPES`."""
    pruner, parts, options = RECIPES[recipe]
    recipe = REGISTRY.recipe(pruner, parts=parts, options=options)
    torch.manual_seed(99)  # earlier draws of the process must not matter
    return search(
        recipe,
        net(),
        tiny_data(),
        density=0.3,
        plan=plan,
        runtime=device,
        on_collapse="warn",
        observers=[events],
        fabric=fabric,
        checkpointer=checkpointer,
    )


def tune(ticket, events, checkpointer=None, net=dropping_net, device=CPU, plan=PLAN):
    return finetune(
        ticket,
        net(),
        tiny_data(),
        plan=plan,
        runtime=device,
        observers=[events],
        checkpointer=checkpointer,
    )


def in_lives(run, folder, lives):
    """Carry out a run that is killed repeatedly; `lives` yields the steps of each attempt."""
    deaths = 0
    while True:
        events = Recorder()
        checkpointer = Mortal(folder, next(lives, None), beside={"events": events})
        try:
            return run(events, checkpointer), events, deaths
        except Killed:
            deaths += 1
