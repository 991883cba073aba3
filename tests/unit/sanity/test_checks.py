"""Every control changes what it says, and the broken versions once published fail the tests."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from check_contexts import REGISTRY, build, context_with, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_data

from gemkit import MeasuredScores
from gemkit.core.errors import (
    CheckError,
    CollapseError,
    FitError,
    ImportanceError,
    UnknownNameError,
)
from gemkit.core.tensors import budget, kept
from gemkit.pruning.freeze import negated
from gemkit.sanity import controls as checks
from gemkit.sanity import search_controls as search_checks
from gemkit.sanity.context import CheckContext
from gemkit.sanity.controls import permuted
from gemkit.sanity.trials import fair_control

RANDOM = [
    *("shuffle", "reinit", "reinit_keep_signs", "random_like", "weight_shuffle", "permute"),
    *("uniform_random", "erk", "smart_ratio"),
]
SIGNED = context_with("edge_popup").search()
BUILT = context_with("random").search()
seeds = st.integers(0, 2**32 - 1)


def control(name, ticket, context):
    return fair_control(REGISTRY.build("checks", name), ticket, context)


def counts(ticket):
    return [layer.kept for layer in ticket.layers]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rest(ticket):
    """Everything that is not a prunable weight."""
    return {name: value for name, value in ticket.state.items() if name not in ticket.mask}


# --- shuffling -----------------------------------------------------------------------------------


def is_shuffled(ticket, other):
    """Every layer keeps its count, and changes wherever there is another mask of that count."""
    return counts(ticket) == counts(other) and all(
        layer.kept in (0, layer.prunable)
        or not torch.equal(ticket.mask[layer.name], other.mask[layer.name])
        for layer in ticket.layers
    )


@given(seeds, seeds)
@settings(deadline=None, max_examples=60)
def test_a_shuffle_keeps_every_count_and_changes_what_it_can(mask_seed, seed):
    ticket = replace(SIGNED, mask=random_mask(SIGNED, mask_seed))
    shuffled = control("shuffle", ticket, context_with("edge_popup", seed=seed))
    assert is_shuffled(ticket, shuffled)
    assert same(ticket.state, shuffled.state)


def no_op(ticket):
    """Shuffle a copy that is never used."""
    for mask in ticket.mask.values():
        mask = mask.flatten()[torch.randperm(mask.numel())].view_as(mask)
    return ticket


def across_layers(ticket):
    """Shuffle all layers as one."""
    flat = torch.cat([mask.flatten() for mask in ticket.mask.values()])
    parts = flat.roll(17).split([mask.numel() for mask in ticket.mask.values()])
    masks = zip(ticket.mask.items(), parts, strict=True)
    return replace(ticket, mask={name: part.view_as(mask) for (name, mask), part in masks})


def complement(ticket):
    """Keep what was pruned."""
    return replace(ticket, mask={name: ~mask for name, mask in ticket.mask.items()})


@pytest.mark.parametrize("broken", [no_op, across_layers, complement])
def test_a_broken_shuffle_is_noticed(broken):
    assert not is_shuffled(SIGNED, broken(SIGNED))


@given(st.lists(st.integers(0, 2), max_size=6), seeds)
def test_permuted_reorders_entries_and_never_returns_its_input(values, seed):
    given_values = torch.tensor(values, dtype=torch.float32).view(-1, 1)
    result = permuted(given_values, torch.Generator().manual_seed(seed))
    assert result.shape == given_values.shape
    assert sorted(result.flatten().tolist()) == sorted(values)
    assert torch.equal(result, given_values) == (len(set(values)) <= 1)


@given(seeds, seeds)
@settings(deadline=None, max_examples=40)
def test_a_weight_shuffle_moves_kept_weights_within_their_layer(mask_seed, seed):
    ticket = replace(BUILT, mask=random_mask(BUILT, mask_seed))
    other = control("weight_shuffle", ticket, context_with("random", seed=seed))
    assert same(ticket.mask, other.mask)
    assert same(rest(ticket), rest(other))
    for name, mask in ticket.mask.items():
        before, after = ticket.state[name], other.state[name]
        assert torch.equal(before[~mask], after[~mask])
        assert torch.equal(before[mask].sort().values, after[mask].sort().values)
        assert mask.count_nonzero() < 2 or not torch.equal(before, after)


# --- new weights ---------------------------------------------------------------------------------


def is_signed_constant(ticket, other):
    """Same mask, same magnitudes, about half of the kept signs flipped."""
    flipped = sum(
        int((ticket.state[name][mask] != other.state[name][mask]).sum())
        for name, mask in ticket.mask.items()
    )
    spread = 2.5 * ticket.kept**0.5  # five standard deviations of a fair coin
    return (
        same(ticket.mask, other.mask)
        and same(rest(ticket), rest(other))
        and all(torch.equal(ticket.state[n].abs(), other.state[n].abs()) for n in ticket.mask)
        and abs(flipped - ticket.kept / 2) < spread
    )


@given(seeds)
@settings(deadline=None, max_examples=40)
def test_reinit_draws_from_the_initializer_of_the_recipe(seed):
    dense = replace(SIGNED, mask={n: torch.ones_like(mask) for n, mask in SIGNED.mask.items()})
    assert is_signed_constant(
        dense, control("reinit", dense, context_with("edge_popup", seed=seed))
    )


def flipped(ticket):
    """Flip every sign: nothing is drawn."""
    return replace(ticket, state=ticket.state | {n: -ticket.state[n] for n in ticket.mask})


def from_another_distribution(ticket):
    """What the code of the paper does."""
    return control("reinit:kaiming_normal", ticket, context_with("edge_popup"))


@pytest.mark.parametrize("broken", [no_op, flipped, from_another_distribution])
def test_a_broken_reinit_is_noticed(broken):
    assert not is_signed_constant(SIGNED, broken(SIGNED))


def test_reinit_can_name_the_distribution():
    other = from_another_distribution(SIGNED)
    assert same(SIGNED.mask, other.mask)
    assert same(rest(SIGNED), rest(other))
    weight = other.state["3.weight"]
    assert weight.unique().numel() == weight.numel()
    assert 0.7 < float(weight.std() / (2 / 27) ** 0.5) < 1.3


def test_reinit_of_weights_as_built_builds_another_network():
    other = control("reinit", BUILT, context_with("random"))
    assert same(BUILT.mask, other.mask)
    for name in BUILT.mask:
        before, after = BUILT.state[name], other.state[name]
        assert (before != after).all(), "every weight is drawn again"
        assert after.abs().max() <= (before[0].numel()) ** -0.5, "as the layer itself draws"


def test_reinit_of_a_pretrained_network_is_refused():
    def pretrained():
        torch.manual_seed(1)
        return build()

    context = context_with("random", network=pretrained)
    part = REGISTRY.build("checks", "reinit")
    with pytest.raises(CheckError, match=r"same weights for every seed.*reinit:kaiming_normal"):
        part.check_fit(context)
    REGISTRY.build("checks", "reinit:kaiming_normal").check_fit(context)
    part.check_fit(context_with("random"))


def keeps_signs(ticket, other):
    """Same mask, the ticket's signs (+ for zero), other magnitudes for every kept weight."""
    return (
        same(ticket.mask, other.mask)
        and same(rest(ticket), rest(other))
        and all(
            torch.equal(other.state[name] < 0, ticket.state[name] < 0)
            and (other.state[name].abs() != ticket.state[name].abs())[mask].all()
            for name, mask in ticket.mask.items()
        )
    )


