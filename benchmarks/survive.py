"""What a run survives: kills, damaged files, failed writes, and a long life.

    python -m benchmarks.survive kills --kills 300
    python -m benchmarks.survive kills --kills 17 --only "two processes"
    python -m benchmarks.survive files --cases 10000
    python -m benchmarks.survive writes
    python -m benchmarks.survive long --epochs 600

`kills` ends processes of seventeen pruners, runs on two processes, and the driver of a study at
random moments. `files` gives damaged files to every reader. `writes` fails every write of a run
once: disk full, no permission, folder deleted. `long` looks at memory and open files. Each prints
counts as JSON, and the exit code is 1 if anything was lost.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import studies
from benchmarks.faults import CASES, faults
from benchmarks.killing import MORE, PRUNERS, killed

ROOT = Path(__file__).parents[1]
TESTS = ("tests/end_to_end/test_fuzz.py", "tests/end_to_end/test_fuzz_inputs.py")
TOGETHER = ("--epochs", "4", "--devices", "2", "-o", "schedule.every=2")
Found = dict[str, Any]


def kills(place: Path, arguments: argparse.Namespace) -> Found:
    """Kill runs of all pruners, one on two processes, and a study."""
    cases = {name: (name, own) for name, own in (PRUNERS | MORE).items()}
    cases["gem_miner on two processes"] = ("gem_miner", TOGETHER)
    cases = {name: own for name, own in cases.items() if arguments.only in name}
    if not cases:
        sys.exit(f"nothing that can be killed has '{arguments.only}' in its name")
    each = -(-arguments.kills // len(cases))
    found: Found = {"kills": 0, "runs": 0, "by pruner": {}, "losses": []}
    for number, (name, (pruner, own)) in enumerate(cases.items()):
        folder = place / str(number)
        folder.mkdir()
        done = killed(pruner, own, folder, each, arguments.seed + number)
        found["kills"] += done.kills
        found["runs"] += done.runs
        found["by pruner"][name] = done.kills
        found["losses"] += done.problems
        print(f"{name}: {done.kills} kills, {done.runs} runs", file=sys.stderr)
    if arguments.only:
        return found
    study = studies.kill(place, argparse.Namespace(kills=10, seed=arguments.seed))
    found["kills"] += len(study["kills (seconds, what, stages done)"])
    found["study"] = study
    if not study["equal to the bit"] or study["finished stages that ran again"]:
        found["losses"].append("the study ended with other results, or repeated a stage")
    return found


def files(place: Path, arguments: argparse.Namespace) -> Found:
    """Give damaged files to every reader, by the tests that do so with a few."""
    words = ["-m", "pytest", "-v", "-n", "auto", "-p", "no:cacheprovider", *TESTS]
    own = {"GEMKIT_FUZZ": str(arguments.cases), "HYPOTHESIS_STORAGE_DIRECTORY": str(place)}
    said = list[str]()
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:  # a line for every reader, while the others are tried
            said.append(line)
            print(line, end="", file=sys.stderr, flush=True)
    return {
        "files for each test of a reader": arguments.cases,
        "pytest": said[-1].strip(" =\n") if said else "",
        "losses": [] if tests.returncode == 0 else ["".join(said)[-5000:]],
    }


def writes(place: Path, arguments: argparse.Namespace) -> Found:
    """Fail every write of a run, once for every kind of fault."""
    found: Found = {"losses": []}
    for pruner in CASES:
        folder = place / pruner
        folder.mkdir()
        done = faults(folder, pruner, arguments.step)
        found[pruner] = {"writes": done.writes, "failed": done.failed, "ends": done.endings}
        found["losses"] += done.problems
    return found


def long(place: Path, arguments: argparse.Namespace) -> Found:
    """Search for many epochs, and look at memory and open files at the end of every epoch."""
    import gemkit
    from gemkit.core.events import EpochEnded

    pages, open_files = list[int](), list[int]()

    def look(event: object) -> None:
        if isinstance(event, EpochEnded):
            pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
            open_files.append(len(list(Path("/proc/self/fd").iterdir())))

    config = gemkit.RunConfig(
        pruner="gem_miner",
        model={"name": "conv4", "width": 4},
        dataset={"name": "fake", "samples": 80},
        density=0.3,
        search=gemkit.Plan(epochs=arguments.epochs, batch_size=16),
        finetune=gemkit.Plan(epochs=arguments.epochs, batch_size=16),
        runtime=gemkit.Runtime(device="cpu", threads=1),
        on_collapse="warn",
    )
    gemkit.run(config, place / "run", observers=[look], progress=gemkit.Progress())
    megabytes = [one * os.sysconf("SC_PAGE_SIZE") / 2**20 for one in pages]
    early, late = megabytes[len(pages) // 4], megabytes[-1]
    grows = late - early > 0.02 * early
    leaks = len(set(open_files[2:])) > 1 and open_files[-1] > open_files[len(pages) // 4]
    return {
        "epochs": len(pages),
        "megabytes after a quarter and at the end": [round(early, 1), round(late, 1)],
        "open files, fewest and most": [min(open_files), max(open_files)],
        "losses": ["memory grows"] * grows + ["files stay open"] * leaks,
    }


DONE = {"kills": kills, "files": files, "writes": writes, "long": long}


def main(words: Sequence[str] | None = None) -> None:
    """Try one of them, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=DONE)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--only", default="", help="kills: only what has this in its name")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--step", type=int, default=1, help="fail only every so many-th write")
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        found = DONE[arguments.what](Path(folder), arguments)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    sys.exit(bool(found["losses"]))


if __name__ == "__main__":
    main()
