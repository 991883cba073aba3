"""Gem-Miner, its controls, SNIP and the dense network on a table and on sequences of tokens.

    python -m benchmarks.tasks            (seeds 0 to 4; writes the tables)
    python -m benchmarks.tasks --tune     (what the settings were chosen from: seed 100)

For every seed, a ticket and its controls are fine-tuned by the same plan, on the same data in the
same order. Settings are chosen by validation accuracy, with seeds that the tables do not use;
tuning does not measure the test split. Results are appended to benchmarks/results/tasks.jsonl, and
runs that are there already are not repeated. The tables are written into docs/sanity-checks.md:
means with 95 % intervals (Student's t), and differences over pairs of the same seed.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.newer import interval
from benchmarks.trial import RESULTS
from gemkit import Plan, Runtime, load_plugins
from gemkit.core.errors import CollapseError, GemkitError
from gemkit.data.part import DatasetPart
from gemkit.models.part import ModelPart
from gemkit.pruning.finetune import finetune_plan
from gemkit.pruning.search import search_plan
from gemkit.report.pages import write_results
from gemkit.runs.checking import make_checks
from gemkit.runs.machine import host
from gemkit.sanity.context import CheckContext
from gemkit.sanity.trials import fair_control
from gemkit.sanity.verdicts import judge
from gemkit.study.store import Ledger, Row
from gemkit.tickets.ticket import Ticket

PAGE = Path(__file__).parent.parent / "docs" / "sanity-checks.md"
DATA_PAGE = PAGE.with_name("data.md")
LEDGER = Ledger(RESULTS / "tasks.jsonl", ("use", "task", "arm", "density", "seed", "changes"))
CHECKS = ("shuffle", "reinit", "invert")
DENSITIES = (0.1, 0.02)
SEEDS = range(5)
TUNING_SEED = 100
GRID = (3e-5, 1e-4, 3e-4, 1e-3)
RATES = (0.03, 0.1, 0.3)


class Task(NamedTuple):
    """The same for every arm of a task; the data set has its name."""

    model: Row
    linear: Row
    """A network in which inputs do not interact."""
    search: Row
    finetune: Row
    linear_lr: float
    checks: tuple[str, ...] = ()
    l2: Mapping[float, float] = MappingProxyType({})
    """The λ of Gem-Miner with `l2`, by density; none where nothing is pruned."""


TASKS = {
    "table": Task(
        {"name": "mlp"},
        {"name": "mlp", "depth": 0},
        {"epochs": 20, "batch_size": 64},
        {"epochs": 20, "batch_size": 64, "lr": 0.3},
        0.1,
        CHECKS,
        {0.1: 3e-4, 0.02: 3e-4},
    ),
    "sequences": Task(
        {"name": "transformer"},
        {"name": "transformer", "blocks": 0},
        {"epochs": 10, "batch_size": 64},
        {"epochs": 10, "batch_size": 64, "lr": 0.1},
        0.3,
        CHECKS[:2],
        {0.1: 3e-5},
    ),
    "digit_rows": Task(
        {"name": "conv1d"},
        {"name": "mlp", "depth": 0},
        {},
        {"epochs": 20, "batch_size": 64, "lr": 0.03},
        0.3,
    ),
}
ARMS = {
    "gem_miner, l2": "gem_miner",
    "gem_miner, auto": "gem_miner",
    "snip": "snip",
    "dense": "dense",
    "linear": "dense",
}
"""The arms and their pruners."""
BASELINES = ("dense", "linear")
CLASSES = {"table": 5, "sequences": 4, "digit_rows": 10}
PAIRS = (
    ("gem_miner, auto", "gem_miner, l2"),
    ("gem_miner, l2", "snip"),
    ("gem_miner, auto", "snip"),
)


# --- what is run ---------------------------------------------------------------------------------


def runs() -> Iterator[Row]:
    """Yield the runs of the tables, all arms of a task with one seed before the next seed."""
    for task, seed in product(TASKS, SEEDS):
        for arm, pruner in ARMS.items():
            for density in (1.0,) if pruner == "dense" else TASKS[task].l2:
                yield _run("tables", task, arm, density, seed)


def tuning() -> Iterator[Row]:
    """Yield the runs that settings are chosen from: rates on the dense network, then each λ."""
    for task, arm, rate in product(TASKS, ("dense", "linear"), RATES):
        yield _run("tuning", task, arm, 1.0, TUNING_SEED, lr=rate)
    for task, own in TASKS.items():
        for density, weight in product(DENSITIES if own.l2 else (), GRID):
            yield _run("tuning", task, "gem_miner, l2", density, TUNING_SEED, l2=weight)


def _run(use: str, task: str, arm: str, density: float, seed: int, **changes: float) -> Row:
    run = {"use": use, "task": task, "arm": arm, "density": density, "seed": seed}
    return run | {"changes": changes}


def context_of(run: Row) -> CheckContext:
    """Prepare the search of a run."""
    registry, task = load_plugins(only=[]), TASKS[run["task"]]
    dataset, network = (
        registry.build("datasets", run["task"]),
        registry.build("models", task.linear if run["arm"] == "linear" else task.model),
    )
    assert isinstance(dataset, DatasetPart)
    assert isinstance(network, ModelPart)
    data = dataset.load(None)
    assert data.classes is not None
    parts: dict[str, Any] = {}
    if run["arm"] == "gem_miner, auto":
        parts["regularizer"] = "auto"
    if run["arm"] == "gem_miner, l2":
        weight = run["changes"].get("l2") or task.l2[run["density"]]
        parts["regularizer"] = {"name": "l2", "weight": weight}
    recipe = registry.recipe(ARMS[run["arm"]], parts=parts)
    usual = task.linear_lr if run["arm"] == "linear" else task.finetune["lr"]
    rate = {"lr": run["changes"].get("lr", usual)}
    return CheckContext(
        recipe=recipe,
        density=run["density"],
        plan=search_plan(recipe, Plan(**task.search), data),
        data=data,
        build=partial(network.build, data.shape, data.classes),
        registry=registry,
        seed=run["seed"],
        runtime=Runtime(device="cpu"),
        on_collapse="warn",
        finetune_plan=finetune_plan(Plan(**task.finetune | rate)),
    )


def measure(run: Row) -> Row:
    """Search, measure, fine-tune, measure again; then do the same with every control."""
    began, context = time.process_time(), context_of(run)
    about = run | {"host": host(), "finetune_plan": context.finetune_plan.model_dump(mode="json")}
    try:
        ticket = context.search()
    except CollapseError as error:
        return about | {"collapse": str(error)}
    tuned = run["use"] == "tuning"
    controls: Row = {}
    if ARMS[run["arm"]] != "dense" and not tuned:
        for name, check in make_checks(context.registry, TASKS[run["task"]].checks).items():
            try:
                controls[name] = _accuracies(fair_control(check, ticket, context), context)
            except GemkitError as error:
                controls[name] = {"unmade": str(error)}
    assert ticket.info.plan is not None
    return about | {
        **_accuracies(ticket, context, "validation" if tuned else "test"),
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "empty_layers": sum(layer.kept == 0 for layer in ticket.layers),
        "controls": controls,
        "recipe": ticket.info.recipe,
        "plan": ticket.info.plan.model_dump(mode="json"),
        "cpu_seconds": round(time.process_time() - began, 1),
        "versions": ticket.info.versions,
    }


def _accuracies(ticket: Ticket, context: CheckContext, split: Any = "test") -> Row:  # noqa: ANN401
    trained = context.finetune(ticket)
    return {
        "split": split,
        "before": context.evaluate(ticket, split),
        "after": context.evaluate(trained, split),
    }


# --- the tables ----------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> str:
    """Draw accuracies, verdicts and differences of all tasks as Markdown."""
    head = [
        "| task | pruner | density: target, actual | seeds | ticket | shuffle | reinit | invert |"
    ]
    head.append("|---|---|---|---|---|---|---|---|")
    judged = [
        "| task | pruner | density | shuffle | reinit | invert |",
        "|---|---|---|---|---|---|",
    ]
    paired = [
        f"| task | difference | {' | '.join(f'density {density:g}' for density in DENSITIES)} |",
        f"|---|---|{'---|' * len(DENSITIES)}",
    ]
    for task, kind in TASKS.items():
        own = [row for row in rows if row["task"] == task]
        arms = [arm for arm in ARMS if arm != "linear" and kind.l2]
        for arm, density in product(arms, (1.0, *kind.l2)):
            if found := _of(own, arm, density):
                head.append(_accuracy_line(task, arm, density, found))
                judged += [_verdict_line(task, arm, density, found)] if density < 1 else []
        lines = [_difference_line(task, *pair, own) for pair in PAIRS if kind.l2]
        paired += [line for line in lines if line]
    return "\n".join([*head, "", *judged, "", *paired])


def data_table(rows: Sequence[Row]) -> str:
    """Compare the dense network with one in which inputs do not interact, on validation data."""
    lines = ["| data | network | dense | no interaction | by chance |", "|---|---|---|---|---|"]
    for task, own in TASKS.items():
        tried = [_of([row for row in rows if row["task"] == task], arm, 1.0) for arm in BASELINES]
        if all(tried):
            best = " | ".join(f"{100 * max(row['after'] for row in one):.1f}" for one in tried)
            chance = f"{100 / CLASSES[task]:.1f}"
            lines.append(f"| {task} | `{own.model['name']}` | {best} | {chance} |")
    return "\n".join(lines)


def _of(rows: Sequence[Row], arm: str, density: float) -> list[Row]:
    return [row for row in rows if (row["arm"], row["density"]) == (arm, density)]


def _title(arm: str) -> str:
    pruner, _, penalty = arm.partition(", ")
    return f"`{pruner}`" + (f", `{penalty}`" if penalty else "")


def _accuracy_line(task: str, arm: str, density: float, rows: list[Row]) -> str:
    alive = [row for row in rows if "after" in row]
    kept = sum(row["kept"] for row in alive) / max(1, sum(row["prunable"] for row in alive))
    cells = [_pair(alive)]
    cells += [_pair([row["controls"].get(name, {}) for row in alive]) for name in CHECKS]
    lost = f" ({len(rows) - len(alive)} collapsed)" if len(alive) < len(rows) else ""
    return (
        f"| `{task}` | {_title(arm)} | {density:g}, {kept:.4f} | {len(rows)} | {cells[0]}{lost} | "
        f"{' | '.join(cells[1:])} |"
    )


def _pair(rows: Sequence[Row]) -> str:
    """Write `before → after` in percent with 95 % intervals."""
    made = [row for row in rows if "after" in row]
    if not made:
        return ""
    return " → ".join(interval([row[key] for row in made]) for key in ("before", "after"))


def _verdict_line(task: str, arm: str, density: float, rows: list[Row]) -> str:
    cells = []
    for name in CHECKS:
        drops = [
            row["after"] - row["controls"][name]["after"]
            for row in rows
            if "after" in row.get("controls", {}).get(name, {})
        ]
        cells.append(_verdict(name, drops))
    return f"| `{task}` | {_title(arm)} | {density:g} | {' | '.join(cells)} |"


def _verdict(name: str, drops: Sequence[float]) -> str:
    if not drops:
        return ""
    found = judge(name, drops)
    outcome = found.outcome if len(drops) == len(SEEDS) else f"{len(drops)} of {len(SEEDS)} seeds"
    return f"{interval(drops, sign='+')}, {outcome}"


def _difference_line(task: str, one: str, other: str, rows: Sequence[Row]) -> str:
    """Write the differences of two arms at every density, or nothing if there are none."""
    cells = []
    for density in DENSITIES:
        after = [
            {row["seed"]: row["after"] for row in _of(rows, arm, density) if "after" in row}
            for arm in (one, other)
        ]
        both = sorted(after[0].keys() & after[1].keys())
        drops = [after[0][seed] - after[1][seed] for seed in both]
        cells.append(interval(drops, sign="+") if drops else "")
    title = f"{_title(one)} − {_title(other)}"
    return f"| `{task}` | {title} | {' | '.join(cells)} |" if any(cells) else ""


def results(use: str = "tables") -> list[Row]:
    """Return the rows of the tables, or those of tuning."""
    return [row for row in LEDGER.rows() if row["use"] == use]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tune", action="store_true", help="run what settings are chosen from")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    arguments = parser.parse_args()
    LEDGER.complete(tuning() if arguments.tune else runs(), measure, arguments.jobs)
    for row in results("tuning") if arguments.tune else []:
        found = {key: row.get(key) for key in ("before", "after", "kept", "prunable")}
        print({key: row[key] for key in LEDGER.keys} | found)
    write_results(PAGE, "tasks", tables(results()))
    write_results(DATA_PAGE, "task-data", data_table(results("tuning")))
    print(f"wrote {PAGE} and {DATA_PAGE}")


if __name__ == "__main__":
    main()