@given(seeds, seeds)
@settings(deadline=None, max_examples=30)
def test_reinit_can_keep_the_signs(mask_seed, seed):
    ticket = replace(BUILT, mask=random_mask(BUILT, mask_seed))
    context = context_with("random", seed=seed)
    other = control("reinit_keep_signs", ticket, context)
    assert keeps_signs(ticket, other)
    fresh = control("reinit", ticket, context)
    for name in ticket.mask:
        assert torch.equal(other.state[name].abs(), fresh.state[name].abs()), "as reinit draws"


def test_a_weight_of_zero_gets_a_positive_sign():
    zeros = {name: torch.zeros_like(BUILT.state[name]) for name in BUILT.mask}
    zeros["3.weight"] = -zeros["3.weight"]
    other = control(
        "reinit_keep_signs", replace(BUILT, state=BUILT.state | zeros), context_with("random")
    )
    assert all((other.state[name] > 0).all() for name in BUILT.mask)


def plain_reinit(ticket):
    """Draw signs too."""
    return control("reinit", ticket, context_with("random"))


@pytest.mark.parametrize("broken", [no_op, flipped, plain_reinit])
def test_a_broken_reinit_that_keeps_signs_is_noticed(broken):
    assert not keeps_signs(BUILT, broken(BUILT))


