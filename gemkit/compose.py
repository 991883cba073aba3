"""Which parts fit together: one list of conditions, all checked at once before any work."""

from collections.abc import Iterator

from gemkit.errors import FitError
from gemkit.parts import LearnedScores
from gemkit.recipe import Recipe
from gemkit.wording import number_of


def needs_training(recipe: Recipe) -> bool:
    """Whether the search trains anything: scores, or weights between freezes."""
    return isinstance(recipe.scores, LearnedScores) or recipe.schedule.trains


def check_fit(recipe: Recipe, *, epochs: int, density: float) -> None:
    """Raise one FitError that lists every misfit of the recipe with itself and with the run."""
    if problems := list(misfits(recipe, epochs=epochs, density=density)):
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise FitError(f"pruner '{recipe.pruner}': these parts do not fit together\n{lines}")


def misfits(recipe: Recipe, *, epochs: int, density: float) -> Iterator[str]:
    """Yield every misfit as a plain sentence."""
    scores, rounding = recipe.scores, recipe.rounding
    if not 0 < density <= 1:
        yield f"density {density} is not a fraction of weights to keep: it must lie in (0, 1]"
        density = 1.0  # whether the schedule suits the epochs can still be told
    if isinstance(scores, LearnedScores):
        if rounding.needs_unit_interval and not scores.unit_interval:
            yield (
                f"rounding '{rounding.name}' needs scores between 0 and 1, but '{scores.name}' "
                f"scores are unbounded; use rounding 'topk' or 'open'"
            )
        if epochs == 0:
            yield f"scores '{scores.name}' are learned, so the search needs at least one epoch"
    else:
        if not rounding.takes_measured:
            yield (
                f"scores '{scores.name}' are measured at a freeze, so rounding must be 'open', "
                f"not '{rounding.name}'"
            )
        if recipe.regularizer.name != "none":
            yield (
                f"regularizer '{recipe.regularizer.name}' acts on learned scores, but "
                f"'{scores.name}' scores are measured; use regularizer 'none'"
            )
    if rounding.spends_budget and recipe.finalize == "alive":
        yield (
            f"rounding '{rounding.name}' never freezes a weight, so finalize 'alive' would keep "
            f"everything; use finalize 'rounded'"
        )
    try:
        freezes = recipe.schedule.freezes(density, recipe.schedule.round_epochs or epochs, 1)
    except FitError as error:
        yield str(error)
    else:
        if freezes:
            yield from _rewind_misfits(recipe, freezes[0].step)
        else:
            yield (
                f"schedule '{recipe.schedule.name}' never freezes in {number_of(epochs, 'epoch')}, "
                "so nothing would be pruned; train longer, or use another schedule"
            )


def _rewind_misfits(recipe: Recipe, first: int) -> Iterator[str]:
    """Yield what keeps a search from rewinding as it should, if it first freezes at this epoch."""
    scores, schedule, rewind = recipe.scores, recipe.schedule, recipe.rewind
    if rewind.happens and isinstance(scores, LearnedScores):
        yield (
            f"rewind is for weights that are trained, but '{scores.name}' scores are learned while "
            f"weights stand still; leave rewind out"
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
