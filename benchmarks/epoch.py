"""A whole epoch of a search, with its data, freezes and evaluation, beside a bare training loop.

    python -m benchmarks.epoch [resnet20 ...] [--turns 3] [--threads 2]

All work on the same tensors in memory. The bare loop shuffles, takes batches, trains, and
evaluates once after every epoch, as plainly as it can be written. gemkit's `search` does all that
it does in a run.
"""

from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.apart import Lap, race_apart
from benchmarks.measure import Effort, Measure, command, lines, raced, ratio
from benchmarks.networks import SETTINGS, Setting
from benchmarks.step import KEEPING, PLAIN
from gemkit import Data, Plan, Runtime, load_plugins
from gemkit.cli.allocator import keep_memory
from gemkit.pruning.search import search
from gemkit.study.store import Row

EPOCHS = 4
STEPS = 3
NETWORKS = ("resnet20", "vgg16")
CONTENDERS = (PLAIN, KEEPING, "gem_miner", "edge_popup")


def bare_loop(setting: Setting, data: Data) -> Lap:
    """Train and evaluate as anybody would without gemkit."""
    (images, labels), (held_out, answers) = (
        next(one.batches(len(one))) for one in (data.train, data.validation)
    )

    def epochs() -> None:
        model = setting.build().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        for _ in range(EPOCHS):
            model.train()
            for chosen in torch.randperm(len(images)).split(setting.batch):
                loss = F.cross_entropy(model(images[chosen]), labels[chosen])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                pairs = zip(
                    held_out.split(setting.batch), answers.split(setting.batch), strict=True
                )
                sum((model(some).argmax(1) == true).sum() for some, true in pairs)

    return epochs


def epochs_of(what: str, network: str) -> Lap:
    """Get a contender ready."""
    setting = SETTINGS[network]
    some, few = setting.images(STEPS * setting.batch), setting.images(setting.batch)
    data = Data.of_tensors(train=some, validation=few, test=few)
    if what == KEEPING:
        keep_memory()
    if what in (PLAIN, KEEPING):
        return bare_loop(setting, data)
    recipe = load_plugins(only=[]).recipe(what)
    plan = Plan(epochs=EPOCHS, batch_size=setting.batch)
    runtime = Runtime(device="cpu")
    return lambda: search(recipe, setting.build(), data, density=0.05, plan=plan, runtime=runtime)


def measure(network: str, effort: Effort) -> Row:
    """Race epochs on one network."""
    makers = {what: partial(epochs_of, what, network) for what in CONTENDERS}
    return {"steps": STEPS, "epochs": EPOCHS, **raced(race_apart(makers, *effort), PLAIN)}


def table(rows: list[Row]) -> str:
    """Draw a row for every network."""
    cells = [
        [
            row["subject"],
            f"{row['milliseconds'][PLAIN][1] / 1e3 / row['epochs']:.1f}",
            *(ratio(row["ratios"][what]) for what in CONTENDERS[1:]),
        ]
        for row in rows
    ]
    return lines(["network", f"{PLAIN}, seconds", *CONTENDERS[1:]], cells)


MEASURE = Measure("epoch", NETWORKS, measure, table, turns=3)

if __name__ == "__main__":
    command(MEASURE, __doc__)
