"""Selection of units, against plain Python: whole units, in rank order, ties by position."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemkit.builtin.structures import Blocks, Filters, Rows, Weights
from gemkit.core import units
from gemkit.core.errors import FitError, ImportanceError
from gemkit.core.selection import apportion

STRUCTURES = {
    "filters": Filters(),
    "rows": Rows(),
    "nm": Blocks(n=1, m=2),
    "2:4": Blocks(n=2, m=4),
}
SHAPES = [(4, 4), (3, 8), (1, 4), (6, 4, 2, 1), (2, 4, 1, 1), (5, 4, 3, 3), (0, 4)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


# --- the reference -------------------------------------------------------------------------------


def positions(name, shape):
    """Return the flat positions of every unit of every pool, written out for each structure."""
    outputs, rest = shape[0], math.prod(shape[1:])
    if name == "filters":
        return [[[o * rest + i for i in range(rest)] for o in range(outputs)]]
    if name == "rows":
        return [[[o * rest + i] for i in range(rest)] for o in range(outputs)]
    size, inputs, area = STRUCTURES[name].m, shape[1], math.prod(shape[2:])
    return [
        [[(o * inputs + block + own) * area + place] for own in range(size)]
        for o in range(outputs)
        for place in range(area)
        for block in range(0, inputs, size)
    ]


def living_units(layer, values, alive):
    """Yield pool, rank in the pool, importance and living positions of every living unit."""
    for pool, of_pool in enumerate(layer):
        living = [[place for place in unit if alive[place]] for unit in of_pool]
        found = [(-sum(Fraction(values[p]) for p in unit), at) for at, unit in enumerate(living)]
        ranked = sorted(one for one, unit in zip(found, living, strict=True) if unit)
        for rank, (value, at) in enumerate(ranked):
            yield pool, rank, value, at, living[at]


def select_slowly(name, importance, alive, shares, per_pool=None):
    """Select units one after the other."""
    chosen = {layer: set() for layer in importance}
    for group, count in shares.items():
        queue = []
        for number, layer in enumerate(group):
            own = positions(name, importance[layer].shape)
            flat = importance[layer].double().flatten().tolist()
            lives = alive[layer].flatten().tolist()
            for pool, rank, value, at, places in living_units(own, flat, lives):
                turn = (rank, pool) if len(own) > 1 else (value, number, at)
                queue.append((turn, rank, layer, places))
        kept = 0
        for _, rank, layer, places in sorted(queue, key=lambda one: one[0]):
            if per_pool is not None:
                fits = rank < per_pool
            elif kept + len(places) > count:
                break
            else:
                fits = True
            if fits:
                kept += len(places)
                chosen[layer].update(places)
    return chosen


# --- cases ---------------------------------------------------------------------------------------


def layers_of(name, shapes, *, dtype, seed, share_alive, channels_last=False):
    """Draw importance in small steps, so that sums are exact and ties are many."""
    rng = torch.Generator().manual_seed(seed)
    importance, alive = {}, {}
    for number, shape in enumerate(shapes):
        drawn = torch.randint(-4, 5, shape, generator=rng).to(dtype)
        lives = torch.rand(shape, generator=rng) < share_alive
        if name == "filters":  # as freezes leave them
            lives &= torch.rand(shape[0], generator=rng).view(-1, *[1] * (len(shape) - 1)) < 0.8
        if dtype.is_floating_point:
            drawn[~lives] = math.nan
        if channels_last and len(shape) == 4:
            drawn = drawn.to(memory_format=torch.channels_last)
        importance[f"layer{number}"], alive[f"layer{number}"] = drawn, lives
    return importance, alive


def shares_of(alive, part, *, together):
    counts = {name: int(mask.sum() * part) for name, mask in alive.items()}
    return (
        {tuple(counts): sum(counts.values())} if together else {(n,): c for n, c in counts.items()}
    )


cases = st.fixed_dictionaries(
    {
        "name": st.sampled_from(list(STRUCTURES)),
        "shapes": st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
        "dtype": st.sampled_from(DTYPES),
        "seed": st.integers(0, 2**32 - 1),
        "share_alive": st.sampled_from([1.0, 0.7, 0.0]),
        "part": st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(0, 1),
        "channels_last": st.booleans(),
        "checked": st.booleans(),
    }
)


def masks_of(case):
    """Select with gemkit, and slowly; return both."""
    name, part, checked = case["name"], case["part"], case["checked"]
    drawn = {key: own for key, own in case.items() if key not in ("part", "checked")}
    importance, alive = layers_of(**drawn)
    structure = STRUCTURES[name]
    shares = shares_of(alive, part, together=name == "filters" and case["seed"] % 2 == 0)
    density = max(part, 1e-3)
    per_pool = None
    if name in ("nm", "2:4"):
        density = structure.n / structure.m
        per_pool = structure.n
    masks = structure.select(importance, alive, shares, density, checked=checked)
    clean = {one: value.nan_to_num(0) for one, value in importance.items()}
    return masks, select_slowly(name, clean, alive, shares, per_pool), alive, shares


def agrees(case):
    masks, expected, _, _ = masks_of(case)
    return all(
        set(mask.flatten().nonzero().flatten().tolist()) == expected[name]
        for name, mask in masks.items()
    )


@settings(max_examples=150)
@given(case=cases)
def test_units_are_those_that_plain_python_selects(case):
    assert agrees(case)


@settings(max_examples=80)
@given(case=cases)
def test_units_are_whole_counts_are_kept_and_nothing_returns(case):
    masks, _, alive, shares = masks_of(case)
    for name, mask in masks.items():
        assert mask.dtype == torch.bool
        assert not (mask & ~alive[name]).any()
        for pool in positions(case["name"], mask.shape):
            for unit in pool:
                lives = alive[name].flatten()[unit]
                assert mask.flatten()[unit].sum() in (0, lives.sum())
            if case["name"] in ("nm", "2:4"):
                places = torch.tensor(pool).flatten()
                living = int(alive[name].flatten()[places].sum())
                n = STRUCTURES[case["name"]].n
                assert int(mask.flatten()[places].sum()) == min(n, living)
    if case["name"] not in ("nm", "2:4"):
        for group, count in shares.items():
            assert sum(int(masks[name].sum()) for name in group) <= count
            if case["name"] == "rows":  # units of one weight fill the share
                assert sum(int(masks[name].sum()) for name in group) == count


@given(
    rows=st.lists(st.integers(0, 6), min_size=2, max_size=6),
    part=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_rows_share_a_count_as_apportion_shares_it_among_equals(rows, part, seed):
    alive = torch.zeros(len(rows), 6, dtype=torch.bool)
    for row, living in enumerate(rows):
        alive[row, :living] = True
    count = int(part * sum(rows))
    importance = torch.rand(alive.shape, generator=torch.Generator().manual_seed(seed))
    masks = Rows().select({"a": importance}, {"a": alive}, {("a",): count}, part)
    assert masks["a"].sum(1).tolist() == apportion([1] * len(rows), rows, count)


# --- the tests can fail --------------------------------------------------------------------------

EXAMPLES = [
    {
        "name": name,
        "shapes": [(4, 4), (6, 4, 2, 1)],
        "dtype": torch.float32,
        "seed": seed,
        "share_alive": 0.7,
        "part": 0.5,
        "channels_last": False,
        "checked": True,
    }
    for name, seed in itertools.product(STRUCTURES, range(20))
]


def continues_after_a_unit_that_does_not_fit(order, sizes, count):
    chosen, kept = torch.zeros_like(sizes, dtype=torch.bool), 0
    for at in order.tolist():
        if 0 < sizes[at] <= count - kept:
            chosen[at] = True
            kept += int(sizes[at])
    return chosen


def takes_one_more(order, sizes, count):
    return TRUE_ENTER(order, sizes, count + 1)


def last_of_equals_first(values, sizes):
    flipped = TRUE_ORDER(values.flip(-1), sizes.flip(-1))
    return values.shape[-1] - 1 - flipped


def counts_the_dead(importance, alive):
    return {name: value.nan_to_num(1).double() for name, value in importance.items()}


TRUE_ENTER, TRUE_ORDER = units._enter, units._order
BROKEN = {
    "_enter": [continues_after_a_unit_that_does_not_fit, takes_one_more],
    "_order": [last_of_equals_first],
    "living_values": [counts_the_dead],
}


@pytest.mark.parametrize(("name", "broken"), [(n, one) for n, own in BROKEN.items() for one in own])
def test_a_broken_selection_would_be_noticed(name, broken, monkeypatch):
    assert all(map(agrees, EXAMPLES))
    monkeypatch.setattr(units, name, broken)
    assert not all(map(agrees, EXAMPLES))


# --- what is refused -----------------------------------------------------------------------------


def test_rows_of_several_layers_cannot_compete():
    importance = {name: torch.rand(3, 4) for name in "ab"}
    alive = {name: torch.ones(3, 4, dtype=torch.bool) for name in "ab"}
    with pytest.raises(FitError, match="cannot compete across layers; choose allocation 'uniform'"):
        Rows().select(importance, alive, {("a", "b"): 6}, 0.25)
    with pytest.raises(FitError):
        Rows().check(alive, {("a", "b"): 6}, 0.25)
    Weights().check(alive, {("a", "b"): 6}, 0.25)
    Blocks().check(alive, {("a", "b"): 12}, 0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_importance_that_cannot_be_ranked_is_refused_with_its_layer(value):
    importance = {"a": torch.rand(3, 4)}
    importance["a"][1, 1] = value
    alive = {"a": torch.ones(3, 4, dtype=torch.bool)}
    with pytest.raises(ImportanceError, match="'a' has"):
        Filters().select(importance, alive, {("a",): 6}, 0.5)


def test_sums_in_half_precision_do_not_tie():
    """In bfloat16 the sums of both filters would be 256."""
    importance = torch.ones(2, 257, dtype=torch.bfloat16)
    importance[0, 0] = 0
    masks = Filters().select(
        {"a": importance}, {"a": torch.ones(2, 257, dtype=torch.bool)}, {("a",): 257}, 0.5
    )
    assert masks["a"].sum(1).tolist() == [0, 257]


@pytest.mark.parametrize(
    ("density", "kept"), [(1.0, 4), (0.76, 4), (0.75, 3), (0.51, 3), (0.5, 2), (0.1, 2)]
)
def test_blocks_keep_what_the_density_says_rounded_up_but_at_least_n(density, kept):
    assert Blocks(n=2, m=4).units_of(density, 4) == kept


def test_only_layers_whose_input_the_block_divides_fit():
    assert Blocks(m=4).fits((10, 8))
    assert Blocks(m=4).fits((10, 4, 3, 3))
    assert not Blocks(m=4).fits((10, 6))
    assert not Blocks(m=4).fits((8, 3, 4, 4))
    assert not Blocks(m=4).fits((8,))


def test_n_must_be_less_than_m():
    assert "n = 4, which must be less than m = 4" in Blocks(n=4, m=4).misfit(1.0)
    assert Blocks(n=1, m=4).misfit(0.25) is None
    assert "use --density 0.25" in Blocks(n=1, m=4).misfit(0.5)
