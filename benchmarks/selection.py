"""Which scores are the largest: gemkit's exact selection beside torch's own ways.

    python -m benchmarks.selection [1M 15M 100M] [--turns 5] [--threads 2]

Scores are spread over layers of many sizes, and half a percent of them stay. `kthvalue` finds the
last to keep and no more; what is above it, and who wins among equals, is left open. `ties` are
scores of which many are equal. The contenders are handed scores in the same process.
"""

import torch
from torch import Tensor

from benchmarks.measure import Effort, Measure, command, lines, raced, ratio
from gemkit import select
from gemkit.compaction.timing import time_interleaved
from gemkit.study.store import Row

SIZES = {"1M": 10**6, "15M": 15 * 10**6, "100M": 10**8}
DENSITY = 0.005
SHARES = (0.4, 0.3, 0.15, 0.1, 0.04, 0.01)


def layers_of(size: int, *, ties: bool) -> dict[str, Tensor]:
    """Draw scores, in layers whose sizes differ as they do in networks."""
    drawn = {f"layer{place}": torch.rand(round(share * size)) for place, share in enumerate(SHARES)}
    return {name: (scores * 1000).round() for name, scores in drawn.items()} if ties else drawn


def measure(size: str, effort: Effort) -> Row:
    """Race on scores of one size."""
    torch.set_num_threads(effort.threads)
    torch.manual_seed(0)
    layers, tied = layers_of(SIZES[size], ties=False), layers_of(SIZES[size], ties=True)
    together = torch.cat(list(layers.values()))
    count = round(DENSITY * len(together))
    contenders = {
        "kthvalue": lambda: together.kthvalue(len(together) - count + 1),
        "gemkit": lambda: select(layers, DENSITY),
        "gemkit, ties": lambda: select(tied, DENSITY),
        "topk": lambda: together.topk(count, sorted=False),
    }
    if len(together) <= SIZES["15M"]:
        contenders["sort"] = lambda: together.sort()
    return {
        "scores": len(together),
        **raced(time_interleaved(contenders, effort.turns), "kthvalue"),
    }


def table(rows: list[Row]) -> str:
    """Draw a row for every size."""
    names = list(rows[0]["ratios"]) if rows else []
    cells = [
        [
            row["subject"],
            f"{row['milliseconds']['kthvalue'][1]:.0f}",
            *(ratio(row["ratios"][name]) if name in row["ratios"] else "–" for name in names[1:]),
        ]
        for row in rows
    ]
    return lines(["scores", "`kthvalue`, ms", *names[1:]], cells)


MEASURE = Measure("selection", tuple(SIZES), measure, table, turns=5)

if __name__ == "__main__":
    command(MEASURE, __doc__)
