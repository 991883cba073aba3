"""Frozen parameters (`requires_grad=False`) keep their values, and are pruned only on request."""

from itertools import repeat

import pytest
import torch
from check_contexts import REGISTRY, build, context_with
from kept import Recorder, find, in_lives, tune
from tiny import CPU, PLAN, tiny_data, tiny_net
from torch import nn
from torch.nn.utils import parametrizations

from gemkit import Runtime, evaluate, finetune, importance, search
from gemkit.compaction import compact, difference
from gemkit.core.errors import GemkitError, TrainingError
from gemkit.core.events import Noted
from gemkit.core.prunable import frozen_names, prunable_names
from gemkit.methods.ratio_learning import learn_ratios
from gemkit.methods.ratio_search import search_ratios
from gemkit.pruning.collapse import is_cut
from gemkit.sanity.context import context_of
from gemkit.sanity.trials import fair_control
from gemkit.training.plan import Plan

PRUNERS = [
    *("gem_miner", "edge_popup", "snip", "grasp", "synflow", "prospr", "magnitude", "random"),
    *("imp_long_warm", "lr_rewinding", "gradual_magnitude"),
]
COMPACT = Runtime(device="cpu", compact=True)
FREE = ["0.weight", "5.weight", "8.weight"]
STILL = ["3.weight", "1.weight", "1.bias", "8.bias"]


def frozen_net(names=STILL, net=tiny_net):
    """Freeze a middle convolution, the scale and shift of the norm, and the last bias."""
    model = net()
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def find_in(model, pruner="magnitude", **options):
    settings = {"density": 0.5, "plan": PLAN, "runtime": CPU, "on_collapse": "warn"}
    return search(pruner, model, tiny_data(), **{**settings, **options})


def tuned(ticket, model, **options):
    return finetune(ticket, model, tiny_data(), plan=PLAN, runtime=CPU, **options)


def unmoved(ticket, model, names=STILL):
    return all(torch.equal(ticket.state[name], model.state_dict()[name]) for name in names)


# --- names ---------------------------------------------------------------------------------------


def test_frozen_weights_are_prunable_only_when_asked_for():
    model = frozen_net()
    assert prunable_names(model) == FREE
    assert prunable_names(model, frozen=True) == prunable_names(tiny_net())
    assert frozen_names(model) == ["3.weight"]
    assert frozen_names(tiny_net()) == []


def test_a_frozen_weight_with_several_names_is_named_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    assert frozen_names(model) == ["0.weight"]
    assert prunable_names(model) == ["2.weight"]


def test_a_model_with_nothing_but_frozen_weights_is_an_error_with_a_way_out():
    model = tiny_net().requires_grad_(False)
    for refused in (lambda: prunable_names(model), lambda: find_in(model)):
        with pytest.raises(GemkitError, match=r"is frozen.*'0\.weight'.*prune_frozen=True"):
            refused()
    with pytest.raises(GemkitError, match="is frozen"):
        prunable_names(frozen_net(), include=["3.*"])
    with pytest.raises(GemkitError, match="no prunable weights"):
        prunable_names(frozen_net(), include=["nothing"])


