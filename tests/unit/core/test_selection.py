"""Selection equals a stable sort, and budgets are split without rounding errors."""

from contextlib import contextmanager, nullcontext
from fractions import Fraction
from heapq import heappop
from itertools import pairwise
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemkit.core import topk
from gemkit.core.errors import ImportanceError
from gemkit.core.selection import Shares, apportion, keep_top, keep_top_unchecked
from gemkit.core.tensors import Tensors, kept

SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 3, 3, 1), (6, 5, 3, 3), (64, 33)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


# --- reference and test problems -----------------------------------------------------------------


class Problem(NamedTuple):
    importance: Tensors
    alive: Tensors
    shares: Shares

    def solve(self):
        return keep_top(*self)


def flat(tensors, group):
    return np.concatenate([tensors[name].double().numpy().ravel(order="C") for name in group])


def by_stable_sort(importance, alive, shares):
    """Sort each group by importance (descending), then position; keep the first alive ones."""
    masks = {}
    for group, count in shares.items():
        order = np.argsort(-flat(importance, group), kind="stable")
        living = flat(alive, group)[order] != 0
        mask = np.zeros(order.size, dtype=bool)
        mask[order[living][:count]] = True
        ends = np.cumsum([alive[name].numel() for name in group])[:-1]
        for name, part in zip(group, np.split(mask, ends), strict=True):
            masks[name] = torch.from_numpy(part).view(alive[name].shape)
    return masks


def equal(these, those):
    return these.keys() == those.keys() and all(
        these[name].dtype == torch.bool and torch.equal(these[name], those[name]) for name in these
    )


VALUES = {
    "all different": lambda n, rng: torch.randperm(n, generator=rng).double() - n // 2,
    "random": lambda n, rng: torch.randn(n, generator=rng),
    "few values": lambda n, rng: torch.randint(-1, 3, (n,), generator=rng).float(),
    "all equal": lambda n, rng: torch.zeros(n),
    "mostly zero": lambda n, rng: torch.randn(n, generator=rng).mul_(
        torch.rand(n, generator=rng) < 0.1
    ),
    "clipped": lambda n, rng: torch.randn(n, generator=rng).clamp_(0, 1),
    "rising": lambda n, rng: torch.arange(n).float(),
}

LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda tensor: torch.stack([tensor, tensor + 1], dim=-1)[..., 0],
    "channels last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
}


def lay_out(tensor, layout):
    fits = {"transposed": tensor.dim() > 1, "channels last": tensor.dim() == 4}
    return LAYOUTS[layout](tensor) if fits.get(layout, True) else tensor


def some_alive(shape, share, dtype, rng):
    return (torch.rand(shape, generator=rng) < share).to(dtype)


@st.composite
def problems(draw, values=tuple(VALUES), dtypes=tuple(DTYPES), shapes=tuple(SHAPES)):
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind, dtype = draw(st.sampled_from(values)), draw(st.sampled_from(dtypes))
    chosen = draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=5))
    layout = draw(st.sampled_from(list(LAYOUTS)))
    share = draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    mask_type = draw(st.sampled_from([torch.bool, torch.float32]))
    sizes = [int(np.prod(shape)) for shape in chosen]
    pieces = torch.split(VALUES[kind](sum(sizes), rng).to(dtype), sizes)
    importance, alive = {}, {}
    for index, (piece, shape) in enumerate(zip(pieces, chosen, strict=True)):
        importance[f"layer{index}"] = lay_out(piece.reshape(shape), layout)
        alive[f"layer{index}"] = lay_out(some_alive(shape, share, mask_type, rng), layout)
    return Problem(importance, alive, draw(shares_of(alive)))


@st.composite
def shares_of(draw, alive):
    """Group the layers in any order, each group with a feasible count."""
    names = draw(st.permutations(list(alive)))
    cuts = draw(st.sets(st.integers(1, len(names) - 1))) if len(names) > 1 else set()
    groups = [tuple(names[start:end]) for start, end in pairwise([0, *sorted(cuts), len(names)])]
    present = [kept({name: alive[name] for name in group}) for group in groups]
    return {group: draw(st.integers(0, most)) for group, most in zip(groups, present, strict=True)}


@contextmanager
def shortcuts(small=0):
    """Use the shortcuts for large tensors on small ones too."""
    with mock.patch.object(topk, "_SMALL", small):
        yield


