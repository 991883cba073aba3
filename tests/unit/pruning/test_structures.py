"""Structured searches: no partial filter, exactly N of M, the same share of every row."""

import pytest
import torch
from check_contexts import context_with
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU, tiny_data, tiny_net

from gemkit import Plan, load_plugins, search
from gemkit.builtin.structures import Blocks, Filters, Rows, Weights
from gemkit.core.errors import FitError, ImportanceError, OptionError
from gemkit.core.events import StepEnded
from gemkit.core.tensors import density_of
from gemkit.pruning.feasible import check_network
from gemkit.pruning.finetune import finetune
from gemkit.pruning.freeze import Freezer
from gemkit.sanity.controls import shuffled

REGISTRY = load_plugins(only=[])
PLAN = Plan(epochs=4, batch_size=8, lr=0.5)
STRUCTURES = {"filters": "filters", "rows": "rows", "nm": {"name": "nm", "n": 1, "m": 2}}
PRUNERS = {
    "gem_miner": {"schedule.every": 1},
    "edge_popup": {},
    "magnitude": {},
    "gradual_magnitude": {"schedule.every": 1},
    "imp_long_cold": {"schedule.fraction": 0.3},
    "continuous_sparsification": {"scores.start": 0.1},
    "movement": {},
    "snip": {},
}


def whole_filters(mask):
    return all(bool(one.all() or not one.any()) for one in mask)


def even_rows(mask):
    counts = mask.flatten(1).sum(1)
    return bool(counts.max() - counts.min() <= 1)


def one_of_two(mask):
    """Of two neighbouring inputs at any place, exactly one."""
    pairs = zip(mask[:, ::2].flatten(), mask[:, 1::2].flatten(), strict=True)
    return all(bool(one) != bool(other) for one, other in pairs)


HOLDS = {"filters": whole_filters, "rows": even_rows, "nm": one_of_two}


def found(pruner, structure, options=None, **how):
    recipe = REGISTRY.recipe(
        pruner,
        parts={"structure": STRUCTURES[structure], "allocation": "uniform"},
        options=options or PRUNERS[pruner],
    )
    plan = how.pop("plan", PLAN)
    return search(recipe, tiny_net(), tiny_data(), density=0.5, plan=plan, runtime=CPU, **how)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_ticket_has_its_structure_before_and_after_fine_tuning(pruner, structure):
    ticket = found(pruner, structure, on_collapse="warn")
    tuned = finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=CPU)
    network = tuned.apply(tiny_net())
    for name, mask in ticket.mask.items():
        assert HOLDS[structure](mask), name
        assert torch.equal(tuned.mask[name], mask)
        weight = network.get_parameter(name)
        assert weight[~mask].count_nonzero() == 0
        assert (weight[mask] != 0).all()
    assert density_of(ticket.mask) == pytest.approx(0.5, abs=0.02)


def test_a_ticket_that_is_only_rounded_would_be_noticed(monkeypatch):
    """The broken version: the ticket of a structured search is what the threshold leaves."""
    monkeypatch.setattr(Freezer, "_chosen_mask", lambda freezer, density: freezer.net.mask)
    for structure, holds in HOLDS.items():
        mask = found("gem_miner", structure, on_collapse="warn").mask
        assert not all(map(holds, mask.values()))


def test_filters_compete_across_layers():
    recipe = REGISTRY.recipe("magnitude", parts={"structure": "filters", "allocation": "global"})
    how = {"density": 0.5, "runtime": CPU, "on_collapse": "warn"}
    ticket = search(recipe, tiny_net(), tiny_data(), **how)
    sums = sorted(
        (
            float(tiny_net().get_parameter(name)[at].detach().abs().sum()),
            bool(mask[at].any()),
            mask[at].numel(),
        )
        for name, mask in ticket.mask.items()
        for at in range(len(mask))
    )
    assert all(map(whole_filters, ticket.mask.values()))
    assert [kept for _, kept, _ in sums] == sorted(kept for _, kept, _ in sums)
    budget, kept = 0.5 * sum(size for *_, size in sums), sum(size for _, k, size in sums if k)
    assert kept <= budget
    best_left = [size for _, kept, size in sums if not kept][-1]
    assert kept + best_left > budget


