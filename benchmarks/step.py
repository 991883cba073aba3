"""One training step of a search, or of fine-tuning, as a multiple of a step of plain PyTorch.

    python -m benchmarks.step ["timm resnet50" ...] [--turns 15] [--threads 2]

The plain step is what anybody would write without gemkit: a network in the channels-last layout
and fused SGD with momentum, all of it eager. gemkit's are those of its engine after a freeze, at
density 0.05. gemkit lets a process keep the memory it frees, which plain PyTorch does not; ratios
are against a plain step that keeps it, too, so that what remains is the price of a search.
Gem-Miner is measured eager, with a compiled update (the network stays eager), and as it is usually
written, with masks that autograd sees.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.apart import Lap, race_apart
from benchmarks.measure import Effort, Measure, command, lines, raced, ratio
from benchmarks.networks import SETTINGS, Batch
from benchmarks.usual import usual_step
from gemkit import Plan, Runtime, load_plugins
from gemkit.cli.allocator import keep_memory
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator, parameters_of
from gemkit.parts.recipe import Recipe
from gemkit.pruning.freeze import freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.study.store import Row
from gemkit.training.device import make_fabric, place
from gemkit.training.optimizers import make_optimizer
from gemkit.training.trainer import Trainer

PLAIN, KEEPING = "plain", "plain, keeping memory"
USUAL, COMPILED = "gem_miner as usual", "gem_miner, compiled update"
STEPS = (PLAIN, KEEPING, "gem_miner", COMPILED, "edge_popup", "finetune", USUAL)
NETWORKS = (
    "resnet20",
    "vgg16",
    "vgg16 batch 8",
    "mobilenet_v2",
    "timm resnet50",
    "timm vit_tiny",
)


def plain_step(model: nn.Module, batch: Batch) -> Lap:
    """What anybody would write without gemkit."""
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gemkit_step(what: str, model: nn.Module, batch: Batch, density: float) -> Lap:
    """The engine's own step, after a freeze."""
    runtime = Runtime(device="cpu")
    pruner = {"finetune": "magnitude", COMPILED: "gem_miner"}.get(what, what)
    recipe = load_plugins(only=[]).recipe(pruner)
    fabric = make_fabric(runtime)
    model, names = place(model, fabric, runtime), prunable_names(model)
    if what == "finetune":
        net = MaskedNet(model, names)
        freeze(net, recipe, density, {name: w.abs() for name, w in net.effective.items()})
    else:
        start_(model, names, recipe)
        net = MaskedNet.learning(model, names, recipe, generator(0, "scores"))
        freeze(net, recipe, density, recipe.scores.view(net.scores))
    plan = Plan(lr=1e-3)
    trainer = Trainer(net, plan, fabric, runtime)
    if what == COMPILED:
        trainer.optimizer = make_optimizer(plan, net.trainable(), compiled=True)
        net.compile_()
    trainer.module.train()
    return lambda: trainer.step(batch, lr=1e-3)


@torch.no_grad()
def start_(model: nn.Module, names: Sequence[str], recipe: Recipe) -> None:
    """Let the weights begin as the recipe says."""
    parameters = parameters_of(model, names)
    drawn = recipe.init.draw({**parameters}, generator(0, "weights"))
    for name, parameter in parameters.items():
        parameter.copy_(drawn.pop(name))


def step_of(what: str, network: str, density: float = 0.05) -> Lap:
    """Get a contender ready."""
    setting = SETTINGS[network]
    if what != PLAIN:
        keep_memory()
    if what == USUAL:
        return usual_step(setting.build(), setting.images(), density)
    if what not in (PLAIN, KEEPING):
        return gemkit_step(what, setting.build(), setting.images(), density)
    return plain_step(setting.build(), setting.images())


def measure(network: str, effort: Effort) -> Row:
    """Race all steps on one network."""
    makers = {what: partial(step_of, what, network) for what in STEPS}
    setting = SETTINGS[network]
    return {
        "batch": setting.batch,
        "size": setting.size,
        "parameters": sum(one.numel() for one in setting.build().parameters()),
        **raced(race_apart(makers, *effort), KEEPING),
    }


def table(rows: list[Row]) -> str:
    """Draw a row for every network."""
    others = [what for what in STEPS if what != KEEPING]
    titles = ["network", "parameters", "batch", f"{KEEPING}, ms", *others]
    cells = [
        [
            row["subject"].removesuffix(" batch 8"),
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['batch']} at {row['size']}²",
            f"{row['milliseconds'][KEEPING][1]:.0f}",
            *(ratio(row["ratios"][what]) for what in others),
        ]
        for row in rows
    ]
    return lines(titles, cells)


MEASURE = Measure("step", NETWORKS, measure, table)

if __name__ == "__main__":
    command(MEASURE, __doc__)
