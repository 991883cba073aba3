"""Which parts fit together: all conditions are checked at once, before any work."""

from collections.abc import Iterator
from itertools import pairwise

from gemkit.core.errors import FitError
from gemkit.core.text import number_of
from gemkit.parts.part import Part
from gemkit.parts.recipe import Recipe
from gemkit.parts.schedule import Freeze
from gemkit.parts.scores import LearnedScores

_EARLIER = {
    "every": "choose another number of epochs or another schedule.every",
    "after": "choose a smaller schedule.after",
}
"""Field of a schedule -> how its last freeze comes earlier."""


def needs_training(recipe: Recipe) -> bool:
    """Whether the search trains scores, or weights between freezes."""
    return isinstance(recipe.scores, LearnedScores) or recipe.schedule.trains


def check_fit(recipe: Recipe, *, epochs: int, density: float, steps_per_epoch: int = 1) -> None:
    """Raise one `FitError` that lists every misfit of the recipe with itself and with the run."""
    if problems := list(misfits(recipe, epochs, density, steps_per_epoch)):
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise FitError(f"pruner '{recipe.pruner}': these parts do not fit together\n{lines}")


def misfits(recipe: Recipe, epochs: int, density: float, steps_per_epoch: int = 1) -> Iterator[str]:
    """Yield a sentence for every misfit."""
    if not 0 < density <= 1:
        yield f"density {density} is not a fraction of weights to keep: it must lie in (0, 1]"
        density = 1.0  # the rest can still be checked
    if isinstance(recipe.scores, LearnedScores):
        yield from _learned_misfits(recipe, recipe.scores, epochs)
    else:
        yield from _measured_misfits(recipe)
    if recipe.rounding.spends_budget and recipe.finalize == "alive":
        yield (
            f"rounding '{recipe.rounding.name}' never freezes a weight, so finalize 'alive' would "
            f"keep everything; use finalize 'rounded'"
        )
    if recipe.grow is not None:
        yield from _learned_within("grow", recipe.grow)
    objective = recipe.objective
    if objective is not None and objective.needs_dense and recipe.trained != "scores":
        yield (
            f"objective '{objective.name}' compares with the dense network, which must stay as it "
            "is; use it with learned scores, and weights that are not trained"
        )
    if problem := recipe.structure.misfit(density):
        yield problem
    yield from _schedule_misfits(recipe, epochs, density, steps_per_epoch)


def _learned_misfits(recipe: Recipe, scores: LearnedScores, epochs: int) -> Iterator[str]:
    """Yield what does not fit learned scores."""
    rounding, regularizer = recipe.rounding, recipe.regularizer
    if rounding.needs_unit_interval and not scores.unit_interval:
        yield (
            f"rounding '{rounding.name}' needs scores between 0 and 1, but '{scores.name}' "
            f"scores are unbounded; use rounding 'topk' or 'open'"
        )
    if regularizer.steers_density and (rounding.spends_budget or rounding.takes_measured):
        yield (
            f"regularizer '{regularizer.name}' brings the density of the mask to the target, but "
            f"rounding '{rounding.name}' leaves it no choice; use regularizer 'l2' or 'none', or "
            "rounding 'threshold'"
        )
    if epochs == 0:
        yield f"scores '{scores.name}' are learned, so the search needs at least one epoch"
    if recipe.train == "weights":
        yield f"scores '{scores.name}' are learned, so train must be 'scores' or 'both'"
    if recipe.grow is not None:
        yield (
            f"grow '{recipe.grow.name}' lets weights return that are trained under a mask, but "
            f"'{scores.name}' scores are learned; leave grow out"
        )


def _measured_misfits(recipe: Recipe) -> Iterator[str]:
    """Yield what does not fit measured scores."""
    scores, rounding, regularizer = recipe.scores, recipe.rounding, recipe.regularizer
    if not rounding.takes_measured:
        yield (
            f"scores '{scores.name}' are measured at a freeze, so rounding must be 'open', "
            f"not '{rounding.name}'"
        )
    if recipe.train in ("scores", "both"):
        yield (
            f"train = '{recipe.train}', but '{scores.name}' scores are measured, not trained; "
            "leave train out"
        )
    if regularizer.name != "none":
        yield (
            f"regularizer '{regularizer.name}' acts on learned scores, but '{scores.name}' scores "
            "are measured; use regularizer 'none'"
        )
    yield from _learned_within("scores", scores)


