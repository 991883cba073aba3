"""Tickets of timm's networks against random tickets with the same layer densities.

    python -m benchmarks.timm_tickets

The embedded digits at 32 × 32 pixels. Gem-Miner and SNIP search the network that `timm:NAME`
builds; the control shuffles every layer's mask. Both are fine-tuned alike. Results are appended to
benchmarks/results, and runs that are there already are not repeated. The table is written into
docs/models.md.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.trial import RESULTS
from gemkit import Data, Plan, Runtime, evaluate, finetune, load_plugins
from gemkit import search as find
from gemkit.data.part import DatasetPart
from gemkit.data.source import Source
from gemkit.models.part import ModelPart
from gemkit.report.pages import write_results
from gemkit.runs.machine import host
from gemkit.sanity.check import SanityCheck
from gemkit.sanity.context import context_of
from gemkit.study.store import Ledger, Row, mean_and_spread

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
NETWORKS = ("resnet18", "regnety_002", "cait_xxs24_224", "mixer_s16_224", "resnet50")
PRUNERS = ("gem_miner", "snip")
SIZE, SEEDS = 32, 1
SETTINGS = {"density": 0.05, "epochs": 16, "finetune_epochs": 3, "batch_size": 32}


def digits() -> Data:
    """Load the embedded digits, enlarged."""
    part = load_plugins(only=[]).build("datasets", "digits")
    assert isinstance(part, DatasetPart)
    small = part.load(None)

    def large(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
        batches = list(source.batches(512))
        images = torch.cat([images for images, _ in batches])
        size = (SIZE, SIZE)
        images = F.interpolate(images, size, mode="bilinear", align_corners=False)
        return images, torch.cat([labels for _, labels in batches])

    return Data.of_tensors(
        train=large(small.train),
        validation=large(small.validation),
        test=large(small.test),
        classes=small.classes,
    )


def measure(run: Row) -> Row:
    """Search, shuffle, fine-tune both, and measure all four."""
    registry, data, runtime = load_plugins(only=[]), digits(), Runtime(device="cpu")
    part = registry.build("models", f"timm:{run['network']}")
    check = registry.build("checks", "shuffle")
    assert isinstance(part, ModelPart)
    assert isinstance(check, SanityCheck)

    def build() -> torch.nn.Module:
        torch.manual_seed(run["seed"])
        return part.build(data.shape, data.classes)

    plan = Plan(epochs=run["epochs"], batch_size=run["batch_size"])
    seed = run["seed"]
    recipe = registry.recipe(run["pruner"])
    model = build()
    ticket = find(
        recipe, model, data, density=run["density"], plan=plan, seed=seed, runtime=runtime,
        on_collapse="warn",
    )  # fmt: skip
    context = context_of(ticket, data=data, build=build, registry=registry, runtime=runtime)
    row = dict(run)
    for name, one in (("ticket", ticket), ("shuffled", check.control(ticket, context))):
        training = plan.lasting(run["finetune_epochs"])
        trained = finetune(one, model, data, plan=training, runtime=runtime)
        row[f"{name}_before"] = evaluate(one, model, data, runtime=runtime)
        row[f"{name}_after"] = evaluate(trained, model, data, runtime=runtime)
    empty = sum(layer.kept == 0 for layer in ticket.layers)
    return row | {"kept": ticket.density, "empty_layers": empty, "host": host()}


def planned() -> list[Row]:
    """List every run, one seed after the other."""
    return [
        {"network": network, "pruner": pruner, "seed": seed, **SETTINGS}
        for seed in range(SEEDS)
        for network in NETWORKS
        for pruner in PRUNERS
    ]


def table(rows: list[Row]) -> str:
    """Draw the results as a Markdown table."""
    lines = [
        "| network | pruner | actual density | ticket, before → after | shuffled, before → after |",
        "|---|---|---|---|---|",
    ]
    for network in NETWORKS:
        for pruner in PRUNERS:
            own = [row for row in rows if (row["network"], row["pruner"]) == (network, pruner)]
            if own:
                kept = sum(row["kept"] for row in own) / len(own)
                cells = [
                    " → ".join(mean_and_spread([row[f"{name}_{when}"] for row in own])
                               for when in ("before", "after"))
                    for name in ("ticket", "shuffled")
                ]  # fmt: skip
                lines.append(f"| `{network}` | `{pruner}` | {kept:.4f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ledger() -> Ledger:
    """Open the file of results."""
    return Ledger(RESULTS / "timm-tickets.jsonl", ("network", "pruner", "seed", *SETTINGS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    arguments = parser.parse_args()
    results = ledger()
    results.complete(planned(), measure, arguments.jobs)
    write_results(PAGE, "timm-tickets", table(results.of(planned())))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
