"""The mask and the scores of a search after every freeze."""

from gemkit import search
from gemkit.core.events import Froze, PhaseStarted
from gemkit.testing import CPU, PLAN, tiny_data, tiny_net

views, seen = [], []


def listen(event):
    if isinstance(event, PhaseStarted):
        views.append(event.view)
    elif isinstance(event, Froze):
        scores, masks = views[0].scores(), views[0].masks()
        seen.append(float(scores["0.weight"][masks["0.weight"]].mean()))


search(
    "gem_miner", tiny_net(), tiny_data(), density=0.5, plan=PLAN, runtime=CPU, observers=[listen]
)
assert all(0.5 < mean <= 1 for mean in seen)