def test_magnitudes_that_are_always_the_same_are_refused():
    part = REGISTRY.build("checks", "reinit_keep_signs")
    words = r"'signed_constant' draws the same magnitudes.*reinit_keep_signs:kaiming_normal"
    with pytest.raises(CheckError, match=words):
        part.check_fit(context_with("edge_popup"))
    part.check_fit(context_with("random"))
    named = REGISTRY.build("checks", "reinit_keep_signs:kaiming_normal")
    named.check_fit(context_with("edge_popup"))
    other = control("reinit_keep_signs:kaiming_normal", SIGNED, context_with("edge_popup"))
    assert keeps_signs(SIGNED, other)
    with pytest.raises(UnknownNameError, match="unknown init"):
        REGISTRY.build("checks", "reinit_keep_signs:normal").check_fit(context_with("random"))


def test_new_weights_of_a_tied_layer_have_both_names():
    def tied():
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(72, 72, bias=False))
        model.append(torch.nn.Linear(72, 72, bias=False)).append(torch.nn.Linear(72, 3))
        model[2].weight = model[1].weight
        return model

    context = context_with("random", network=tied)
    ticket = context.search()
    for name in ("reinit", "reinit_keep_signs", "weight_shuffle", "random_like"):
        other = control(name, ticket, context)
        assert not torch.equal(other.state["1.weight"], ticket.state["1.weight"])
        assert torch.equal(other.state["1.weight"], other.state["2.weight"])
        other.apply(context.network())


# --- random tickets ------------------------------------------------------------------------------


@given(seeds, seeds)
@settings(deadline=None, max_examples=30)
def test_a_random_ticket_may_have_the_counts_of_the_ticket(mask_seed, seed):
    ticket = replace(SIGNED, mask=random_mask(SIGNED, mask_seed))
    other = control("random_like", ticket, context_with("edge_popup", seed=seed))
    assert counts(other) == counts(ticket)
    assert all(torch.equal(ticket.state[n].abs(), other.state[n].abs()) for n in ticket.mask)


@pytest.mark.parametrize(
    ("name", "allocation"),
    [("uniform_random", "uniform"), ("erk", "erk"), ("random_ticket:erk", "erk")],
)
def test_a_random_ticket_may_have_the_counts_of_any_allocation(name, allocation):
    context = context_with("global_ep")
    ticket = context.search()
    everything = {n: torch.ones_like(mask) for n, mask in ticket.mask.items()}
    shares = REGISTRY.build("allocations", allocation).keep(everything, everything, ticket.density)
    other = control(name, ticket, context)
    assert counts(other) == list(shares.values())
    assert counts(other) != counts(ticket), "the search itself shares otherwise"
    assert other.kept == ticket.kept


@pytest.mark.parametrize(
    ("name", "allocation"),
    [("uniform_random", "uniform"), ("erk", "erk"), ("smart_ratio", "smart_ratio")],
)
def test_a_named_random_ticket_is_the_same_ticket(name, allocation):
    context = context_with("random")
    same = control(f"random_ticket:{allocation}", BUILT, context)
    assert control(name, BUILT, context) == same
    assert not type(REGISTRY.build("checks", name)).model_fields


def test_an_allocation_is_checked_at_the_density_that_the_recipe_fixes():
    """Smart Ratio has no shares for so few weights."""
    context = context_with("random", density=0.3)
    fixed = replace(context, recipe=context.recipe.model_copy(update={"density": 0.001}))
    for name in ("smart_ratio", "random_ticket:smart_ratio"):
        REGISTRY.build("checks", name).check_fit(context)
        with pytest.raises(FitError, match=r"density 0\.001 keeps"):
            REGISTRY.build("checks", name).check_fit(fixed)


def test_an_unknown_allocation_is_refused_before_anything_is_computed():
    with pytest.raises(UnknownNameError, match="did you mean 'erk'"):
        REGISTRY.build("checks", "random_ticket:erkk").check_fit(context_with())


@pytest.mark.parametrize("name", RANDOM)
def test_the_same_seed_gives_the_same_control_and_another_seed_another(name):
    one, again, other = (
        control(name, BUILT, context_with("random", seed=seed)) for seed in (3, 3, 4)
    )
    assert one == again
    assert one != other
    assert one != BUILT


# --- inversion -----------------------------------------------------------------------------------


class Signed(MeasuredScores):
    """Importance of both signs, with zeros and ties."""

    name = "signed"

    def importance(self, probe):
        return {name: (weight * 12).round() for name, weight in probe.weights.items()}


class Reciprocal(Signed):
    """A broken inversion: 1/v."""

    name = "reciprocal"

    def importance(self, probe):
        return {name: 1 / value for name, value in super().importance(probe).items()}


def signed_context(**changes):
    recipe = REGISTRY.recipe("magnitude").model_copy(update={"scores": Signed(), **changes})
    return context_with(recipe)


