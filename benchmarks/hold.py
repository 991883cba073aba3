"""What a held mask costs: a step of a plain loop with `ticket.hold`, compared with one without.

    python -m benchmarks.hold ["timm resnet50" ...] [--turns 15] [--threads 2]

Both are the same loop in the same process: a network in the channels-last layout, fused SGD with
momentum, forward, backward, step. They take turns. The mask keeps 5 % of every layer. Kernels are
what the hooks add to a step on the simulated accelerator of `gemkit.testing.simulated`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.measure import Effort, Measure, command, lines, raced, ratio
from benchmarks.networks import SETTINGS, Batch
from gemkit import Ticket, prunable_names
from gemkit.compaction.timing import time_interleaved
from gemkit.core.tensors import generator
from gemkit.study.store import Row
from gemkit.testing import simulated

NETWORKS = ("resnet20", "vgg16", "mobilenet_v2", "timm resnet50", "timm vit_tiny")
DENSITY = 0.05
PLAIN, HELD = "plain", "held"


def random_ticket(model: nn.Module) -> Ticket:
    """Make a ticket that keeps a random twentieth of every layer."""
    rng = generator(0, "benchmark")
    names = prunable_names(model)
    shapes = {name: model.get_parameter(name).shape for name in names}
    return Ticket.from_masks(
        model, {name: torch.rand(shape, generator=rng) < DENSITY for name, shape in shapes.items()}
    )


def step(model: nn.Module, batch: Batch, *, held: bool) -> Callable[[], None]:
    """Return a step of a plain training loop."""
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    if held:
        random_ticket(model).hold(model, optimizer)

    def lap() -> None:
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return lap


def kernels(network: str) -> dict[str, int]:
    """Count the kernels of an optimizer step on a simulated device, with a mask and without."""
    device = simulated.install()
    counts: dict[str, int] = {}
    for name in (PLAIN, HELD):
        model = SETTINGS[network].build().to(memory_format=torch.channels_last)
        ticket = random_ticket(model)
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        hold = ticket.hold(model, optimizer) if name == HELD else None
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            with simulated.watched() as seen:
                optimizer.step()
        counts[name] = seen.count
        counts[f"{name} waits"] = len(seen.waits)
        if hold is not None:
            hold.remove()
    return counts


def measure(network: str, effort: Effort) -> Row:
    """Race both steps, and count kernels."""
    torch.set_num_threads(effort.threads)
    setting = SETTINGS[network]
    batch = setting.images()
    laps = {name: step(setting.build(), batch, held=name == HELD) for name in (PLAIN, HELD)}
    times = time_interleaved(laps, effort.turns)
    found = kernels(network)
    layers = len(prunable_names(setting.build()))
    return {**raced(times, PLAIN), "layers": layers, "kernels": found}


def table(rows: list[Row]) -> str:
    """Draw the table."""
    titles = ["network", "layers", "held ÷ plain", "kernels added"]
    cells = [
        [
            f"`{row['subject']}`",
            str(row["layers"]),
            ratio(row["ratios"][HELD], 3),
            str(row["kernels"][HELD] - row["kernels"][PLAIN]),
        ]
        for row in rows
    ]
    return lines(titles, cells)


MEASURE = Measure("hold", NETWORKS, measure, table)

if __name__ == "__main__":
    command(MEASURE, __doc__)