# --- which weights -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(problems())
def test_equals_a_stable_sort(problem):
    assert equal(problem.solve(), by_stable_sort(*problem))


@settings(deadline=None, max_examples=200)
@given(problems(), st.sampled_from([0, 8, 100]))
def test_equals_a_stable_sort_by_every_shortcut(problem, small):
    with shortcuts(small):
        assert equal(problem.solve(), by_stable_sort(*problem))


@settings(deadline=None, max_examples=150)
@given(problems())
def test_the_unchecked_version_gives_the_same_masks(problem):
    assert equal(keep_top_unchecked(*problem), by_stable_sort(*problem))


def test_the_unchecked_version_ranks_integers_and_refuses_negative_counts():
    importance = {"a": torch.tensor([3, 1, 2]), "b": torch.tensor([True, False])}
    alive = {name: torch.ones(len(one), dtype=torch.bool) for name, one in importance.items()}
    shares = {("a", "b"): 2}
    assert equal(keep_top_unchecked(importance, alive, shares), keep_top(importance, alive, shares))
    with pytest.raises(ValueError, match="asked to keep -1"):
        keep_top_unchecked(importance, alive, {("a", "b"): -1})


@settings(deadline=None, max_examples=100)
@given(problems())
def test_counts_are_exact_and_nothing_better_is_dropped(problem):
    masks = problem.solve()
    for group, count in problem.shares.items():
        mask, living = flat(masks, group) != 0, flat(problem.alive, group) != 0
        values = flat(problem.importance, group)
        assert mask.sum() == count
        assert not (mask & ~living).any()
        dropped = living & ~mask
        assert not mask.any() or not dropped.any() or values[mask].min() >= values[dropped].max()


@settings(deadline=None, max_examples=50)
@given(problems(dtypes=(torch.float32, torch.float64)), st.integers(-10, 10))
def test_scaling_importance_changes_nothing(problem, power):
    scaled = {name: value * 2.0**power for name, value in problem.importance.items()}
    assert equal(problem.solve(), keep_top(scaled, problem.alive, problem.shares))


@settings(deadline=None, max_examples=50)
@given(problems(values=("all different",), dtypes=(torch.float64,)))
def test_without_ties_the_order_of_layers_does_not_matter(problem):
    shares = {group[::-1]: count for group, count in problem.shares.items()}
    backwards = dict(reversed(problem.importance.items()))
    turned = keep_top(backwards, problem.alive, shares)
    assert list(turned) == list(backwards)
    assert equal(problem.solve(), turned)


@settings(deadline=None, max_examples=50)
@given(problems(), st.floats(0, 1))
def test_a_smaller_count_keeps_a_subset(problem, fraction):
    fewer = {group: int(count * fraction) for group, count in problem.shares.items()}
    more, less = problem.solve(), keep_top(problem.importance, problem.alive, fewer)
    assert not any((less[name] & ~more[name]).any() for name in more)


@settings(deadline=None, max_examples=50)
@given(problems())
def test_selecting_again_changes_nothing(problem):
    masks = problem.solve()
    assert equal(keep_top(problem.importance, masks, problem.shares), masks)


@settings(deadline=None, max_examples=200)
@given(problems(values=("random", "few values", "clipped")), st.data())
def test_no_guess_of_a_bracket_can_change_the_result(problem, data):
    offered = st.sampled_from([-torch.inf, *flat(problem.importance, problem.alive), torch.inf])
    guess = sorted([data.draw(offered), data.draw(offered)])
    if data.draw(st.booleans()):
        guess = [guess[0], guess[0]]
    with shortcuts(), mock.patch.object(topk, "bracket", return_value=tuple(guess)):
        assert equal(problem.solve(), by_stable_sort(*problem))


