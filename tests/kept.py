"""Runs in this process that die and are resumed: what a death leaves is a folder of checkpoints."""

from dataclasses import asdict

import torch
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Plan, load_plugins
from gemkit.engine import finetune, search
from gemkit.events import Collapsed, EpochEnded, Froze
from gemkit.keeping import DiskKeeper

PLAN = Plan(epochs=3, batch_size=8, lr=0.5)
"""Twelve steps, four an epoch."""

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
"""One recipe for every way to search: a pruner, other parts in it, and fields."""


class Killed(Exception):  # noqa: N818
    """The process ends here."""


class Mortal(DiskKeeper):
    """Saves after every step, and dies after so many."""

    def __init__(self, folder, lives=None, **settings):
        super().__init__(folder, "this run", **{"minutes": 0, **settings})
        self.lives = lives

    def look(self, *, epoch_ended=False):
        super().look(epoch_ended=epoch_ended)
        if self.lives is not None:
            self.lives -= 1
            if self.lives == 0:
                raise Killed


def dropping_net():
    """A network that draws global random numbers in every step."""
    return nn.Sequential(*tiny_net()[:-1], nn.Dropout(0.3), tiny_net()[-1])


class Told(list):
    """Hears what a run tells that goes into its metrics, without the time."""

    def __call__(self, event):
        if isinstance(event, EpochEnded | Froze | Collapsed):
            self.append(without_time(event))

    def state(self):
        return {"events": list(self)}

    def restore_(self, state):
        self[:] = state["events"]


def without_time(event):
    known = asdict(event)
    known.pop("seconds", None)
    if "layers" in known:
        known["layers"] = list(known["layers"])
    return [type(event).__name__, known]


def find(recipe, told, keeper=None, net=dropping_net, device=CPU, plan=PLAN, fabric=None):
    """Search; `recipe` is a key of `RECIPES`."""
    pruner, parts, options = RECIPES[recipe]
    recipe = REGISTRY.recipe(pruner, parts=parts, options=options)
    torch.manual_seed(99)  # what a process draws before does not matter
    return search(
        recipe,
        net(),
        tiny_data(),
        density=0.3,
        plan=plan,
        runtime=device,
        on_collapse="warn",
        observers=[told],
        fabric=fabric,
        keeper=keeper,
    )


def tune(ticket, told, keeper=None, net=dropping_net, device=CPU, plan=PLAN):
    return finetune(
        ticket, net(), tiny_data(), plan=plan, runtime=device, observers=[told], keeper=keeper
    )


def in_lives(run, folder, lives):
    """Carry out a run that dies again and again; `lives` says after how many steps each time."""
    deaths = 0
    while True:
        told = Told()
        keeper = Mortal(folder, next(lives, None), beside={"told": told})
        try:
            return run(told, keeper), told, deaths
        except Killed:
            deaths += 1
