"""Every measurement of speed: steps, epochs, scoring, selection, memory, start-up, growth.

    python -m benchmarks.speed [--only step epoch] [--turns N] [--threads 2]
    python -m benchmarks.speed --no-runs

Rows are appended to results/speed.jsonl, and what is there already is not measured again. The
tables and the figure of docs/speed.md are drawn from them. Leave the machine alone meanwhile.
"""

import argparse
import os
from pathlib import Path

from benchmarks import epoch, growth, memory, scoring, selection, startup, step
from benchmarks.drawing import draw
from benchmarks.measure import Effort, effort_options
from benchmarks.trial import RESULTS
from gemkit.report.pages import write_results
from gemkit.study.store import Ledger

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
FIGURES = PAGE.parent / "figures"
LEDGER = Ledger(RESULTS / "speed.jsonl", ("what", "subject"))
MEASURES = {
    one.MEASURE.what: one.MEASURE
    for one in (step, epoch, growth, scoring, selection, memory, startup)
}


def tables() -> dict[str, str]:
    """Draw the table of every kind of measurement, its rows in the order of the subjects."""
    found = {}
    for what, kind in MEASURES.items():
        planned = [{"what": what, "subject": subject} for subject in kind.subjects]
        found[what] = kind.table(LEDGER.of(planned))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--no-runs", action="store_true", help="only draw what is measured")
    effort_options(parser)
    given = parser.parse_args()
    planned = [
        {"what": what, "subject": subject}
        for what in given.only
        for subject in MEASURES[what].subjects
    ]
    for run in [] if given.no_runs else LEDGER.missing(planned):
        kind = MEASURES[run["what"]]
        print(f"{kind.what}: {run['subject']} (load {os.getloadavg()[0]:.1f})", flush=True)
        effort = Effort(given.turns or kind.turns, given.threads)
        LEDGER.append(kind.row(run["subject"], effort))
    for what, text in tables().items():
        write_results(PAGE, f"speed-{what}", text)
    draw(LEDGER.rows(), FIGURES)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
