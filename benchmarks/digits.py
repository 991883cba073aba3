"""The README's table: accuracy before and after fine-tuning on the embedded digits.

    python -m benchmarks.digits [--seeds 5] [--epochs 30]

Every pruner gets the same network, data, epochs and fine-tuning; learning rates are gemkit's
defaults. Results are appended to benchmarks/results/digits.jsonl, one line per run; runs that are
there already are not repeated.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from benchmarks.host import host
from gemkit import Plan, Runtime, evaluate, finetune, load_plugins, search
from gemkit.data.embedded import Digits
from gemkit.engine import finetune_plan
from gemkit.models.small import Conv4

RESULTS = Path(__file__).parent / "results" / "digits.jsonl"
PRUNERS = ("gem_miner", "edge_popup", "random", "dense")
DENSITIES = (0.05, 0.02)


def runs(seeds: int, epochs: int) -> Iterator[dict[str, Any]]:
    for pruner in PRUNERS:
        for density in DENSITIES if pruner != "dense" else (1.0,):
            for seed in range(seeds):
                yield {"pruner": pruner, "density": density, "seed": seed, "epochs": epochs}


def measure(run: dict[str, Any]) -> dict[str, Any]:
    registry, runtime = load_plugins(), Runtime(device="cpu")
    data = Digits().load(None)
    torch.manual_seed(run["seed"])
    model = Conv4().build(data.shape, data.classes)
    began = time.perf_counter()
    ticket = search(
        registry.recipe(run["pruner"]),
        model,
        data,
        density=run["density"],
        plan=Plan(epochs=run["epochs"]),
        seed=run["seed"],
        runtime=runtime,
    )
    before = evaluate(ticket, model, data, runtime=runtime)
    plan = finetune_plan(Plan(epochs=run["epochs"]))
    trained = finetune(ticket, model, data, plan=plan, runtime=runtime)
    assert ticket.info.plan is not None
    return run | {
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "before": before,
        "after": evaluate(trained, model, data, runtime=runtime),
        "seconds": round(time.perf_counter() - began, 1),
        "recipe": ticket.info.recipe,
        "plan": ticket.info.plan.model_dump(mode="json"),
        "finetune_plan": plan.model_dump(mode="json"),
        "versions": ticket.info.versions,
        "host": host(),
    }


def known() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def table(results: list[dict[str, Any]], epochs: int) -> str:
    lines = [
        "| pruner | density asked | density kept | before fine-tuning | after fine-tuning |",
        "|---|---|---|---|---|",
    ]
    for pruner in PRUNERS:
        for density in DENSITIES if pruner != "dense" else (1.0,):
            mine = [
                result
                for result in results
                if (result["pruner"], result["density"], result["epochs"])
                == (pruner, density, epochs)
            ]
            kept = statistics.mean(result["kept"] / result["prunable"] for result in mine)
            cells = [
                f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"
                for values in ([r["before"] for r in mine], [r["after"] for r in mine])
            ]
            lines.append(f"| `{pruner}` | {density:g} | {kept:.4f} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a network this small gains nothing from more
    RESULTS.parent.mkdir(exist_ok=True)
    done = known()
    keys = ("pruner", "density", "seed", "epochs")
    finished = {tuple(result[key] for key in keys) for result in done}
    planned = list(runs(arguments.seeds, arguments.epochs))
    missing = [run for run in planned if tuple(run[key] for key in keys) not in finished]
    with RESULTS.open("a") as file:
        for run in track(missing, description="runs"):
            done.append(measure(run))
            print(json.dumps(done[-1]), file=file, flush=True)
    wanted = [result for result in done if {key: result[key] for key in keys} in planned]
    print(table(wanted, arguments.epochs))


if __name__ == "__main__":
    main()