def lowest(context, count):
    """Select the lowest scores by sorting them, ties by position."""
    network = context.network()
    scores = [(network.get_parameter(n).detach() * 12).round().flatten() for n in BUILT.mask]
    order = np.argsort(torch.cat(scores).numpy(), kind="stable")
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order[:count]] = True
    return torch.from_numpy(chosen)


def flat(ticket):
    return torch.cat([mask.flatten() for mask in ticket.mask.values()])


def test_an_inverted_search_keeps_the_lowest_of_signed_scores():
    context = signed_context()
    ticket = context.search()
    inverted = control("invert", ticket, context)
    assert torch.equal(flat(inverted), lowest(context, ticket.kept))
    assert not (flat(inverted) & flat(ticket)).any()
    assert same(inverted.state, ticket.state)


def test_a_reciprocal_is_no_inversion():
    context = signed_context(scores=Reciprocal())
    with pytest.raises(ImportanceError):
        context.search()  # zeros
    values = {"w": torch.tensor([-3.0, -1.0, 2.0, 4.0])}
    order = [negated(values)["w"].argsort().tolist(), (1 / values["w"]).argsort().tolist()]
    assert order == [[3, 2, 1, 0], [1, 0, 3, 2]]


def test_the_complement_is_no_inversion():
    context = signed_context()
    ticket = context.search()

    class Complement(checks.Shuffle):
        """A broken inversion: keep what was pruned."""

        name = "complement"

        def control(self, ticket, context):
            return complement(ticket)

    with pytest.raises(
        CheckError, match=f"keeps {ticket.prunable - ticket.kept} .*the same density"
    ):
        fair_control(Complement(), ticket, context)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int32, torch.float64])
def test_any_type_of_importance_can_be_negated(dtype):
    values = torch.tensor([0, 1, 0, 1]).to(dtype)
    assert negated({"w": values})["w"].tolist() == [0, -1, 0, -1]


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "global_ep", "magnitude"])
def test_an_inversion_inverted_is_the_selection_itself(pruner):
    context = context_with(pruner, options={"finalize": "alive"} if pruner == "gem_miner" else {})
    ticket = context.search()
    inverted = control("invert", ticket, context)
    back = replace(context, recipe=REGISTRY.recipe(inverted.info.recipe))
    assert back.recipe.invert
    again = control("invert", inverted, back)
    assert same(again.mask, ticket.mask)
    assert again.info.recipe == ticket.info.recipe


def test_every_freeze_of_an_inverted_gem_miner_prunes_the_highest_scores(monkeypatch):
    from gemkit.parts import structure

    seen = []

    def watched(importance, alive, shares, **how):
        chosen = keep_top(importance, alive, shares, **how)
        seen.append((importance, alive, chosen))
        return chosen

    keep_top = structure.keep_top
    monkeypatch.setattr(structure, "keep_top", watched)
    context = context_with("gem_miner", options={"schedule.every": 1})
    context = replace(context, plan=context.plan.lasting(5))
    ticket = context.search()
    seen.clear()
    inverted = control("invert", ticket, context)
    assert len(seen) == len(inverted.info.history) > 2
    for (importance, alive, chosen), record in zip(seen, inverted.info.history, strict=True):
        scores = {name: -value for name, value in importance.items()}
        assert all(((s >= 0) & (s <= 1)).all() for s in scores.values()), "p itself, negated"
        stays = torch.cat([scores[n][chosen[n]] for n in scores])
        goes = torch.cat([scores[n][alive[n] & ~chosen[n]] for n in scores])
        assert stays.max() <= goes.min()
        # The forward pass is not inverted: it still uses 1[p > ½] of what is alive.
        assert record.kept == sum(int(((s > 0.5) & chosen[n]).sum()) for n, s in scores.items())
    assert inverted.kept == kept(seen[-1][2]) == ticket.kept
    assert inverted.info.history[-1].kept < inverted.kept, "the ticket is what is alive"


def test_an_inverted_edge_popup_keeps_the_lowest_scores_of_every_layer():
    context = context_with("edge_popup")
    inverted = control("invert", SIGNED, context)
    assert counts(inverted) == counts(SIGNED)
    assert not (flat(inverted) & flat(SIGNED)).any()


def test_an_inverted_ticket_has_the_density_of_the_ticket_not_its_target():
    context = context_with("gem_miner", density=0.9)
    ticket = context.search()
    assert ticket.kept < budget(ticket.prunable, 0.9), "rounding keeps about half"
    assert control("invert", ticket, context).kept == ticket.kept


# --- corrupted data ------------------------------------------------------------------------------


