"""Compare what every pruner finds with what it found when it was recorded.

    python -m benchmarks.regression [CASE ...]     # compare
    python -m benchmarks.regression --write        # record, after an intended change

Every registered pruner, and variants that cover every part and optimizer, search and fine-tune a
small network. The masks, the weights, the learned scores and the fine-tuned tickets are compared
with tests/golden/regression.safetensors, layer by layer. Every run is repeated with interruptions
and must end with the same bits.

Masks must be equal everywhere. Other numbers must be equal to the bit where torch, the processor
and the number of threads are those of the record, and up to `TOLERANCE` anywhere else.
"""

import argparse
import hashlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from safetensors import safe_open
from safetensors.numpy import save_file

from benchmarks.regression_cases import PLAN, Case, cases, network
from gemkit import Plan, Runtime, Tensors, Ticket, finetune, search
from gemkit.core.errors import Stopped
from gemkit.core.state import Stateful
from gemkit.runs.machine import host
from gemkit.training.checkpointer import Checkpointer, DiskCheckpointer

RECORD = Path(__file__).parent.parent / "tests" / "golden" / "regression.safetensors"
RENEW = "python -m benchmarks.regression --write"
RUNTIME = Runtime(device="cpu", precision="64")
TUNING_EPOCHS = 2
TOLERANCE = 1e-10
"""How far numbers may differ on another machine, as a fraction of a layer's largest entry."""
MASKS = ("mask", "tuned mask")
STAGES = ("mask", "weights", "rest", "scores", "tuned mask", "tuned state")
"""`weights` are the prunable ones, `rest` is the rest of the ticket's state."""

Outcome = dict[str, Tensors]
"""The tensors of every stage of a case, by name."""
Arrays = Mapping[str, np.ndarray]
"""The same as recorded: one array for a stage, masks packed into bits."""
Run = Callable[[Checkpointer], Ticket]
"""A search or a fine-tuning, to be carried out with this checkpointer."""


# --- runs ----------------------------------------------------------------------------------------


class Watching(Checkpointer):
    """Pass everything to another checkpointer, and hold on to the network that is searched."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer
        self.net: Stateful | None = None

    def begin(self, phase: str, fabric: Fabric, parts: Mapping[str, Stateful]) -> None:
        """Note the network."""
        self.net = parts["net"]
        self.checkpointer.begin(phase, fabric, parts)

    def maybe_save(self, *, epoch_ended: bool = False) -> None:
        """Save if the other checkpointer does."""
        self.checkpointer.maybe_save(epoch_ended=epoch_ended)

    def scores(self) -> Tensors:
        """Return the learned scores, which a ticket does not hold; none if scores are measured."""
        assert self.net is not None, "the search has begun"
        return {
            name: score.clone() for name, score in self.net.state_dict().get("scores", {}).items()
        }


@cache
def processor() -> Fabric:
    """Open the CPU once; opening it for every run takes a quarter of the time."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


def straight(run: Run, phase: str) -> Ticket:
    """Run without interruption."""
    return run(Checkpointer())


def interrupted(folder: Path, run: Run, phase: str) -> Ticket:
    """Stop a run after its first step or freeze, then every 13 steps, and resume it each time."""
    for last in chain([2], repeat(13)):
        asked = partial(_signal_at, last, count(1))
        try:
            return run(DiskCheckpointer(folder / phase, "regression", asked_to_stop=asked))
        except Stopped:
            continue
    raise AssertionError("not reached: the last run returns")


def _signal_at(last: int, asks: "count[int]") -> int | None:
    return signal.SIGTERM if next(asks) == last else None


