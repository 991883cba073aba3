"""Allocations spend the budget exactly, within what is alive, and nest as the density falls."""

import json
from math import floor, prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import DENSITIES, counts_of, dense, nests, networks

from gemkit import load_plugins
from gemkit.builtin.allocations import ErdosRenyiKernel, Global, Uniform
from gemkit.core.selection import apportion, keep_top
from gemkit.core.tensors import budget, kept, total
from gemkit.parts.allocation import Allocation

ALLOCATIONS = [Global(), Uniform(), ErdosRenyiKernel()]

every_allocation = pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda part: part.name)


@every_allocation
@settings(deadline=None, max_examples=60)
@given(networks(), st.floats(0.0001, 1))
def test_shares_sum_to_the_budget_and_never_exceed_what_is_alive(allocation, network, density):
    importance, alive = network
    shares = allocation.keep(importance, alive, density)
    assert [name for group in shares for name in group] == list(importance)
    assert sum(shares.values()) == min(budget(total(alive), density), kept(alive))
    for group, count in shares.items():
        assert 0 <= count <= kept({name: alive[name] for name in group})


@every_allocation
@settings(deadline=None, max_examples=40)
@given(networks())
def test_lower_densities_nest_inside_higher_ones(allocation, network):
    assert nests(allocation, *network)


@every_allocation
@settings(deadline=None, max_examples=40)
@given(networks())
def test_several_steps_end_where_one_does(allocation, network):
    importance, alive = network
    stepwise = alive
    for density in DENSITIES:
        stepwise = keep_top(importance, stepwise, allocation.keep(importance, stepwise, density))
        direct = keep_top(importance, alive, allocation.keep(importance, alive, density))
        assert all(torch.equal(stepwise[name], direct[name]) for name in alive)


class LargestRemainder(Allocation):
    """Share in proportion to size by largest remainders: a broken variant of `Uniform`."""

    name = "largest_remainder"

    def keep(self, importance, alive, density):
        goal = budget(total(alive), density)
        ideal = {name: goal * mask.numel() / total(alive) for name, mask in alive.items()}
        counts = {name: floor(share) for name, share in ideal.items()}
        neediest = sorted(ideal, key=lambda name: counts[name] - ideal[name])
        for name in neediest[: goal - sum(counts.values())]:
            counts[name] += 1
        return {(name,): count for name, count in counts.items()}


def test_largest_remainders_would_not_nest():
    importance = {"a": torch.rand(6), "b": torch.rand(6), "c": torch.rand(2)}
    alive = {name: torch.ones_like(value) for name, value in importance.items()}
    eleven, ten = 11 / 14, 10 / 14
    broken = LargestRemainder()
    assert counts_of(broken.keep(importance, alive, eleven)) == [5, 5, 1]
    assert counts_of(broken.keep(importance, alive, ten)) == [4, 4, 2]
    assert not nests(broken, importance, alive, [eleven, ten])
    assert nests(Uniform(), importance, alive, [eleven, ten])


def test_global_is_one_group_of_all_layers():
    layers = dense([(4, 3), (8,)])
    assert Global().keep(layers, layers, 0.25) == {("layer0", "layer1"): 5}


def test_uniform_gives_every_layer_its_density():
    layers = dense([(10, 10), (20, 30), (50,)])
    assert counts_of(Uniform().keep(layers, layers, 0.1)) == [10, 60, 5]


def test_a_layer_with_too_little_alive_leaves_its_share_to_the_others():
    layers = dense([(10, 10), (10, 10), (10, 10)])
    layers["layer1"].view(-1)[2:] = 0
    assert counts_of(Uniform().keep(layers, layers, 0.1)) == [14, 2, 14]


def test_erk_gives_narrow_layers_a_higher_density():
    layers = dense([(100, 100), (10, 10)])
    assert counts_of(ErdosRenyiKernel().keep(layers, layers, 0.01)) == [92, 9]


def test_alive_may_be_zeros_and_ones_of_any_type():
    layers = dense([(4, 3), (8,)])
    layers["layer1"][:5] = 0
    truths = {name: mask.bool() for name, mask in layers.items()}
    for allocation in ALLOCATIONS:
        assert allocation.keep(layers, layers, 0.6) == allocation.keep(layers, truths, 0.6)


def test_they_come_in_by_the_public_door():
    registry = load_plugins()
    built = [registry.build("allocations", name) for name in ("global", "uniform", "erk")]
    assert built == ALLOCATIONS


# --- against the numbers of jaxpruner ------------------------------------------------------------

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "erk.json").read_text())
golden_cases = pytest.mark.parametrize(
    ("network", "sparsity"),
    [
        (network, sparsity)
        for network in ("tinyconv", "resnet20")
        for sparsity in ("0.5", "0.8", "0.9")
    ],
)


def golden(network, sparsity):
    """Return the shapes, and how many weights upstream wants of each layer, as real numbers."""
    shapes = GOLDEN[network]["shapes"]
    zeros = GOLDEN[network]["sparsity"][sparsity]
    return shapes, [(1 - z) * prod(shape) for z, shape in zip(zeros, shapes, strict=True)]


@golden_cases
def test_erk_is_within_one_weight_of_upstream(network, sparsity):
    """Upstream rounds zeros down layer by layer, so keeps a few too many; we keep K exactly."""
    shapes, wanted = golden(network, sparsity)
    layers = dense(shapes)
    counts = counts_of(ErdosRenyiKernel().keep(layers, layers, round(1 - float(sparsity), 1)))
    assert sum(counts) == budget(total(layers), round(1 - float(sparsity), 1)) <= sum(wanted) + 1e-6
    assert max(abs(ours - theirs) for ours, theirs in zip(counts, wanted, strict=True)) < 1 + 1e-6


@golden_cases
def test_erk_with_the_total_of_upstream_only_rounds(network, sparsity):
    shapes, wanted = golden(network, sparsity)
    sizes = [prod(shape) for shape in shapes]
    counts = apportion([sum(shape) for shape in shapes], sizes, round(sum(wanted)))
    assert max(abs(ours - theirs) for ours, theirs in zip(counts, wanted, strict=True)) < 0.6
    assert [ours == size for ours, size in zip(counts, sizes, strict=True)] == [
        abs(theirs - size) < 1e-6 for theirs, size in zip(wanted, sizes, strict=True)
    ]


@golden_cases
def test_densities_without_kernels_would_miss_the_goldens(network, sparsity):
    shapes, wanted = golden(network, sparsity)
    sizes = [prod(shape) for shape in shapes]
    counts = apportion([sum(shape[:2]) for shape in shapes], sizes, round(sum(wanted)))
    assert max(abs(ours - theirs) for ours, theirs in zip(counts, wanted, strict=True)) > 1 + 1e-6
