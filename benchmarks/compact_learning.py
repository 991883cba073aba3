"""Whether a compact network learns what the masked one does: both fine-tuned, side by side.

    python -m benchmarks.compact_learning --images DIR [--networks vgg16]

Both start from the same weights and see the same images in the same order. `conv4` learns the
digits that come with gemkit, the others photographs of 32 × 32 from a folder with one folder for
each class. Rows are appended to results/compact-learning.jsonl; the table on docs/compaction.md is
drawn from them. Seconds are those of the whole fine-tuning, on the processor.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.compaction import BATCH, CPU, PAGE, images_from, ticket_of
from benchmarks.trial import RESULTS
from gemkit import Data, Plan, compact, evaluate, finetune
from gemkit.data.embedded import Digits
from gemkit.report.pages import write_results
from gemkit.runs.machine import host
from gemkit.study.store import Ledger, Row, mean_and_spread


class Protocol(NamedTuple):
    """How a ticket is found and trained."""

    pruner: str
    epochs: int
    seeds: int
    images: int | None = None
    """How many photographs; None for the digits."""


PROTOCOLS = {
    "conv4": Protocol("gem_miner", epochs=20, seeds=5),
    "resnet20": Protocol("synflow", epochs=6, seeds=3, images=2_500),
    "vgg16": Protocol("synflow", epochs=6, seeds=2, images=2_500),
}
LEDGER = Ledger(RESULTS / "compact-learning.jsonl", ("network", "seed"))


def row_of(network: str, seed: int, data: Data) -> Row:
    """Fine-tune one ticket, masked and compact."""
    protocol = PROTOCOLS[network]
    ticket, model = ticket_of(network, protocol.pruner, data)
    small = compact(ticket, model, training=True, shape=data.shape)
    how = {"plan": Plan(epochs=protocol.epochs, batch_size=BATCH), "seed": seed, "runtime": CPU}
    began = time.process_time()
    compacted = small.expand(finetune(small.ticket, small.model, data, **how))
    between = time.process_time()
    masked = finetune(ticket, model, data, **how)
    seconds = {"compact": between - began, "masked": time.process_time() - between}
    tickets = {"masked": masked, "compact": compacted}
    return {
        "network": network,
        "seed": seed,
        **protocol._asdict(),
        "density": ticket.density,
        "cpu_seconds": seconds,
        "accuracy": {
            name: evaluate(one, model, data, runtime=CPU) for name, one in tickets.items()
        },
        "host": host(),
        "torch": torch.__version__,
    }


def table(rows: list[Row]) -> str:
    """Draw the accuracies in percent, and how many times faster the compact one learned."""
    lines = [
        "| network | ticket | images | epochs | seeds | masked | compact | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for network, protocol in PROTOCOLS.items():
        if own := [row for row in rows if row["network"] == network]:
            images = f"{protocol.images:,} photographs" if protocol.images else "digits"
            masked, small = (
                mean_and_spread([row["accuracy"][name] for row in own])
                for name in ("masked", "compact")
            )
            times = [row["cpu_seconds"] for row in own]
            faster = statistics.median(one["masked"] / one["compact"] for one in times)
            lines.append(
                f"| `{network}` | `{protocol.pruner}` | {images} | {protocol.epochs} | {len(own)} "
                f"| {masked} | {small} | {faster:.1f} × faster |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, metavar="DIR")
    parser.add_argument("--networks", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # or threads that wait would count as work
    for network in arguments.networks:
        protocol = PROTOCOLS[network]
        planned = [{"network": network, "seed": seed} for seed in range(protocol.seeds)]
        for run in LEDGER.missing(planned):
            many = protocol.images
            if many and arguments.images is None:
                parser.error(f"{network} needs --images DIR")
            data = images_from(arguments.images, many) if many else Digits().load(None)
            LEDGER.append(row_of(network, run["seed"], data))
    write_results(PAGE, "learned", table(LEDGER.rows()))
    print(table(LEDGER.rows()))


if __name__ == "__main__":
    main()
