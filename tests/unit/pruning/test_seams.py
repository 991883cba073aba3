"""What recipes with structures, regrowth, objectives and two rates refuse, leave out and stop."""

from fractions import Fraction

import pytest
import torch
from tiny import CPU, PLAN, tiny_data, tiny_net
from torch import nn

from gemkit import Objective, Plan, finetune, load_plugins, search
from gemkit.builtin.structures import Blocks
from gemkit.core.errors import FitError, OptionError
from gemkit.core.events import EpochEnded, Noted, PhaseStarted
from gemkit.pruning.scope import names_in_scope

REGISTRY = load_plugins(only=())


def find(recipe, model=None, **how):
    settings = {"density": 0.5, "plan": PLAN, "runtime": CPU, "on_collapse": "warn"}
    return search(recipe, model or tiny_net(), tiny_data(), **settings | how)


@pytest.mark.parametrize("m", range(2, 13))
def test_blocks_keep_n_also_where_the_density_has_no_exact_decimals(m):
    for n in range(1, m):
        part = Blocks(n=n, m=m)
        assert part.units_of(n / m, m) == n
        assert part.misfit(n / m) is None


def test_blocks_keep_the_next_whole_number_before_the_last_freeze():
    assert Blocks(n=1, m=4).units_of(0.51, 4) == 3
    assert Blocks(n=2, m=4).units_of(float(Fraction(3, 4)), 4) == 3


def test_filters_leave_the_outputs_of_the_network_alone():
    notes = []
    recipe = REGISTRY.recipe("random", parts={"structure": "filters"})
    ticket = find(recipe, observers=[lambda e: notes.append(e) if isinstance(e, Noted) else None])
    names = [name for name, own in tiny_net().named_parameters() if own.ndim > 1]
    assert list(ticket.mask) == names[:-1]
    assert any(names[-1] in note.message for note in notes)
    for mask in ticket.mask.values():
        units = mask.flatten(1)
        assert (units.all(1) | ~units.any(1)).all()


def test_structures_leave_transposed_convolutions_out():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 3), nn.Flatten(), nn.Linear(4, 2)
    )
    for structure, expected in (("rows", ["0.weight", "3.weight"]), ("filters", ["0.weight"])):
        recipe = REGISTRY.recipe("random", parts={"structure": structure})
        assert names_in_scope(recipe, model) == expected
    assert "1.weight" in names_in_scope(REGISTRY.recipe("random"), model)


def test_the_distance_to_the_dense_network_needs_weights_that_stay():
    recipe = REGISTRY.recipe("gradual_magnitude", parts={"objective": "kl"})
    with pytest.raises(FitError, match="compares with the dense network"):
        find(recipe)
    assert find(REGISTRY.recipe("edge_popup", parts={"objective": "kl"})).kept


def test_keep_one_does_not_suit_weights_that_return():
    with pytest.raises(OptionError, match="weights return"):
        find(REGISTRY.recipe("rigl"), on_collapse="keep-one")


def test_a_rate_of_scores_is_refused_where_none_train_with_weights():
    plan = Plan(epochs=2, batch_size=16, score_lr=1.0)
    for pruner in ("gem_miner", "gradual_magnitude"):
        with pytest.raises(OptionError, match="score_lr"):
            find(pruner, plan=plan)
    ticket = find("random")
    with pytest.raises(OptionError, match="score_lr"):
        finetune(ticket, tiny_net(), tiny_data(), plan=plan, runtime=CPU)


@pytest.mark.parametrize("pruner", ["imp_short_cold", "gradual_magnitude", "edge_popup", "rigl"])
def test_a_search_that_is_stopped_still_reaches_its_density(pruner):
    views = []

    def stop(event):
        if isinstance(event, PhaseStarted):
            views.append(event.view)
        if isinstance(event, EpochEnded) and event.epoch == 1:
            views[0].stop("enough")

    ticket = find(pruner, density=0.25, observers=[stop], plan=Plan(epochs=6, batch_size=16))
    assert ticket.kept == round(0.25 * ticket.prunable)


def test_a_stopped_search_ranks_weights_that_were_trained():
    """The broken version went through all rounds, and ranked weights that it had just rewound."""
    trained = {}

    def stop(event):
        if isinstance(event, PhaseStarted):
            trained["view"] = event.view
        if isinstance(event, EpochEnded):
            trained["view"].stop("enough")

    recipe = REGISTRY.recipe("imp_short_cold", options={"schedule.every": 2})
    ticket = find(recipe, density=0.25, observers=[stop])
    at_init = find("magnitude", density=0.25)
    assert any(not torch.equal(ticket.mask[name], at_init.mask[name]) for name in ticket.mask)
    assert len(ticket.info.history) == 1


class Remembering(Objective):
    """Cross-entropy that remembers the mean of its losses."""

    name = "remembering"

    def init_state(self, weights):
        return {"mean": torch.zeros(())}

    def loss(self, outputs, batch, now):
        loss = nn.functional.cross_entropy(outputs, batch[1])
        now.state["mean"].mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss


def test_a_step_that_is_left_out_leaves_the_state_of_the_objective(monkeypatch):
    recipe = REGISTRY.recipe("edge_popup").model_copy(update={"objective": Remembering()})
    real, calls = Remembering.loss, []

    def sometimes_nan(self, outputs, batch, now):
        calls.append(now)
        return real(self, outputs * (float("nan") if len(calls) == 3 else 1.0), batch, now)

    monkeypatch.setattr(Remembering, "loss", sometimes_nan)
    find(recipe, plan=Plan(epochs=2, batch_size=16, on_nan="skip"))
    assert calls[-1].state["mean"].isfinite()