def test_rows_that_cannot_compete_are_refused_before_any_step():
    parts = {"structure": "rows", "allocation": "global"}
    recipe = REGISTRY.recipe("gradual_magnitude", parts=parts)
    events = []
    with pytest.raises(FitError, match="choose allocation 'uniform' or 'erk'"):
        search(
            recipe,
            tiny_net(),
            tiny_data(),
            density=0.5,
            plan=PLAN,
            runtime=CPU,
            observers=[events.append],
        )
    assert not any(isinstance(event, StepEnded) for event in events)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_single_weights_are_not_kept_where_units_are_pruned(structure):
    with pytest.raises(OptionError, match="'keep-one' keeps single weights, which structure"):
        found("magnitude", structure, on_collapse="keep-one")


@pytest.mark.parametrize("pruner", ["magnitude", "gradual_magnitude", "gem_miner", "edge_popup"])
@pytest.mark.parametrize(
    ("allocation", "density", "words"),
    [
        ("uniform", 0.05, "leaves 5 weights to '0.weight', fewer than the 18 of one unit of"),
        ("global", 0.02, "leaves 6 weights to '0.weight', '3.weight', '5.weight', fewer than the"),
    ],
)
def test_a_share_smaller_than_a_filter_is_refused_before_any_step(
    pruner, allocation, density, words
):
    parts = {"structure": "filters", "allocation": allocation}
    recipe = REGISTRY.recipe(pruner, parts=parts, options=PRUNERS[pruner])
    how = {"density": density, "plan": PLAN, "runtime": CPU}
    events = []
    with pytest.raises(FitError) as caught:
        search(recipe, tiny_net(), tiny_data(), observers=[events.append], **how)
    assert words in str(caught.value)
    assert ("choose allocation 'global'" in str(caught.value)) == (allocation == "uniform")
    assert not events
    check_network(recipe, tiny_net(), density=density, on_collapse="warn")  # which tolerates it
    check_network(recipe, tiny_net(), density=0.17, on_collapse="error")  # one filter a layer


def test_a_block_has_just_one_density():
    recipe = REGISTRY.recipe("magnitude", parts={"structure": STRUCTURES["nm"]})
    with pytest.raises(FitError, match=r"keeps 0\.5 of the weights, not 0\.3; use --density 0\.5"):
        search(recipe, tiny_net(), tiny_data(), density=0.3, runtime=CPU)


def test_equal_units_are_refused_as_equal_weights_are():
    net = tiny_net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.1)
    recipe = REGISTRY.recipe("magnitude", parts={"structure": "filters", "allocation": "uniform"})
    with pytest.raises(ImportanceError, match="equally important, so position alone would decide"):
        search(recipe, net, tiny_data(), density=0.5, runtime=CPU)


# --- controls ------------------------------------------------------------------------------------

SHAPES = [(4, 4), (6, 4, 3, 3), (3, 8), (1, 4), (5, 2, 1, 1)]


def units(structure, mask):
    """Return the units of every pool, sorted, as they can change places."""
    folded = structure.fold(mask)
    return [sorted(unit.tolist() for unit in pool) for pool in folded]


@pytest.mark.parametrize("structure", [Weights(), Filters(), Rows(), Blocks(n=1, m=2)])
@given(shape=st.sampled_from(SHAPES), density=st.floats(0, 1), seed=st.integers(0, 999))
def test_a_shuffle_moves_units_within_their_pool(structure, shape, density, seed):
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=rng) < density
    if isinstance(structure, Filters):
        mask = mask.flatten(1)[:, :1].expand(-1, mask[0].numel()).reshape(shape).clone()
    other = shuffled(mask, structure, rng)
    assert units(structure, other) == units(structure, mask)
    folded = structure.fold(mask)
    movable = not bool((folded == folded[:, :1]).all())
    assert torch.equal(other, mask) != movable


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    "check", ["shuffle", "random_like", "uniform_random", "reinit:kaiming_normal"]
)
def test_controls_of_a_structured_ticket_have_its_structure(check, structure):
    recipe = REGISTRY.recipe(
        "magnitude", parts={"structure": STRUCTURES[structure], "allocation": "uniform"}
    )
    lab = context_with(recipe, density=0.5)
    ticket = lab.search()
    control = REGISTRY.build("checks", check).control(ticket, lab)
    for name, mask in ticket.mask.items():
        assert HOLDS[structure](control.mask[name]), name
        assert control.mask[name].sum() == mask.sum()
    differs = any(not torch.equal(control.mask[name], mask) for name, mask in ticket.mask.items())
    assert differs != check.startswith("reinit")


def test_an_unstructured_shuffle_would_be_noticed():
    """The broken version: filters fall apart."""
    ticket = found("magnitude", "filters", on_collapse="warn")
    rng = torch.Generator().manual_seed(0)
    broken = {name: shuffled(mask, Weights(), rng) for name, mask in ticket.mask.items()}
    assert not all(map(whole_filters, broken.values()))
