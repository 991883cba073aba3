"""How the cost of a search grows: with parameters, with density, with rounds.

    python -m benchmarks.growth [parameters density rounds] [--turns 5] [--threads 2]

A plain step that keeps its memory is the measure. Parameters and density: a step, for ResNet-20s
of several widths, and for one of them at several densities. Rounds: a whole search with SynFlow.
"""

from functools import partial

from benchmarks.apart import Lap, race_apart
from benchmarks.measure import Effort, Measure, command, lines, raced, ratio
from benchmarks.networks import SETTINGS, WIDTHS
from benchmarks.step import KEEPING, step_of
from gemkit import Data, Plan, Runtime, load_plugins
from gemkit.pruning.search import search
from gemkit.study.store import Row

DENSITIES = (0.5, 0.2, 0.05, 0.01)
ROUNDS = (1, 10, 100)
SEARCHED = ("gem_miner", "edge_popup")
MIDDLE = f"resnet20 width {WIDTHS[-2]}"


def with_parameters(effort: Effort) -> list[Row]:
    """Race steps on networks of growing width."""
    points = []
    for width in WIDTHS:
        network = f"resnet20 width {width}"
        parameters = sum(one.numel() for one in SETTINGS[network].build().parameters())
        makers = {what: partial(step_of, what, network) for what in (KEEPING, *SEARCHED)}
        points.append({"x": parameters, **raced(race_apart(makers, *effort), KEEPING)})
    return points


def with_density(effort: Effort) -> list[Row]:
    """Race steps at several densities."""
    points = []
    for density in DENSITIES:
        makers = {what: partial(step_of, what, MIDDLE, density) for what in (KEEPING, *SEARCHED)}
        points.append({"x": density, **raced(race_apart(makers, *effort), KEEPING)})
    return points


def rounds_of(rounds: int) -> Lap:
    """Get ready to search with SynFlow in so many rounds."""
    setting = SETTINGS[MIDDLE]
    data = Data.of_tensors(train=setting.images(), test=setting.images())
    recipe = load_plugins(only=[]).recipe("synflow")
    recipe = recipe.model_copy(
        update={"schedule": recipe.schedule.model_copy(update={"rounds": rounds})}
    )
    how = {
        "density": 0.05,
        "plan": Plan(batch_size=setting.batch),
        "runtime": Runtime(device="cpu"),
        "on_collapse": "warn",  # which is why SynFlow takes more than one
    }
    return lambda: search(recipe, setting.build(), data, **how)


def with_rounds(effort: Effort) -> list[Row]:
    """Race searches of one to many rounds."""
    makers = {KEEPING: partial(step_of, KEEPING, MIDDLE)}
    makers |= {str(rounds): partial(rounds_of, rounds) for rounds in ROUNDS}
    times = race_apart(makers, *effort)
    return [
        {"x": rounds, **raced({KEEPING: times[KEEPING], "synflow": times[str(rounds)]}, KEEPING)}
        for rounds in ROUNDS
    ]


WAYS = {"parameters": with_parameters, "density": with_density, "rounds": with_rounds}


def measure(way: str, effort: Effort) -> Row:
    """Measure one way to grow."""
    return {"points": WAYS[way](effort)}


def table(rows: list[Row]) -> str:
    """Draw a row for every point."""
    cells = [
        [f"{row['subject']}", f"{point['x']:,}", f"`{name}`", ratio(point["ratios"][name])]
        for row in rows
        for point in row["points"]
        for name in point["ratios"]
        if name != KEEPING
    ]
    return lines(["grows", "to", "search", "plain steps"], cells)


MEASURE = Measure("growth", tuple(WAYS), measure, table, turns=5)

if __name__ == "__main__":
    command(MEASURE, __doc__)