LARGE = 1_100_003


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "all different"])
def test_large_layers_are_exact_too(kind):
    rng = torch.Generator().manual_seed(1)
    sizes = [10, 400_000, LARGE - 400_010]
    values = torch.split(VALUES[kind](LARGE, rng), sizes)
    importance = dict(zip("abc", values, strict=True))
    alive = {name: torch.ones_like(value) for name, value in importance.items()}
    alive["b"] = some_alive(400_000, 0.5, torch.bool, rng)
    for count in (1, LARGE // 70, LARGE // 10, LARGE // 2):
        problem = Problem(importance, alive, {("a", "b", "c"): count})
        assert equal(problem.solve(), by_stable_sort(*problem))


def taken_route(values, count):
    """Select from one tensor; return whether each bracket gave a result ([] if none was tried)."""
    outcome = []

    def spy(*arguments):
        outcome.append(between(*arguments))
        return outcome[-1]

    between = topk._top_between
    problem = Problem({"a": values}, {"a": torch.ones_like(values)}, {("a",): count})
    with mock.patch.object(topk, "_top_between", spy):
        assert equal(problem.solve(), by_stable_sort(*problem))
    return [result is not None for result in outcome]


def test_a_bracket_is_used_for_large_tensors_only():
    values = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    assert taken_route(values, LARGE // 50) == [True]
    assert taken_route(values[: LARGE // 70], LARGE // 500) == []


def test_a_misleading_sample_does_not_change_the_result():
    stride = 103  # the stride for LARGE entries
    values = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    values[::stride] += 100
    assert taken_route(values, LARGE // 50) == [False]


def test_a_bracket_full_of_ties_is_not_ranked():
    values = torch.arange(LARGE).div(LARGE)
    values[: LARGE // 2] = 0.5 + 1 / LARGE
    with mock.patch.object(topk, "bracket", return_value=(0.5, 0.50001)):
        assert taken_route(values, LARGE * 3 // 4) == [False]


def test_many_ties_need_no_ranking():
    values = torch.zeros(LARGE)
    values[:1000] = 1
    with mock.patch.object(topk, "_nth_largest", mock.Mock(side_effect=topk._nth_largest)) as rank:
        assert taken_route(values, LARGE // 2) == []
    assert max(len(call.args[0]) for call in rank.call_args_list) < LARGE // 50


elsewhere = mock.patch.object(torch.Tensor, "is_cpu", False)
"""Code that asks where a tensor lies is told that it is not on the CPU."""


@settings(deadline=None, max_examples=100)
@given(problems())
def test_other_devices_keep_the_same(problem):
    with elsewhere:
        assert equal(problem.solve(), by_stable_sort(*problem))


@pytest.mark.parametrize("place", [nullcontext(), elsewhere], ids=["here", "elsewhere"])
def test_every_device_refuses_what_cannot_be_ranked(place):
    alive = {name: torch.ones(3, dtype=torch.bool) for name in "ab"}
    fine, shares = {"a": torch.arange(3.0), "b": torch.arange(3.0)}, {("a", "b"): 4}
    with place:
        keep_top(fine, alive, shares, in_use=alive)
        with pytest.raises(ImportanceError, match="'b' has 1 nan and 0 inf among 3"):
            keep_top(fine | {"b": torch.tensor([1, 2, torch.nan])}, alive, shares)
        equal_b = fine | {"b": torch.ones(3)}
        keep_top(equal_b, alive, shares)
        with pytest.raises(ImportanceError, match="all weights of 'b' that are left"):
            keep_top(equal_b, alive, {("a", "b"): 3}, in_use=alive)
        with pytest.raises(ValueError, match="asked to keep 7 of the 6"):
            keep_top(fine, alive, {("a", "b"): 7})


def test_selects_on_any_device(device):
    rng = torch.Generator().manual_seed(0)
    importance = {name: torch.randn(300, 100, generator=rng) for name in "ab"}
    alive = {name: some_alive((300, 100), 0.5, torch.bool, rng) for name in "ab"}
    shares = {("a", "b"): 700}
    there = [{name: part.to(device) for name, part in side.items()} for side in (importance, alive)]
    masks = keep_top(*there, shares)
    expected = by_stable_sort(importance, alive, shares)
    assert equal({name: mask.cpu() for name, mask in masks.items()}, expected)


def test_a_group_may_mix_precisions():
    half = torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16)
    single = torch.tensor([1.001, 1.003])  # in bfloat16 both would be 1
    importance, alive = {"a": half, "b": single}, {"a": half > 0, "b": single > 0}
    masks = keep_top(importance, alive, {("a", "b"): 2})
    assert [masks[name].tolist() for name in "ab"] == [[False, True], [False, True]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64])
def test_integers_and_booleans_are_ranked_as_floats(dtype):
    importance = {"a": torch.tensor([1, 0, 1, 0, 1]).to(dtype)}
    mask = keep_top(importance, {"a": torch.ones(5, dtype=torch.bool)}, {("a",): 2})["a"]
    assert mask.tolist() == [True, False, True, False, False]


def test_complex_importance_is_refused_by_name():
    importance = {"a": torch.ones(3, dtype=torch.complex64)}
    with pytest.raises(ImportanceError, match="importance of 'a' is complex"):
        keep_top(importance, {"a": torch.ones(3, dtype=torch.bool)}, {("a",): 2})


def test_a_result_owns_its_memory_and_needs_no_gradient():
    scores = torch.randn(5).requires_grad_()
    alive = torch.ones(5, dtype=torch.bool)
    for count in (2, 5):
        mask = keep_top({"a": scores}, {"a": alive}, {("a",): count})["a"]
        mask[:] = False
        assert alive.all()


def test_importance_that_is_not_finite_is_refused_by_name():
    values = {"a": torch.ones(4), "b": torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])}
    alive = {name: torch.ones(4) for name in values}
    with pytest.raises(ImportanceError, match=r"but 'b' has 1 nan and 2 inf among 4:"):
        keep_top(values, alive, {("a", "b"): 2})


@pytest.mark.parametrize("size", [4, 40_000, LARGE])
def test_importance_of_pruned_weights_may_be_anything(size):
    values = torch.arange(size).float()
    values[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    alive = torch.ones(size)
    alive[:3] = 0
    mask = keep_top({"a": values}, {"a": alive}, {("a",): 1})["a"]
    assert mask.nonzero().tolist() == [[size - 1]]


def test_finite_importance_whose_sum_overflows_is_fine():
    values = torch.tensor([3e38, 2e38, 3e38])
    mask = keep_top({"a": values}, {"a": torch.ones(3)}, {("a",): 2})["a"]
    assert mask.tolist() == [True, False, True]


@pytest.mark.parametrize("count", [-1, 3])
def test_an_infeasible_count_is_an_internal_error(count):
    alive = torch.tensor([True, False, True])
    with pytest.raises(ValueError, match=rf"asked to keep {count} of the 2 alive weights of"):
        keep_top({"a": torch.ones(3)}, {"a": alive}, {("a",): count})


@pytest.mark.parametrize("shares", [{("a",): 1}, {("a", "b"): 1, ("b",): 1}, {("a", "c"): 1}])
def test_every_layer_is_in_one_group(shares):
    values = {"a": torch.ones(3), "b": torch.ones(3)}
    with pytest.raises(ValueError, match=r"every layer of .* once"):
        keep_top(values, values, shares)


# Common wrong implementations, and how they fail.


def by_threshold(compare, importance, alive, shares):
    """Compare with the count-th largest value of each group (one layer each, all alive)."""
    ((group, count),) = shares.items()
    values = importance[group[0]]
    return {group[0]: compare(values, values.reshape(-1).sort(descending=True)[0][count - 1])}


@pytest.mark.parametrize(("compare", "keeps"), [(torch.ge, 4), (torch.gt, 1)])
def test_comparing_with_a_threshold_keeps_or_drops_all_ties(compare, keeps):
    values = torch.tensor([1.0, 2.0, 1.0, 1.0])
    problem = Problem({"a": values}, {"a": torch.ones(4)}, {("a",): 2})
    broken = by_threshold(compare, *problem)
    assert kept(broken) == keeps
    assert not equal(broken, by_stable_sort(*problem))
    assert problem.solve()["a"].tolist() == [True, True, False, False]


def test_ties_by_memory_order_would_differ():
    values = torch.zeros(2, 2, 1, 2).contiguous(memory_format=torch.channels_last)
    problem = Problem({"a": values}, {"a": torch.ones(2, 2, 1, 2)}, {("a",): 2})
    memory = torch.zeros(8, dtype=torch.bool).index_fill_(0, torch.arange(2), True)
    broken = {"a": memory.as_strided(values.shape, values.stride())}
    assert kept(broken) == 2
    assert not equal(broken, by_stable_sort(*problem))
    assert equal(problem.solve(), by_stable_sort(*problem))


# --- how many ------------------------------------------------------------------------------------


def seat_by_seat(weights, capacity, total, quotient=Fraction):
    """Give each unit to the largest quotient; ties go to the lower index."""
    counts = [0] * len(weights)
    for _ in range(total):
        free = [index for index, count in enumerate(counts) if count < capacity[index]]
        winner = max(free, key=lambda i: (quotient(weights[i], 2 * counts[i] + 1), -i))
        counts[winner] += 1
    return counts


def largest_remainders(weights, capacity, total):
    """Round shares down and give the rest to the largest remainders."""
    shares = [Fraction(weight * total, sum(weights)) for weight in weights]
    counts = [int(share) for share in shares]
    neediest = sorted(range(len(weights)), key=lambda i: counts[i] - shares[i])
    for index in neediest[: total - sum(counts)]:
        counts[index] += 1
    return counts


@st.composite
def elections(draw, lightest=0, heaviest=50, roomiest=40):
    layer = st.tuples(st.integers(lightest, heaviest), st.integers(0, roomiest))
    layers = draw(st.lists(layer, min_size=1, max_size=7))
    weights, capacity = zip(*layers, strict=True)
    return list(weights), list(capacity), draw(st.integers(0, sum(capacity)))


@settings(deadline=None, max_examples=200)
@given(elections())
def test_apportioning_equals_giving_seat_by_seat(election):
    assert apportion(*election) == seat_by_seat(*election)


@settings(deadline=None, max_examples=100)
@given(elections(lightest=1, heaviest=3, roomiest=10))
def test_equal_quotients_go_to_the_lower_index(election):
    assert apportion(*election) == seat_by_seat(*election)


@settings(deadline=None, max_examples=100)
@given(elections(heaviest=10**9, roomiest=10**8), st.data())
def test_a_smaller_total_gives_no_layer_more(election, data):
    weights, capacity, total = election
    less = data.draw(st.integers(0, total))
    more, fewer = apportion(weights, capacity, total), apportion(weights, capacity, less)
    assert (sum(more), sum(fewer)) == (total, less)
    assert all(
        0 <= few <= many <= room for few, many, room in zip(fewer, more, capacity, strict=True)
    )


def test_largest_remainders_would_give_a_smaller_total_more():
    weights, capacity = [6, 6, 2], [6, 6, 2]
    assert largest_remainders(weights, capacity, 10) == [4, 4, 2]
    assert largest_remainders(weights, capacity, 11) == [5, 5, 1]
    assert apportion(weights, capacity, 10) == [5, 4, 1]
    assert apportion(weights, capacity, 11) == [5, 5, 1]


@settings(deadline=None, max_examples=50)
@given(elections(lightest=1))
def test_the_surplus_of_full_layers_is_shared_in_proportion(election):
    weights, capacity, total = election
    counts = apportion(weights, capacity, total)
    open_layers = [i for i, room in enumerate(capacity) if counts[i] < room]
    assume(open_layers)
    rest = sum(counts[i] for i in open_layers)
    alone = apportion([weights[i] for i in open_layers], [total] * len(open_layers), rest)
    assert alone == [counts[i] for i in open_layers]


def test_apportioning_is_exact_where_floats_are_not():
    weights, capacity = [10**17, 10**17 + 1], [5, 5]
    assert apportion(weights, capacity, 1) == [0, 1]
    floats = seat_by_seat(weights, capacity, 1, quotient=lambda weight, odd: float(weight) / odd)
    assert floats == [1, 0]


def test_layers_of_weight_zero_are_filled_last():
    assert apportion([0, 3, 0, 1], [9, 2, 9, 1], 3) == [0, 2, 0, 1]
    assert apportion([0, 3, 0, 1], [9, 2, 9, 1], 14) == [9, 2, 2, 1]
    assert apportion([0], [10**9], 10**8) == [10**8]


def test_apportioning_a_hundred_million_takes_a_few_steps():
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 10**6, 200).tolist()
    capacity = rng.integers(0, 2 * 10**6, 200).tolist()
    total = 10**8 if sum(capacity) > 10**8 else sum(capacity) // 2
    with mock.patch("gemkit.core.selection.heappop", wraps=heappop) as step:
        assert sum(apportion(weights, capacity, total)) == total
    assert step.call_count <= 200


@pytest.mark.parametrize("total", [-1, 6])
def test_an_infeasible_total_is_an_error(total):
    with pytest.raises(ValueError, match=f"cannot split {total} over capacities that sum to 5"):
        apportion([1, 1], [2, 3], total)


def test_no_layers_share_nothing():
    assert apportion([], [], 0) == []