@pytest.fixture
def searched(monkeypatch):
    """Let searches only record their data."""
    seen = []

    def search(self, recipe=None, *, data=None, density=None):
        seen.append(data)
        return BUILT

    monkeypatch.setattr(CheckContext, "search", search)
    return seen


def corrupted(name, searched, data):
    control(name, BUILT, context_with("random", data=data))
    [used] = searched
    assert used.validation is data.validation
    assert used.test is data.test
    return used.train


def test_random_labels_are_independent_of_the_images(searched):
    data = tiny_data(samples=600)
    train = corrupted("random_labels", searched, data)
    assert torch.equal(train.images, data.train.images)
    counted = torch.bincount(train.labels, minlength=3)
    assert counted.min() > 150
    right = int((train.labels == data.train.labels).sum())
    assert 140 < right < 260


def pixel_orders(images):
    """Return where each value of 0, 1, 2, … went, image by image."""
    return images.flatten(1).argsort(1)


def test_every_image_is_shuffled_in_its_own_order(searched):
    data = tiny_data(samples=40)
    ordered = torch.arange(72.0).expand(40, 72).reshape(40, 2, 6, 6).clone()
    data = replace(data, train=replace(data.train, images=ordered))
    train = corrupted("shuffled_pixels", searched, data)
    assert torch.equal(train.labels, data.train.labels)
    assert torch.equal(train.images.flatten(1).sort(1).values, ordered.flatten(1))
    orders = pixel_orders(train.images)
    assert len({tuple(order) for order in orders.tolist()}) == 40, "one order for all is broken"
    assert (orders >= 36).any(1).all(), "channels are mixed"


@pytest.mark.parametrize("most", [1, 5 * 72, 40 * 72, 2**22])
def test_shuffling_in_chunks_gives_the_same_images(most, monkeypatch):
    train = tiny_data(samples=40).train
    images = train.images
    order = torch.rand(40, 72, generator=torch.Generator().manual_seed(3)).argsort(1)
    drawn, rand = [], torch.rand

    def draw(shape, **how):
        drawn.append(shape.numel())
        return rand(shape, **how)

    monkeypatch.setattr(search_checks, "_MOST_VALUES", most)
    monkeypatch.setattr(torch, "rand", draw)
    check, rng = REGISTRY.build("checks", "shuffled_pixels"), torch.Generator().manual_seed(3)
    corrupted = check.corrupt(train, 3, rng).images
    assert torch.equal(corrupted, images.flatten(1).gather(1, order).view_as(images))
    assert max(drawn) <= max(most, 72)
    assert sum(drawn) == 40 * 72


def test_half_of_every_class_is_half_of_the_data(searched):
    data = tiny_data(samples=60)
    train = corrupted("half_data", searched, data)
    assert torch.bincount(train.labels).tolist() == [10, 10, 10]
    pairs = {
        (image.sum().item(), int(label)) for image, label in zip(*pair(data.train), strict=True)
    }
    assert {(i.sum().item(), int(y)) for i, y in zip(*pair(train), strict=True)} < pairs


def pair(source):
    return source.images, source.labels


@pytest.mark.parametrize("name", ["random_labels", "shuffled_pixels", "half_data"])
def test_corrupted_data_changes_only_methods_that_use_data(name):
    for blind in ("random", "synflow"):  # at once, and in a hundred freezes
        context = context_with(blind, density=0.13)
        again = control(name, context.search(), context)
        assert same(again.mask, context.search().mask)
        assert again.info.density_target == 0.13, "37/288 would lead along other freezes"
    context = context_with("gem_miner")
    assert not same(control(name, context.search(), context).mask, context.search().mask)


@pytest.mark.parametrize("name", ["random_labels", "half_data", "invert"])
def test_a_control_keeps_as_many_weights_however_few_rounding_leaves(name):
    context = context_with("gem_miner", density=0.9, options={"regularizer.weight": 0.3})
    ticket = context_with("gem_miner", density=0.9).search()
    with pytest.raises(CollapseError, match="no weight of the network is kept"):
        context.search()
    assert control(name, ticket, context).kept == ticket.kept < budget(ticket.prunable, 0.9)


def test_data_that_is_not_in_memory_is_refused_before_anything_is_computed():
    class Stream:
        def __init__(self, source):
            self.targets = source.targets

    data = tiny_data()
    context = context_with("random", data=replace(data, train=Stream(data.train)))
    with pytest.raises(CheckError, match=r"Stream holds none; .*-o dataset\.memory=always"):
        REGISTRY.build("checks", "random_labels").check_fit(context)