def test_a_frozen_layer_may_compute_its_weight():
    """A mask would be no good there, but it gets none."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parametrizations.weight_norm(model[0])
    with pytest.raises(GemkitError, match=r"'0\.weight'"):
        prunable_names(model)
    model[0].requires_grad_(False)
    assert prunable_names(model) == ["1.weight"]
    assert frozen_names(model) == ["0.weight"]


# --- searching and fine-tuning -------------------------------------------------------------------


@pytest.mark.parametrize("pruner", PRUNERS)
def test_what_is_frozen_stays_as_it_is_and_is_not_pruned(pruner):
    model = frozen_net()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    ticket = find_in(model, pruner)
    trained = tuned(ticket, model)
    assert list(ticket.mask) == FREE
    assert unmoved(ticket, model)
    assert unmoved(trained, model)
    for name in (*FREE, "0.bias"):
        assert not torch.equal(trained.state[name], ticket.state[name]), name
    assert unmoved(trained, trained.apply(frozen_net()))
    assert 0 <= evaluate(trained, model, tiny_data(), runtime=CPU) <= 1
    assert [parameter.requires_grad for parameter in model.parameters()] == flags


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_frozen_weight_that_is_pruned_on_request_keeps_its_values(pruner):
    model = frozen_net()
    ticket = find_in(model, pruner, prune_frozen=True)
    trained = tuned(ticket, model)
    assert list(ticket.mask) == prunable_names(tiny_net())
    assert ticket.info.prune_frozen
    assert 0 < ticket.mask["3.weight"].sum() < 108
    assert unmoved(ticket, model)
    assert unmoved(trained, model)
    mask, weight = trained.mask["3.weight"], trained.apply(frozen_net())[3].weight
    assert torch.equal(weight, model[3].weight * mask)


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "snip", "synflow", "magnitude"])
def test_scores_judge_a_frozen_weight_as_any_other(pruner):
    """Weights stand still in these searches, so the gradients, and the masks, are the same."""
    recipe = REGISTRY.recipe(pruner, parts={"init": "as_built"})
    names = prunable_names(tiny_net())
    asked = find_in(frozen_net(names), recipe, prune_frozen=True)
    free = find_in(tiny_net(), recipe)
    assert all(torch.equal(asked.mask[name], free.mask[name]) for name in names)


@pytest.mark.parametrize("pruner", ["gem_miner", "snip"])
def test_fixed_position_tables_are_no_obstacle(pruner):
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8)
            self.places = nn.Parameter(torch.linspace(-1, 1, 72).view(9, 8), requires_grad=False)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head((self.embed(x.reshape(-1, 9, 8)) + self.places).relu().mean(1))

    model = Patches()
    heard = []
    ticket = find_in(model, pruner, observers=[heard.append])
    assert list(ticket.mask) == ["embed.weight", "head.weight"]
    assert unmoved(tuned(ticket, model), model, ["places"])
    assert not [event for event in heard if isinstance(event, Noted) and "frozen" in event.message]


def test_what_is_left_out_is_told_once_with_a_way_out():
    def told(model, **options):
        heard = []
        find_in(model, observers=[heard.append], **options)
        return [event.message for event in heard if isinstance(event, Noted)]

    (message,) = told(frozen_net())
    assert "'3.weight'" in message
    assert "prune_frozen=True" in message
    assert told(frozen_net(), prune_frozen=True) == []
    assert told(tiny_net()) == []


def test_a_network_without_anything_to_train_is_searched_but_not_trained():
    model = tiny_net().requires_grad_(False)
    ticket = find_in(model, prune_frozen=True)
    assert unmoved(ticket, model, prunable_names(tiny_net()))
    evaluate(ticket, model, tiny_data(), runtime=CPU)
    for refused in (
        lambda: tuned(ticket, model),
        lambda: find_in(model, "imp_long_warm", prune_frozen=True),
    ):
        with pytest.raises(TrainingError, match="nothing to train"):
            refused()
    assert find_in(model, "gem_miner", prune_frozen=True).kept < 342  # scores can be trained


def test_a_frozen_layer_that_dies_by_its_signs_is_no_collapse():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.ReLU(), nn.Linear(3, 3)).eval()
    nn.init.constant_(model[1].weight, -1.0)
    model[1].weight.requires_grad_(False)
    assert not is_cut(model, {"3.weight": torch.ones(3, 3, dtype=torch.bool)}, (2, 6, 6))
    assert is_cut(model, {"3.weight": torch.zeros(3, 3, dtype=torch.bool)}, (2, 6, 6))


# --- importance and layer densities --------------------------------------------------------------


@pytest.mark.parametrize("scores", ["magnitude", "random", "snip", "grasp", "synflow", "prospr"])
def test_importance_leaves_frozen_weights_out_unless_asked(scores):
    batches = [*tiny_data().train.batches(16)]
    model = frozen_net()
    assert list(importance(scores, model, batches)) == FREE
    assert list(importance(scores, model, batches, prune_frozen=True)) == prunable_names(tiny_net())


def test_layer_densities_are_those_of_layers_that_are_pruned():
    how = {"density": 0.5, "plan": Plan(epochs=1, batch_size=16, lr=0.01), "runtime": CPU}
    recipe = REGISTRY.recipe("smart_ratio")
    model = frozen_net()
    assert len(learn_ratios(recipe, model, tiny_data(), **how)) == len(FREE)
    trials = search_ratios(recipe, model, tiny_data(), rounds=0, **how)
    assert [len(trial.ratios) for trial in trials] == [len(FREE)]
    assert unmoved(search("smart_ratio", model, tiny_data(), density=0.5, runtime=CPU), model)


# --- what follows a search -----------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["learned", "rewinding", "gradual"])
def test_a_search_of_a_partly_frozen_network_survives_being_killed(recipe, tmp_path):
    def run(told, checkpointer=None):
        ticket = find(recipe, told, checkpointer, net=frozen_net)
        return ticket, tune(ticket, told, checkpointer, net=frozen_net)

    whole = run(Recorder())
    resumed, _, deaths = in_lives(run, tmp_path, iter([7, 9, *repeat(None, 9)]))
    assert deaths == 2
    assert [*resumed] == [*whole]
    assert unmoved(resumed[1], frozen_net())


CONTROLS = [
    *("shuffle", "reinit", "reinit:kaiming_normal", "weight_shuffle", "random_like"),
    *("erk", "invert", "random_labels", "reinit_keep_signs:kaiming_normal"),
]


@pytest.mark.parametrize("prune_frozen", [False, True])
@pytest.mark.parametrize("name", CONTROLS)
def test_controls_leave_frozen_weights_alone(name, prune_frozen):
    def network():
        return frozen_net(["3.weight"], build)

    ticket = context_with("gem_miner", network=network, prune_frozen=prune_frozen).search()
    context = context_of(ticket, data=tiny_data(), build=network, registry=REGISTRY, runtime=CPU)
    check = REGISTRY.build("checks", name)
    check.check_fit(context)
    control = fair_control(check, ticket, context)
    assert list(control.mask) == list(ticket.mask)
    assert ("3.weight" in control.mask) == prune_frozen
    assert unmoved(control, context.network(), ["3.weight"])
    assert any(
        not torch.equal(control.state[name] * control.mask[name], ticket.state[name] * mask)
        for name, mask in ticket.mask.items()
    )


@pytest.mark.parametrize("prune_frozen", [False, True])
def test_a_compact_network_keeps_what_is_frozen(prune_frozen):
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(72, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU()),
        nn.Linear(12, 3),
    )
    model[3].requires_grad_(False)
    ticket = find_in(model, "snip", density=0.05, prune_frozen=prune_frozen)
    small = compact(ticket, model, training=True)
    assert small.model[3].weight.numel() < 144
    assert not small.model[3].weight.requires_grad
    trained = finetune(ticket, model, tiny_data(), plan=PLAN, runtime=COMPACT)
    assert unmoved(trained, model, ["3.weight", "3.bias"])
    assert not torch.equal(trained.state["1.weight"], ticket.state["1.weight"])
    images = tiny_data().test.images
    assert difference(compact(ticket, model).model, ticket.apply(model), images) < 1e-6
