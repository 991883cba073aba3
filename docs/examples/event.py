"""Print what happens, and end the search once the loss is low enough."""

from gemkit import search
from gemkit.core.events import EpochEnded, Froze, PhaseStarted
from gemkit.testing import CPU, PLAN, tiny_data, tiny_net

views, lines = [], []


def listen(event):
    if isinstance(event, PhaseStarted):
        views.append(event.view)
    elif isinstance(event, Froze):
        lines.append(f"step {event.step}: {event.kept} of {event.prunable}")
    elif isinstance(event, EpochEnded) and event.loss < 10:
        views[0].stop("the loss is low enough")


search(
    "gem_miner", tiny_net(), tiny_data(), density=0.5, plan=PLAN, runtime=CPU, observers=[listen]
)
assert lines[-1].endswith(" of 342")
