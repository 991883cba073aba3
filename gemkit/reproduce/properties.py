"""What a method does, from its results: the columns of the paper's Table 1.

* It *prunes at initialization* if no weight is trained before the ticket is there.
* It is *fine-tunable* if fine-tuning improves its tickets, and they become at least as accurate as
  random tickets of the same density with tuned layer densities (Smart Ratio). The paper gives no
  definition. It calls Edge-Popup not fine-tunable, whose tickets gain little and stay below random
  ones, and does not ask the question where weights are trained already.
* It *passes the sanity checks* if the verdict on every one is that it does.
"""

from collections.abc import Sequence

from gemkit.parts.fit import needs_training
from gemkit.reproduce.results import Results
from gemkit.sanity.verdicts import MARGIN, Outcome, judge

REFERENCE = "smart_ratio"
"""The pruner of the random tickets."""


def prunes_at_init(one: Results) -> bool:
    """Whether the search trains no weight."""
    return not _trains_weights(one)


def _trains_weights(one: Results) -> bool:
    return needs_training(one.recipe) and one.recipe.trained != "scores"


def finetunable(one: Results, results: Sequence[Results]) -> bool | None:
    """Whether fine-tuning helps, up to random tickets at least.

    None where nothing is measured, or the ticket has trained weights.
    """
    if not one.rows or (_trains_weights(one) and one.recipe.rewind.weights is None):
        return None
    random = [
        other.mean("after")
        for other in results
        if other.recipe.pruner == REFERENCE
        and other.rows
        and other.preset.density == one.preset.density
    ]
    if not random:
        return None
    gain = one.mean("after") - one.mean("before")
    return gain > MARGIN and one.mean("after") > max(random) - MARGIN


def passes_checks(one: Results) -> Outcome | None:
    """Return the verdict on all checks together, or None if there are none.

    One that fails is enough to fail, and all must pass to pass.
    """
    if not one.line.checks or not one.rows:
        return None
    outcomes = [_outcome(one, check) for check in one.line.checks]
    if "fails" in outcomes:
        return "fails"
    return "passes" if set(outcomes) == {"passes"} else "undecided"


def _outcome(one: Results, check: str) -> Outcome:
    """Judge one check by the seeds for which both ticket and control are measured."""
    drops = [
        row["after"] - row["controls"][check]["after"]
        for row in one.rows
        if check in row["controls"]
    ]
    return judge(check, drops).outcome if drops else "undecided"