def carry_out(case: Case, way: Callable[[Run, str], Ticket] = straight) -> Outcome:
    """Search and fine-tune, with or without interruptions."""
    plan = Plan.model_validate({**PLAN.model_dump(), **case.plan})
    where = {"data": case.data(), "plan": plan, "runtime": RUNTIME, "fabric": processor()}
    where["objective"] = case.task().objective
    watching = Watching(Checkpointer())

    def find(checkpointer: Checkpointer) -> Ticket:
        watching.checkpointer = checkpointer
        how = {**where, "density": case.density, "on_collapse": "warn", "checkpointer": watching}
        how["plan"] = case.search_plan(plan)
        return search(case.recipe(), network(), **how)

    def tune(checkpointer: Checkpointer) -> Ticket:
        return finetune(ticket, network(), epochs=TUNING_EPOCHS, checkpointer=checkpointer, **where)

    ticket = way(find, "search")
    tuned = way(tune, "finetune")
    weights = {name: ticket.state[name] for name in ticket.mask}
    rest = {name: tensor for name, tensor in ticket.state.items() if name not in weights}
    found = (ticket.mask, weights, rest, watching.scores(), tuned.mask, tuned.state)
    return dict(zip(STAGES, found, strict=True))


# --- records -------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What was found by case and stage, and the environment."""

    environment: Mapping[str, Any]
    cases: Mapping[str, Arrays]


