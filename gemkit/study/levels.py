"""Levels that searches of several densities share.

Iterative pruning to density 0.2 passes 0.8, 0.64, … 0.21 on its way, and so does a search to 0.05
with the same configuration. The denser one saves its state after its last freeze but one, and the
other continues from there (`gemkit.study.handover`). Both end with the bits that they have alone.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from gemkit.builtin.schedules import Iterative
from gemkit.parts.scores import LearnedScores
from gemkit.pruning.search import plan_without_rates
from gemkit.runs.resolved import ResolvedRun

if TYPE_CHECKING:
    from gemkit.study.cell import Stage


def shared_levels(run: ResolvedRun) -> tuple[float, ...]:
    """Return the densities of all freezes but the last, if these do not depend on the target.

    Learned scores, growth and objectives other than cross-entropy may depend on the target, or on
    the length of the search. Runs on several devices share none.
    """
    recipe = run.recipe
    ordinary = recipe.objective is None and recipe.grow is None and not run.task.to_data()
    ordinary = ordinary and run.runtime.devices == 1
    if not isinstance(recipe.schedule, Iterative) or isinstance(recipe.scores, LearnedScores):
        return ()
    if not ordinary or recipe.density is not None:
        return ()
    epochs = plan_without_rates(recipe, run.search).epochs
    return tuple(freeze.density for freeze in recipe.schedule.freezes(run.density, epochs, 1)[:-1])


def linked(stages: Iterable["Stage"]) -> dict[str, "Stage"]:
    """Let every search come after the one that differs in a higher target alone, if it can."""
    families: dict[str, list[Stage]] = defaultdict(list)
    found = {stage.name: stage for stage in stages}
    for stage in found.values():
        if stage.levels:
            families[stage.family].append(stage)
    for family in families.values():
        family.sort(key=lambda stage: len(stage.levels))
        for former, stage in pairwise(family):
            task = {**stage.task, "after": former.name}
            found[stage.name] = replace(stage, after=former.name, task=task)
    return found
