"""What compaction gains: an epoch of fine-tuning, and inference, compact against masked.

    python -m benchmarks.compaction [--images DIR] [--networks vgg16 resnet20] [--processor]

Every ticket is searched, compacted, and both networks take turns in one process: one epoch of
fine-tuning with its data and evaluation, and one batch of inference, as `gemkit bench` does. Ratios
of the same turn are what counts; the seconds are those of a machine that may be busy. Rows are
appended to results/compaction.jsonl, and the table on docs/compaction.md is drawn from them;
`python -m benchmarks.compact_learning` measures accuracies.

`--images` is a folder with images, one folder for each class; without it images are made up, which
makes no difference to time, but gem_miner needs something to learn. `conv4` sees the digits that
come with gemkit.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.trial import RESULTS
from gemkit import Data, Plan, Runtime, Ticket, compact, finetune, load_plugins
from gemkit.compaction import Compact, difference
from gemkit.compaction.macs import count_macs
from gemkit.compaction.timing import Spread, Times, time_interleaved
from gemkit.data.embedded import Digits
from gemkit.data.part import DatasetPart
from gemkit.models.part import ModelPart
from gemkit.pruning.search import search
from gemkit.report.pages import write_results
from gemkit.runs.machine import host
from gemkit.study.store import Ledger, Row

PAGE = Path(__file__).parent.parent / "docs" / "compaction.md"
TICKETS = (
    ("conv4", "gem_miner"),
    ("vgg16", "synflow"),
    ("resnet20", "synflow"),
    ("vgg16", "gem_miner"),
    ("resnet20", "gem_miner"),
    ("mobilenet_v2", "synflow"),
)
SEARCH_EPOCHS = {"conv4": 30}
DENSITY = 0.0144
CPU = Runtime(device="cpu")
BATCH = 64
LEDGER = Ledger(RESULTS / "compaction.jsonl", ("network", "pruner"))


def images_from(folder: Path | None, limit: int = 320) -> Data:
    """Load some images of 32 × 32, or make a few up."""
    registry = load_plugins(only=[])
    if folder is None:
        made = {"name": "fake", "size": 32, "classes": 10, "samples": 400}
        part = registry.build("datasets", made)
    else:
        part = registry.build(
            "datasets", {"name": "imagefolder", "path": str(folder), "limit": limit, "size": 32}
        )
    assert isinstance(part, DatasetPart)
    return part.load(None)


def few(data: Data) -> Data:
    """Take two batches to train on and one to evaluate on, for epochs that are short."""
    train, test = (
        next(one.batches(count * BATCH)) for one, count in ((data.train, 2), (data.test, 1))
    )
    return Data.of_tensors(train=train, validation=test, test=test, classes=data.classes)


def row_of(name: str, pruner: str, data: Data, arguments: argparse.Namespace) -> Row:
    """Search one ticket, compact it, and race the two networks."""
    ticket, model = ticket_of(name, pruner, data)
    began = time.perf_counter()
    small = compact(ticket, model, training=True, shape=data.shape)
    seconds = time.perf_counter() - began
    clock = time.process_time if arguments.processor else time.perf_counter
    timed = _races(ticket, model, small, data, arguments.turns, clock)
    return {
        "network": name,
        "pruner": pruner,
        "density": ticket.density,
        "images": data.name,
        "search_epochs": ticket.info.epochs,
        "batch": BATCH,
        "turns": arguments.turns,
        "clock": "processor" if arguments.processor else "wall",
        "seconds_to_compact": round(seconds, 1),
        **timed,
        "host": host(),
        "torch": torch.__version__,
    }


def ticket_of(name: str, pruner: str, data: Data) -> tuple[Ticket, nn.Module]:
    """Search a ticket, and return it with its network."""
    registry = load_plugins(only=[])
    part = registry.build("models", name)
    assert isinstance(part, ModelPart)
    torch.manual_seed(0)
    model = part.build(data.shape, data.classes)
    how = {"density": DENSITY, "runtime": CPU, "on_collapse": "warn"}
    plan = Plan(epochs=SEARCH_EPOCHS.get(name, 8), batch_size=BATCH)
    return search(registry.recipe(pruner), model, data, plan=plan, **how), model


def _races(
    ticket: Ticket,
    model: nn.Module,
    small: Compact,
    data: Data,
    turns: int,
    clock: Callable[[], float],
) -> Row:
    """Time both networks, and count what they compute."""
    short, plan = few(data), Plan(epochs=1, batch_size=BATCH)
    used = compact(ticket, model, shape=data.shape)
    masked = ticket.apply(model).eval()
    images, _ = next(short.test.batches(BATCH))
    epochs = time_interleaved(
        {
            "masked": lambda: finetune(ticket, model, short, plan=plan, runtime=CPU),
            "compact": lambda: finetune(small.ticket, small.model, short, plan=plan, runtime=CPU),
        },
        turns,
        clock,
    )
    used.model.eval()
    with torch.no_grad():
        inference = time_interleaved(
            {"masked": lambda: masked(images), "compact": lambda: used.model(images)},
            2 * turns + 1,
            clock,
        )
    before, after, in_use = (
        count_macs(one, data.shape) for one in (masked, small.model, used.model)
    )
    return {
        "multiplications": {"masked": before.total, "training": after.total, "use": in_use.total},
        "useful": before.nonzero,
        "channels": [sum(one.kept for one in used.widths), sum(one.before for one in used.widths)],
        "error": difference(masked, used.model, images),
        "epoch": _told(epochs),
        "inference": _told(inference),
    }


def _told(times: dict[str, Times]) -> Row:
    seconds = {name: own.spread.median for name, own in times.items()}
    return {"seconds": seconds, "faster": list(times["masked"].against(times["compact"]))}


def table(rows: list[Row]) -> str:
    """Draw the results: how many times less, and faster, with quartiles of the turns."""
    lines = [
        "| network | ticket | density | channels left | multiplications | epoch of fine-tuning "
        "| inference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        left, all_of_them = row["channels"]
        counts = row["multiplications"]
        lines.append(
            f"| `{row['network']}` | `{row['pruner']}` | {row['density']:.4f} "
            f"| {left:,} of {all_of_them:,} | {counts['masked'] / counts['use']:.1f} × fewer "
            f"| {_faster(row['epoch'])} | {_faster(row['inference'])} |"
        )
    return "\n".join(lines)


def _faster(timed: Row) -> str:
    low, median, high = Spread(*timed["faster"])
    return f"{median:.1f} × faster ({low:.1f}–{high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, metavar="DIR")
    parser.add_argument("--networks", nargs="+", default=[name for name, _ in TICKETS])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--processor", action="store_true", help="count time on the processor")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # or threads that wait would count as work
    data, digits = images_from(arguments.images), Digits().load(None)
    done = {(row["network"], row["pruner"]) for row in LEDGER.rows()}
    for name, pruner in TICKETS:
        if name in arguments.networks and (name, pruner) not in done:
            LEDGER.append(row_of(name, pruner, digits if name == "conv4" else data, arguments))
    print(table(LEDGER.rows()))
    write_results(PAGE, "compaction", table(LEDGER.rows()))


if __name__ == "__main__":
    main()