def environment() -> dict[str, str | int]:
    """Describe what the last bits depend on."""
    return {
        "torch": torch.__version__,
        "cpu": f"{host()['cpu']} {_kernels()}".strip(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _kernels() -> str:
    """Hash what numerical libraries choose their kernels by, as far as Linux shows it."""
    file = Path("/proc/cpuinfo")
    first = file.read_text().partition("\n\n")[0].splitlines() if file.exists() else []
    keys = ("vendor_id", "cpu family", "model\t", "stepping", "cache size", "flags")
    lines = [line for line in first if line.startswith(keys)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8] if lines else ""


def joined(stage: str, tensors: Tensors) -> np.ndarray:
    """Put the tensors of a stage into one array."""
    kind = torch.bool if stage in MASKS else torch.float64
    parts = [tensor.reshape(-1).to(kind) for tensor in tensors.values()]
    return torch.cat([torch.empty(0, dtype=kind), *parts]).numpy()


def arrays_of(outcome: Outcome) -> Arrays:
    """Return an outcome as it is recorded."""
    arrays = {stage: joined(stage, tensors) for stage, tensors in outcome.items()}
    return arrays | {stage: np.packbits(arrays[stage]) for stage in MASKS}


def read(path: Path = RECORD) -> Record:
    """Read a record; without a file, or with other stages, a case counts as not recorded."""
    if not path.exists():
        return Record({}, {})
    with safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = {name: json.loads(text) for name, text in file.metadata().items()}
    found = {
        case: {stage: arrays[digest] for stage, digest in digests.items()}
        for case, digests in known["cases"].items()
        if set(digests) == set(STAGES)
    }
    return Record(known["environment"], found)


def write(outcomes: Mapping[str, Outcome], path: Path = RECORD) -> None:
    """Write a record. Arrays are named by their hash, so equal ones are stored once."""
    arrays: dict[str, np.ndarray] = {}
    digests: dict[str, dict[str, str]] = {}
    for case, outcome in outcomes.items():
        found = arrays_of(outcome)
        digests[case] = {stage: _digest(array) for stage, array in found.items()}
        arrays |= {digests[case][stage]: array for stage, array in found.items()}
    known = {"environment": environment(), "cases": digests}
    save_file(arrays, path, {name: json.dumps(value) for name, value in known.items()})


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.dtype.str.encode() + array.tobytes()).hexdigest()[:16]


# --- comparison ----------------------------------------------------------------------------------


class Change(NamedTuple):
    """Entries of a layer that are not equal to the bit."""

    stage: str
    layer: str
    entries: int
    size: int
    largest: float
    """The largest difference, as a fraction of the largest recorded entry."""

    def __str__(self) -> str:
        by = "" if self.stage in MASKS else f", by {self.largest:.1e} of the largest entry"
        return f"{self.stage} of {self.layer}: {self.entries} of {self.size} differ{by}"

    def matters(self, *, exact: bool) -> bool:
        """Whether this is more than other last bits on another machine."""
        return exact or self.stage in MASKS or not self.largest <= TOLERANCE


def compare(found: Outcome, known: Arrays) -> list[Change]:
    """List the layers in which an outcome differs from a recorded one."""
    return [change for stage in STAGES for change in _changes(stage, found[stage], known[stage])]


def _changes(stage: str, tensors: Tensors, known: np.ndarray) -> Iterator[Change]:
    new = joined(stage, tensors)
    old = np.unpackbits(known, count=len(new)).astype(bool) if stage in MASKS else known
    if len(new) != len(old):
        yield Change(stage, "another network", len(new), len(old), np.inf)
        return
    end = 0
    for layer, tensor in tensors.items():
        start, end = end, end + tensor.numel()
        mine, theirs = new[start:end], old[start:end]
        if entries := int((_bits(mine) != _bits(theirs)).sum()):
            apart = np.abs(mine.astype(float) - theirs).max()
            scale = max(np.abs(theirs).max(), np.finfo(float).tiny)
            yield Change(stage, layer, entries, len(mine), float(apart / scale))


def _bits(array: np.ndarray) -> np.ndarray:
    return array if array.dtype == bool else array.view(np.int64)


class Finding(NamedTuple):
    """The outcome of a case, and how it differs from the record and from a resumed run."""

    outcome: Outcome
    changes: list[Change] | None
    """None if the case is not recorded."""
    resumed: list[Change]
    exact: bool
    """Whether the environment is that of the record."""

    def faults(self) -> list[str]:
        """Return a sentence for every layer that is not what it should be."""
        if self.changes is None:
            faults = [f"not recorded; run `{RENEW}`"]
        else:
            faults = [str(change) for change in self.changes if change.matters(exact=self.exact)]
        return faults + [f"resumed: {change}" for change in self.resumed]

    def cells(self) -> list[str]:
        """Return a cell of the table for every stage, and one for the resumed run."""
        resumed = _cell(self.resumed)
        if self.changes is None:
            return [*("new" for _ in STAGES), resumed]
        by_stage = [[own for own in self.changes if own.stage == stage] for stage in STAGES]
        return [*map(_cell, by_stage), resumed]


def _cell(changes: list[Change]) -> str:
    if not changes:
        return "equal"
    largest = max(change.largest for change in changes)
    return f"{sum(change.entries for change in changes)}, by {largest:.0e}"


def examine(name: str, record: Record) -> Finding:
    """Run a case with and without interruptions, and compare."""
    case, known = cases()[name], record.cases.get(name)
    outcome = carry_out(case)
    with tempfile.TemporaryDirectory() as folder:
        resumed = carry_out(case, partial(interrupted, Path(folder)))
    return Finding(
        outcome,
        None if known is None else compare(outcome, known),
        compare(resumed, arrays_of(outcome)),
        record.environment == environment(),
    )


# --- the command ---------------------------------------------------------------------------------


def examine_all(names: list[str], record: Record) -> dict[str, Finding]:
    """Examine cases, and print how many entries differ and by how much."""
    print(f"recorded: {dict(record.environment)}\nhere:     {environment()}")
    row = "{:27} {:14} {:14} {:14} {:14} {:14} {:14} {}".format
    print(row("case", *STAGES, "resumed"))
    findings = {}
    for name in names:
        findings[name] = examine(name, record)
        print(row(name, *findings[name].cells()), flush=True)
    return findings


def main() -> None:
    """Compare, and record if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--write", action="store_true", help="record the outcome of all cases")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    args = parser.parse_args()
    if unknown := [name for name in args.cases if name not in cases()]:
        parser.error(f"unknown case '{unknown[0]}'; the cases are: {'; '.join(cases())}")
    if args.write and args.cases:
        parser.error("--write records all cases in one environment; leave out the names")
    torch.set_num_threads(args.threads)
    findings = examine_all(args.cases or list(cases()), read())
    faults = [f"{name}: {fault}" for name, own in findings.items() for fault in own.faults()]
    same = all(own.changes == [] for own in findings.values())
    print("\n".join(faults) or ("no change" if same else "last bits differ, nothing else"))
    if args.write and any(own.resumed for own in findings.values()):
        sys.exit("not recorded: a resumed run must end as an uninterrupted one")
    if args.write:
        write({name: own.outcome for name, own in findings.items()})
    elif faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
