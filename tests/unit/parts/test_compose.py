"""Every pair of parts either fits and runs, or is refused with a sentence."""

import os
from itertools import combinations

import pytest
from tiny import CPU, REQUIRED, tiny_data, tiny_net

from gemkit import Plan, load_plugins, search
from gemkit.core.errors import CollapseError, FitError
from gemkit.parts.fit import check_fit, misfits
from gemkit.parts.recipe import ROLES
from gemkit.parts.schedule import FreezeSchedule
from gemkit.plugins.registry import KIND_OF_ROLE

REGISTRY = load_plugins()
BASES = ["gem_miner", "edge_popup", "magnitude", "imp_long_cold"]
PLAN = Plan(epochs=3, batch_size=16, lr=0.1)
STEPS = 2
"""Steps of an epoch of `tiny_data`."""


def required(parts):
    """List the fields that parts cannot do without."""
    return {
        f"{role}.{field}": value
        for role, part in parts.items()
        for field, value in REQUIRED.get(part, {}).items()
    }


def candidates(role):
    """Name the parts for a role; of those for growth, which are all scores, one of every sort."""
    parts = REGISTRY.parts[KIND_OF_ROLE[role]]
    return ["random", "gradient", "popup"] if role == "grow" else parts


def every_pair():
    """Put every pair of parts into every base, each resulting recipe once."""
    seen = {}
    for base in BASES:
        for one, other in combinations(ROLES, 2):
            for part in candidates(one):
                for partner in candidates(other):
                    parts = {one: part, other: partner}
                    recipe = REGISTRY.recipe(base, parts=parts, options=required(parts))
                    names = [chosen.name for chosen in recipe.parts().values()]
                    key = (*names, *(["rewound"] if recipe.rewind.happens else []))
                    seen.setdefault(key, recipe)
    return seen


PAIRS = every_pair()


def fits(recipe):
    return not list(misfits(recipe, epochs=PLAN.epochs, density=0.5, steps_per_epoch=STEPS))


def test_there_are_pairs_of_both_sorts():
    verdicts = [fits(recipe) for recipe in PAIRS.values()]
    assert verdicts.count(True) > 100
    assert verdicts.count(False) > 100


@pytest.mark.parametrize("init", sorted(REGISTRY.parts["initializers"]))
def test_every_accepted_pair_runs(init):
    """Split by initializer only to spread the work; GEMKIT_LONG=1 tries all, not every sixth."""
    data, model = tiny_data(), tiny_net()
    plan = PLAN.model_copy(update={"allow_ties": True})  # constant weights have one magnitude
    for key, recipe in list(PAIRS.items())[:: 1 if os.environ.get("GEMKIT_LONG") else 6]:
        idle = recipe.grow is not None and recipe.schedule.name != "regrow"  # nothing would grow
        if recipe.init.name == init and fits(recipe) and not idle:
            refused, ticket = tried(recipe, model, data, plan)
            if ticket is None:
                assert refused in EXPECTED, key
            else:
                assert 0 < ticket.density <= 0.51, key


EXPECTED = {
    ("rows", "cannot compete across layers"),
    ("nm", "the network has 2 prunable"),
    ("filters", "the network has 3 prunable"),  # without the outputs
    ("constant sigmoid", "no weight of the network is kept"),  # equal scores, pruned by position
}
"""What only a search finds out: a word for the recipe, and words of the error."""


def tried(recipe, model, data, plan):
    """Search; return which expected error it was, or the ticket."""
    try:
        how = {"density": 0.5, "plan": plan, "runtime": CPU, "on_collapse": "warn"}
        own = recipe.objective
        if own is not None and own.targets != "classes":
            data, how["objective"] = tiny_data(targets=own.targets), own
        return None, search(recipe, model, data, **how)
    except (FitError, CollapseError) as error:
        words = {recipe.structure.name, f"{recipe.scores.name} {recipe.rounding.name}"}
        found = (one for one in EXPECTED if one[0] in words and one[1] in str(error))
        return next(found, str(error)), None


