"""A layer of equally important weights is not cut by position unless ties are allowed."""

import pytest
import torch
from tiny import CPU, PLAN, tiny_data, tiny_net
from torch import nn

from gemkit import MeasuredScores, Plan, load_plugins, search, select
from gemkit.core.errors import ImportanceError
from gemkit.core.selection import refuse_ties
from gemkit.parts.schedule import Freeze
from gemkit.pruning.freeze import regrow
from gemkit.pruning.masked import MaskedNet

LIBRARY = load_plugins(only=[])


class Flat(MeasuredScores):
    """Magnitudes, except for one layer whose weights are all equal."""

    name = "flat"

    def importance(self, probe):
        sizes = {name: weight.abs() for name, weight in probe.weights.items()}
        return sizes | {"3.weight": torch.full_like(sizes["3.weight"], 0.05)}


def find(density=0.5, **settings):
    recipe = LIBRARY.recipe("magnitude", parts={"allocation": "uniform"})
    recipe = recipe.model_copy(update={"scores": Flat()})
    plan = PLAN.model_copy(update=settings)
    return search(recipe, tiny_net(), tiny_data(), density=density, plan=plan, runtime=CPU)


def test_a_cut_through_ties_is_refused_with_the_way_out():
    with pytest.raises(ImportanceError, match=r"'3\.weight'.*--allow-ties") as error:
        find()
    assert str(error.value).startswith("scores 'flat': ")


def test_allowed_ties_are_decided_by_position():
    mask = find(allow_ties=True).mask["3.weight"].flatten()
    half = len(mask) // 2
    assert mask[:half].all()
    assert not mask[half:].any()


def test_a_cut_that_does_not_split_the_ties_is_fine():
    assert find(density=1.0).density == 1.0


def tensors(*values):
    return {f"{place}": torch.tensor(value) for place, value in enumerate(values)}


def all_of(importance):
    return {name: torch.ones_like(value, dtype=torch.bool) for name, value in importance.items()}


def test_select_refuses_ties_unless_they_are_allowed():
    importance = tensors([1.0, 1.0, 1.0, 1.0], [2.0, 3.0])
    with pytest.raises(ImportanceError, match="'0'"):
        select(importance, 0.5)
    assert select(importance, 0.5, allow_ties=True)["0"].tolist() == [True, False, False, False]
    assert select(importance, 1 / 3)["1"].all()


def test_ties_among_other_values_are_ranked_by_position():
    assert select(tensors([1.0, 1.0, 1.0, 2.0]), 0.5)["0"].tolist() == [True, False, False, True]


def test_pruned_weights_do_not_hide_a_tie():
    importance = tensors([5.0, 1.0, 1.0])
    alive = {"0": torch.tensor([False, True, True])}
    with pytest.raises(ImportanceError, match="'0'"):
        select(importance, 1 / 3, alive=alive)


def test_layers_with_nothing_in_use_are_ignored():
    importance, chosen = tensors([0.0, 0.0]), {"0": torch.tensor([True, False])}
    unused = {"0": torch.zeros(2, dtype=torch.bool)}
    refuse_ties(importance, all_of(importance), chosen, in_use=unused)
    with pytest.raises(ImportanceError):
        refuse_ties(importance, all_of(importance), chosen, in_use=all_of(importance))


class Idle(nn.Sequential):
    """A network with a layer that it does not use."""

    def __init__(self):
        super().__init__(*tiny_net())
        self.idle = nn.Linear(3, 2, bias=False)

    def forward(self, images):
        for layer in list(self)[:-1]:
            images = layer(images)
        return images


def learn(pruner, structure="weights", **settings):
    parts = {"allocation": "uniform", "structure": structure}
    plan = Plan(epochs=4, batch_size=16, **settings)
    how = {"plan": plan, "runtime": CPU, "on_collapse": "warn"}
    recipe = LIBRARY.recipe(pruner, parts=parts)
    return search(recipe, Idle(), tiny_data(), density=0.34, **how).mask["idle.weight"]


@pytest.mark.parametrize("structure", ["weights", "rows"])
def test_learned_scores_that_never_differ_are_refused_at_the_end(structure):
    """All scores of movement pruning are equal at first, and those of an unused layer for ever."""
    with pytest.raises(ImportanceError, match=r"scores 'constant': .*'idle\.weight'"):
        learn("movement", structure)
    assert learn("movement", structure, allow_ties=True).sum() == 2


def test_learned_scores_that_differ_are_not_refused():
    assert learn("edge_popup").sum() == 2


def regrown(allow_ties):
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    nn.init.constant_(model[0].weight, 0.5)
    net, growth = MaskedNet(model, ["0.weight"]), {"0.weight": torch.arange(12.0).view(3, 4)}
    recipe = LIBRARY.recipe("rigl")
    importance = {"0.weight": net.effective["0.weight"].abs()}
    regrow(net, recipe, Freeze(1, 0.5, 0.3), importance, lambda: growth, allow_ties=allow_ties)
    return net.alive["0.weight"]


def test_dropping_one_of_equal_weights_is_refused():
    with pytest.raises(ImportanceError, match=r"scores 'random_start': .*'0\.weight'"):
        regrown(allow_ties=False)
    assert regrown(allow_ties=True).sum() == 6
