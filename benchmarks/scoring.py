"""What measuring a score costs, as a multiple of one training step, and ProsPr's memory.

    python -m benchmarks.scoring [resnet20] [--turns 5] [--threads 2]

A plain step that keeps its memory is the measure. One scoring is one round, with the data the
method asks for (GraSP's has ten images of every class). Peak memory is what a process holds at
most that scores with ProsPr, less what it held before.
"""

from functools import partial

from torch import Tensor

from benchmarks.apart import Lap, alone, race_apart
from benchmarks.measure import Effort, Measure, command, lines, raced, ratio
from benchmarks.memory import held, highest_during
from benchmarks.networks import CLASSES, SETTINGS
from benchmarks.step import KEEPING, step_of
from gemkit import importance, load_plugins
from gemkit.cli.allocator import keep_memory
from gemkit.core.text import number_of
from gemkit.parts.scores import Scores
from gemkit.study.store import Row

METHODS = ("magnitude", "snip", "grasp", "synflow", "prospr")
PROSPR_STEPS = (1, 3, 10)


def batches_for(scores: str, network: str) -> list[tuple[Tensor, Tensor]]:
    """Make as many batches as the method asks the engine for."""
    part = load_plugins(only=[]).build("scores", scores)
    assert isinstance(part, Scores)
    wanted, setting = part.batches_wanted(), SETTINGS[network]
    size = setting.batch
    if wanted.per_class is not None:
        size = CLASSES * wanted.per_class // wanted.batches
    return [setting.images(size) for _ in range(max(1, wanted.batches))]


def scoring_of(scores: str, network: str) -> Lap:
    """Get ready to score once."""
    keep_memory()
    return partial(importance, scores, SETTINGS[network].build(), batches_for(scores, network))


def peak_of(steps: int, network: str) -> float:
    """Score with ProsPr, and return what that took at most, in megabytes."""
    setting = SETTINGS[network]
    model, batches = setting.build(), [setting.images() for _ in range(steps + 1)]
    score = partial(importance, "prospr", model, steps=steps)
    score(batches=[setting.images(2)] * (steps + 1))  # so that libraries are ready
    before = held("VmRSS")
    return (highest_during(lambda: score(batches=batches)) - before) / 2**20


def measure(network: str, effort: Effort) -> Row:
    """Race all scores, and weigh ProsPr."""
    makers = {KEEPING: partial(step_of, KEEPING, network)}
    makers |= {scores: partial(scoring_of, scores, network) for scores in METHODS}
    peaks = {
        str(steps): alone(partial(peak_of, steps, network), effort.threads)
        for steps in PROSPR_STEPS
    }
    registry = load_plugins(only=[])
    rounds = {name: getattr(registry.recipe(name).schedule, "rounds", 1) for name in METHODS}
    raced_ = raced(race_apart(makers, *effort), KEEPING)
    return {**raced_, "rounds": rounds, "prospr_megabytes": peaks}


def table(rows: list[Row]) -> str:
    """Draw a row for every score, and one for memory."""
    cells = [
        [f"`{name}`", row["subject"], ratio(row["ratios"][name]), str(row["rounds"][name])]
        for row in rows
        for name in METHODS
    ]
    text = lines(["score", "network", "training steps that a round costs", "rounds"], cells)
    for row in rows:
        one, *_ = row["prospr_megabytes"].values()
        told = [
            f"{peak:.0f} MB for {number_of(int(steps), 'inner step')} ({peak / one:.2f} ×)"
            for steps, peak in row["prospr_megabytes"].items()
        ]
        text += f"\n\nProsPr's memory on {row['subject']}: {', '.join(told)}."
    return text


MEASURE = Measure("scoring", ("resnet20",), measure, table, turns=5)

if __name__ == "__main__":
    command(MEASURE, __doc__)