def _learned_within(role: str, part: Part) -> Iterator[str]:
    """Yield learned scores in a part whose scores must be measured."""
    if isinstance(part, LearnedScores):
        yield f"{role} '{part.name}' is learned, but scores are measured here; choose another"
    for field, inner in part.inner().items():
        yield from _learned_within(f"{role}.{field}", inner)


def _schedule_misfits(
    recipe: Recipe, epochs: int, density: float, steps_per_epoch: int
) -> Iterator[str]:
    """Yield why the freezes of the schedule do not fit the recipe or the length of the search."""
    schedule = recipe.schedule
    length = schedule.round_epochs or epochs
    try:
        by_epoch = schedule.freezes(density, length, 1)
        by_step = schedule.freezes(density, length, steps_per_epoch)
    except FitError as error:
        yield str(error)
        return
    if not by_epoch:
        yield (
            f"schedule '{schedule.name}' never freezes in {number_of(epochs, 'epoch')}, so nothing "
            "would be pruned; train longer, or use another schedule"
        )
        return
    yield from _rewind_misfits(recipe, by_epoch[0].step)
    yield from _growth_misfits(recipe, by_step, density)


def unsettled(recipe: Recipe, freezes: list[Freeze], end: int) -> str | None:
    """Return a note if the last freeze falls on the end of the search, and scores are learned."""
    learns = isinstance(recipe.scores, LearnedScores) and not recipe.rounding.soft
    if not learns or not freezes or freezes[-1].step < end:
        return None
    ways = (way for field, way in _EARLIER.items() if field in type(recipe.schedule).model_fields)
    way_out = next(ways, "choose another schedule, or train longer")
    return f"the last freeze falls on the end of the search, so no score can adapt to it; {way_out}"


def regrows(freezes: list[Freeze]) -> bool:
    """Whether weights return at one of the freezes."""
    rises = any(later.density > earlier.density for earlier, later in pairwise(freezes))
    return rises or any(freeze.regrow for freeze in freezes)


def _growth_misfits(recipe: Recipe, freezes: list[Freeze], density: float) -> Iterator[str]:
    """Yield why weights cannot return as the schedule requires."""
    if recipe.grow is None:
        if regrows(freezes):
            yield (
                f"schedule '{recipe.schedule.name}' lets pruned weights return, so the recipe must "
                "say which; set grow, for example to 'gradient' or 'random'"
            )
        return
    if recipe.rewind.happens:
        yield (
            f"grow '{recipe.grow.name}' lets weights return that have nothing to rewind to; leave "
            "grow or rewind out"
        )
    if recipe.structure.units_of(density, 1) is not None:
        yield (
            f"structure '{recipe.structure.name}' fixes how many weights every block keeps, so "
            f"none is dropped for grow '{recipe.grow.name}' to replace; leave one of them out"
        )


def _rewind_misfits(recipe: Recipe, first: int) -> Iterator[str]:
    """Yield why a search that first freezes after this epoch cannot rewind."""
    scores, schedule, rewind = recipe.scores, recipe.schedule, recipe.rewind
    if rewind.happens and isinstance(scores, LearnedScores):
        yield (
            f"rewind is for weights that train under a mask, but '{scores.name}' scores are "
            "learned; leave rewind out"
        )
    if schedule.needs_clock_rewound and rewind.clock is None:
        yield (
            f"schedule '{schedule.name}' trains another round after every freeze, which begins "
            f"where the clock is set back to; set rewind.clock, or use another schedule"
        )
    if rewind.weights is not None and rewind.weights > first:
        yield (
            f"rewind.weights = {number_of(rewind.weights, 'epoch')} is later than the first freeze "
            f"of schedule '{schedule.name}', after {number_of(first, 'epoch')}; go back further, "
            "or train longer"
        )
    if rewind.clock is not None and rewind.clock > 0 and rewind.clock >= first:
        yield (
            f"rewind.clock = {number_of(rewind.clock, 'epoch')} leaves nothing to train before the "
            f"freeze of schedule '{schedule.name}' after {number_of(first, 'epoch')}; go back "
            "further, or train longer"
        )
