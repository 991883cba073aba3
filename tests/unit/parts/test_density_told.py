"""Scores and regularizers that depend on the density are told it."""

import pytest
import torch
from tiny import CPU, PLAN, tiny_data, tiny_net

from gemkit import MeasuredScores, Regularizer, importance, load_plugins, search

REGISTRY = load_plugins(only=())


class Curious(MeasuredScores):
    """Takes down the density it is asked for."""

    name = "curious"

    def importance(self, probe):
        HEARD.append(probe.density)
        return {name: weight.abs() for name, weight in probe.weights.items()}


class Aimed(Regularizer):
    """Takes down the density of the search."""

    name = "aimed"

    def penalty(self, values, now):
        HEARD.append(now.target)
        return sum(score.sum() for score in values.values())


HEARD = []


@pytest.fixture(autouse=True)
def _forget():
    HEARD.clear()


def find(recipe, density=0.3):
    return search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=density,
        plan=PLAN,
        runtime=CPU,
        on_collapse="warn",
    )


def test_a_score_is_told_what_each_freeze_will_keep():
    recipe = REGISTRY.recipe("magnitude", parts={"schedule": {"name": "linear", "rounds": 2}})
    find(recipe.model_copy(update={"scores": Curious()}))
    assert pytest.approx([0.65, 0.3]) == HEARD


def test_a_score_is_told_the_density_from_python():
    importance(Curious(), tiny_net(), [], density=0.2)
    importance(Curious(), tiny_net(), [])
    assert HEARD == [0.2, 0.05]


def test_a_regularizer_is_told_the_density_of_the_search_and_the_ticket_keeps_the_recipe():
    recipe = REGISTRY.recipe("edge_popup").model_copy(update={"regularizer": Aimed()})
    ticket = find(recipe)
    assert set(HEARD) == {0.3}
    assert ticket.info.recipe == recipe.to_data()


def test_dropout_is_no_use_of_global_random_numbers():
    class TrainMode(MeasuredScores):
        """Saliency while dropout drops."""

        name = "train_mode"

        def importance(self, probe):
            weights = probe.leaves()
            images, labels = probe.batches[0]
            logits = probe.forward(weights, images, training=True)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            found = torch.autograd.grad(loss, list(weights.values()))
            return dict(zip(weights, found, strict=True))

    model = tiny_net().insert(2, torch.nn.Dropout(0.5))
    batches = list(tiny_data().train.batches(16))
    before = torch.get_rng_state()
    importance(TrainMode(), model, batches)
    assert torch.equal(before, torch.get_rng_state())