def test_every_rejected_pair_is_rejected_with_sentences_that_name_a_part():
    for key, recipe in PAIRS.items():
        if not fits(recipe):
            with pytest.raises(FitError) as caught:
                check_fit(recipe, epochs=PLAN.epochs, density=0.5, steps_per_epoch=STEPS)
            sentences = str(caught.value).splitlines()[1:]
            assert sentences
            assert all(any(f"'{name}'" in line for name in key) for line in sentences), sentences


def test_all_misfits_are_told_at_once():
    recipe = REGISTRY.recipe(
        "gem_miner", parts={"scores": "magnitude"}, options={"schedule.every": 9}
    )
    with pytest.raises(FitError) as caught:
        check_fit(recipe, epochs=3, density=2.0)
    message = str(caught.value)
    assert message.startswith("pruner 'gem_miner': these parts do not fit together")
    for words in ("density 2.0", "must be 'open'", "regularizer 'l2'", "schedule.every is 9"):
        assert words in message


@pytest.mark.parametrize(
    ("base", "parts", "options", "epochs", "words"),
    [
        ("gem_miner", {"scores": "popup"}, {}, 3, "needs scores between 0 and 1"),
        ("gem_miner", {"schedule": "once"}, {}, 0, "at least one epoch"),
        ("edge_popup", {}, {"finalize": "alive"}, 3, "never freezes a weight"),
        ("magnitude", {"rounding": "topk"}, {}, 0, "rounding must be 'open'"),
        ("magnitude", {"schedule": "linear"}, {}, 0, "schedule.rounds"),
        ("magnitude", {"schedule": "iterative"}, {}, 3, "set rewind.clock"),
        ("gem_miner", {}, {"rewind.clock": 0}, 3, "leave rewind out"),
        ("imp_long_cold", {}, {}, 0, "at least one epoch"),
        ("imp_long_cold", {}, {"rewind.clock": 3}, 3, "leaves nothing to train"),
        ("imp_long_cold", {}, {"rewind.weights": 3.5}, 3, "rewind.weights = 3.5 epochs is later"),
        ("imp_short_warm", {}, {"rewind.clock": 5.5}, 30, "after 5 epochs"),
        ("magnitude", {}, {"rewind.clock": 1}, 0, "leaves nothing to train"),
        ("rigl", {}, {"rewind.weights": 0}, 3, "nothing to rewind to"),
        ("rigl", {"grow": "popup"}, {}, 3, "grow 'popup' is learned"),
        ("rigl", {"structure": "nm"}, {}, 3, "fixes how many weights every block keeps"),
        ("magnitude", {"schedule": "regrow"}, {"schedule.every": 1}, 3, "set grow"),
        ("gem_miner", {"grow": "random"}, {}, 3, "leave grow out"),
        ("gem_miner", {}, {"train": "weights"}, 3, "train must be 'scores' or 'both'"),
        ("magnitude", {}, {"train": "both"}, 0, "measured, not trained; leave train out"),
        ("lamp", {}, {"scores.of": "uniform"}, 3, "scores.of 'uniform' is learned"),
        ("magnitude", {"structure": {"name": "nm", "m": 5}}, {}, 0, "keeps 0.4 of the weights"),
    ],
)
def test_each_misfit_has_its_own_sentence(base, parts, options, epochs, words):
    recipe = REGISTRY.recipe(base, parts=parts, options=options)
    [sentence] = misfits(recipe, epochs=epochs, density=0.5)
    assert words in sentence


def test_a_schedule_that_never_freezes_is_told():
    class Idle(FreezeSchedule):
        """Freezes in another life."""

        name = "idle"

        @property
        def trains(self):
            return False

        def freezes(self, target, epochs, steps_per_epoch):
            return []

    recipe = REGISTRY.recipe("magnitude").model_copy(update={"schedule": Idle()})
    [sentence] = misfits(recipe, epochs=3, density=0.5)
    assert "schedule 'idle' never freezes in 3 epochs" in sentence


@pytest.mark.parametrize("options", [{"rewind.clock": 2.9}, {"rewind.weights": 3}])
def test_rewinding_to_the_last_possible_moment_runs(options):
    recipe = REGISTRY.recipe("imp_long_cold", options=options)
    ticket = search(recipe, tiny_net(), tiny_data(), density=0.5, plan=PLAN, runtime=CPU)
    assert ticket.kept == 171
