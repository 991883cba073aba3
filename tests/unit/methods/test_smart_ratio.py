"""Smart Ratio and listed densities: exact totals, the authors' counts, and mistakes told."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layers import DENSITIES, counts_of, dense, nests, networks
from tiny import CPU, tiny_data, tiny_net

from gemkit import load_plugins, search, select
from gemkit.core.errors import FitError, OptionError
from gemkit.core.selection import apportion, keep_top
from gemkit.core.tensors import budget, kept, total
from gemkit.methods.smart_ratio import Densities, SmartRatio

RESNET20 = [(16, 3, 3, 3), *6 * [(16, 16, 3, 3)], (32, 16, 3, 3), *5 * [(32, 32, 3, 3)]]
RESNET20 += [(64, 32, 3, 3), *5 * [(64, 64, 3, 3)], (10, 64)]


def kept_by(allocation, shapes, density):
    layers = dense(shapes)
    return counts_of(allocation.keep(layers, layers, density))


def refusal(allocation, shapes, density):
    with pytest.raises(FitError) as caught:
        kept_by(allocation, shapes, density)
    return str(caught.value)


# --- whatever the network ------------------------------------------------------------------------

ratios = st.none() | st.floats(0.01, 1)
smart_ratios = st.builds(
    SmartRatio,
    rule=st.sampled_from(["resnet", "vgg"]),
    fixed=st.sampled_from(["linear", "last"]),
    fixed_density=st.floats(0.01, 1),
    first=ratios,
    last=ratios,
)


@st.composite
def allocated(draw):
    """Draw a network, and an allocation of either kind for it."""
    importance, alive = draw(networks())
    listed = st.lists(st.floats(0, 1), min_size=len(alive), max_size=len(alive)).filter(any)
    either = smart_ratios | listed.map(lambda numbers: Densities(densities=tuple(numbers)))
    return draw(either), importance, alive


def feasible(allocation, importance, alive):
    """List the densities whose budget the allocation can meet; the others must be refused."""
    met = []
    for density in DENSITIES:
        try:
            allocation.keep(importance, alive, density)
        except FitError:
            continue
        met.append(density)
    return met


@settings(deadline=None, max_examples=200)
@given(allocated(), st.floats(0.0001, 1))
def test_shares_sum_to_the_budget_and_never_exceed_what_is_alive(case, density):
    allocation, importance, alive = case
    try:
        shares = allocation.keep(importance, alive, density)
    except FitError:
        assume(False)
    assert [name for group in shares for name in group] == list(importance)
    assert sum(shares.values()) == min(budget(total(alive), density), kept(alive))
    for (name,), count in shares.items():
        assert 0 <= count <= kept({name: alive[name]})


@settings(deadline=None, max_examples=100)
@given(allocated())
def test_lower_densities_nest_and_several_steps_end_where_one_does(case):
    allocation, importance, alive = case
    densities = feasible(*case)
    assert nests(allocation, importance, alive, densities)
    stepwise = alive
    for density in densities:
        stepwise = keep_top(importance, stepwise, allocation.keep(importance, stepwise, density))
        direct = keep_top(importance, alive, allocation.keep(importance, alive, density))
        assert all(torch.equal(stepwise[name], direct[name]) for name in alive)


@settings(deadline=None, max_examples=100)
@given(networks(), smart_ratios)
def test_it_refuses_just_what_is_below_its_fixed_layers(network, allocation):
    importance, alive = network
    met = feasible(allocation, importance, alive)
    assert met == DENSITIES[: len(met)]


# --- against the numbers of the authors ----------------------------------------------------------

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "smart_ratio.json").read_text())


@pytest.fixture(
    params=GOLDEN["cases"], ids=lambda c: f"{c['by']}-{c['network']}-{c['rule']}-{c['sparsity']}"
)
def golden(request):
    """Return the rule, shapes, density and counts of upstream."""
    case = request.param
    shapes = GOLDEN["shapes"][case["network"]]
    return case["rule"], shapes, round(1 - case["sparsity"], 2), case["kept"]


def differences(counts, theirs):
    return [ours - upstream for ours, upstream in zip(counts, theirs, strict=True)]


def test_counts_are_the_authors_up_to_what_they_round_away(golden):
    """Upstream rounds down the budget and each layer's part, so keeps up to 11 too few.

    Ours meet the budget, so are at most one above in layers that do not overflow. Where layers
    do, all that upstream loses on the way is missing in the layer the overflow ends in.
    """
    rule, shapes, density, theirs = golden
    counts = kept_by(SmartRatio(rule=rule), shapes, density)
    assert sum(counts) == budget(total(dense(shapes)), density)
    apart = differences(counts, theirs)
    ends_in = next((at for at, count in enumerate(theirs) if count < math.prod(shapes[at])), 0)
    assert abs(apart.pop(ends_in)) <= 4
    assert {-1, 0, 1}.issuperset(apart)


def broken_counts(rule, shapes, density, *, count_linear=True, redistribute=True):
    """Compute the rule in real numbers, with the mistakes that are easily made."""
    sizes = [math.prod(shape) for shape in shapes]
    layers = len(shapes) if count_linear else len(shapes) - 1
    raw = [
        ((layers - at) ** 2 + layers - at) / ((at + 1) ** 2 if rule == "vgg" else 1)
        for at in range(len(shapes) - 1)
    ]
    linear = 0.3 * sizes[-1]
    asked = [ratio * size for ratio, size in zip(raw, sizes, strict=False)]
    scale = (density * sum(sizes) - linear) / sum(asked)
    counts, excess = [], 0.0
    for want, size in zip(asked, sizes, strict=False):
        counts.append(min(size, scale * want + excess))
        excess = scale * want + excess - counts[-1] if redistribute else 0.0
    return [*counts, linear]


def test_the_real_valued_rule_agrees(golden):
    rule, shapes, density, _ = golden
    apart = differences(
        kept_by(SmartRatio(rule=rule), shapes, density), broken_counts(rule, shapes, density)
    )
    assert max(map(abs, apart)) < 4


@pytest.mark.parametrize(
    ("mistake", "rule", "density"),
    [("count_linear", "resnet", 0.1), ("redistribute", "vgg", 0.1), ("redistribute", "vgg", 0.5)],
)
def test_common_mistakes_would_be_noticed(mistake, rule, density):
    """L without the linear layer, and overflow that is cut off, are far from these counts."""
    wrong = broken_counts(rule, RESNET20, density, **{mistake: False})
    apart = differences(kept_by(SmartRatio(rule=rule), RESNET20, density), wrong)
    assert max(map(abs, apart)) > 20


def test_sharing_overflow_in_proportion_would_be_noticed():
    """Su et al. pass it on from front to back, which fills layers in turn."""
    counts = kept_by(SmartRatio(), RESNET20, 0.5)
    sizes = [math.prod(shape) for shape in RESNET20[:-1]]
    asked = [ratio * size for ratio, size in zip(SmartRatio()._ratios(20), sizes, strict=False)]
    shared = apportion(asked, sizes, sum(counts[:-1]))
    assert max(map(abs, differences(counts[:-1], shared))) > 1000


# --- which layers follow the rule ----------------------------------------------------------------


def test_the_paper_at_its_density():
    """ResNet-20 at 1.44 %: p_1 = .1008, p_2 = .0912, …, p_19 = .00144, classifier .3."""
    counts = kept_by(SmartRatio(), RESNET20, 0.0144)
    densities = [count / math.prod(shape) for count, shape in zip(counts, RESNET20, strict=True)]
    assert densities[0] == pytest.approx(0.1008, abs=1 / 432)
    assert densities[1] == pytest.approx(0.0912, abs=1 / 2304)
    assert densities[18] == pytest.approx(0.00144, abs=1 / 36864)
    assert densities[19] == 0.3


@pytest.mark.parametrize(("ends", "percent"), [((0.34491, 0.259375), 1.467), ((1.0, 1.0), 1.749)])
def test_versions_two_and_three_keep_the_middle_of_version_one(ends, percent):
    """At the density the paper reports, the layers in between are those of 1.44 %."""
    first, last = ends
    plain = kept_by(SmartRatio(), RESNET20, 0.0144)
    counts = kept_by(SmartRatio(first=first, last=last), RESNET20, percent / 100)
    assert (counts[0], counts[-1]) == (round(first * 432), round(last * 640))
    assert max(map(abs, differences(counts[1:-1], plain[1:-1]))) <= 1


def test_ends_of_their_own_leave_the_total_exact():
    counts = kept_by(SmartRatio(first=1.0, last=1.0), RESNET20, 0.0144)
    assert sum(counts) == budget(total(dense(RESNET20)), 0.0144)
    assert (counts[0], counts[-1]) == (432, 640)


def test_every_linear_layer_is_fixed_or_the_last_alone():
    shapes = [(8, 3, 3, 3), (8, 8, 3, 3), (50, 8), (10, 50)]
    both = kept_by(SmartRatio(), shapes, 0.4)
    assert both[2:] == [120, 150]
    one = kept_by(SmartRatio(fixed="last"), shapes, 0.4)
    assert one[3] == 150
    assert one[2] != 120
    assert kept_by(SmartRatio(last=0.5), shapes, 0.5)[2:] == [120, 250]


def test_a_convolution_can_be_the_classifier():
    shapes = [(8, 3, 3, 3), (8, 8, 3, 3), (10, 8, 1, 1)]
    assert kept_by(SmartRatio(fixed="last"), shapes, 0.2)[2] == 24
    assert kept_by(SmartRatio(), shapes, 0.2)[2] < 24


def test_full_layers_pass_on_and_the_classifier_takes_the_last():
    shapes = [(4, 3, 3, 3), (8, 4, 3, 3), (5, 8)]
    assert kept_by(SmartRatio(), shapes, 0.9) == [108, 272, 12]
    assert kept_by(SmartRatio(), shapes, 0.95) == [108, 288, 18]
    assert kept_by(SmartRatio(), shapes, 1.0) == [108, 288, 40]


def test_what_a_layer_that_died_in_part_cannot_take_goes_to_the_first_with_room():
    layers = dense([(10, 10, 1, 1), (10, 10, 1, 1), (10, 10, 1, 1), (5, 8)])
    layers["layer1"].view(-1)[3:] = 0
    shares = SmartRatio().keep(layers, layers, 0.2)
    assert counts_of(shares) == [44, 3, 9, 12]  # 29, 18 and 9 were asked for; 15 were in excess


# --- mistakes ------------------------------------------------------------------------------------


def test_a_budget_below_the_fixed_layers_is_told_with_the_least_density():
    shapes = [(4, 3, 3, 3), (8, 4, 3, 3), (5, 8)]
    said = refusal(SmartRatio(), shapes, 0.02)
    assert "density 0.02 keeps 9 of 436 weights" in said
    assert "gives 12 to layers of fixed density (layer2) alone" in said
    assert "at least 0.027523, or lower allocation.fixed_density" in said
    assert counts_of(SmartRatio().keep(dense(shapes), dense(shapes), 0.027523)) == [0, 0, 12]
    said = refusal(SmartRatio(first=1.0), shapes, 0.1)
    assert "120" in said
    assert said.endswith("allocation.fixed_density or allocation.first")


def test_a_network_without_convolutions_is_told_the_way_out():
    shapes = [(300, 64), (100, 300), (10, 100)]
    assert "allocation.fixed='last'" in refusal(SmartRatio(), shapes, 0.5)
    counts = kept_by(SmartRatio(fixed="last"), shapes, 0.1)
    assert counts[2] == 300
    assert counts[0] / 19200 > counts[1] / 30000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": "mobilenet"}, "allocation.rule = 'mobilenet'"),
        ({"fixed_density": 0.0}, "allocation.fixed_density = 0.0: should be greater than 0"),
        ({"first": 1.5}, "allocation.first = 1.5: should be less than or equal to 1"),
    ],
)
def test_fields_have_bounds(fields, words):
    with pytest.raises(OptionError) as caught:
        load_plugins().build("allocations", "smart_ratio", fields)
    assert words in str(caught.value)


# --- listed densities ----------------------------------------------------------------------------


def test_densities_that_meet_the_budget_are_met():
    shapes = [(10, 10, 1, 1), (20, 30), (50,)]
    assert kept_by(Densities(densities=(0.5, 0.1, 0.2)), shapes, 120 / 750) == [50, 60, 10]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1)), min_size=1, max_size=8))
def test_the_densities_of_any_counts_give_the_counts_back(layers):
    sizes = [size for size, _ in layers]
    counts = [round(part * size) for size, part in layers]
    assume(any(counts))
    listed = tuple(count / size for count, size in zip(counts, sizes, strict=True))
    shapes = [(size,) for size in sizes]
    assert kept_by(Densities(densities=listed), shapes, sum(counts) / sum(sizes)) == counts


def test_another_budget_scales_them_and_full_layers_pass_on():
    shapes = [(100,), (1000,)]
    listed = Densities(densities=(0.4, 0.1))
    assert kept_by(listed, shapes, 70 / 1100) == [20, 50]
    assert kept_by(listed, shapes, 0.5) == [100, 450]


@pytest.mark.parametrize(
    ("densities", "words"),
    [
        ((0.5,), "lists 1 layer, but the network has 2 prunable, from 'layer0' to 'layer1'"),
        ((0.0, 0.0), "are all 0"),
    ],
)
def test_densities_that_do_not_fit_are_told(densities, words):
    assert words in refusal(Densities(densities=densities), [(3,), (4,)], 0.5)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([0.5, 1.5], "allocation.densities.1 = 1.5: should be less than or equal to 1"),
        ([-0.1], "allocation.densities.0 = -0.1: should be greater than or equal to 0"),
        ([], "allocation.densities = []"),
    ],
)
def test_listed_densities_have_bounds(listed, words):
    with pytest.raises(OptionError) as caught:
        load_plugins().build("allocations", "densities", {"densities": listed})
    assert words in str(caught.value)


# --- through the engine --------------------------------------------------------------------------


def test_the_pruner_draws_exact_counts_at_random():
    """Sampling every weight by itself would give other counts with every seed."""
    data, net = tiny_data(), tiny_net()
    found = [
        search("smart_ratio", net, data, density=0.4, seed=seed, runtime=CPU) for seed in range(4)
    ]
    layers = {name: torch.ones_like(mask) for name, mask in found[0].mask.items()}
    expected = counts_of(SmartRatio().keep(layers, layers, 0.4))
    assert [[layer.kept for layer in ticket.layers] for ticket in found] == 4 * [expected]
    assert len({tuple(ticket.mask["0.weight"].flatten().tolist()) for ticket in found}) == 4


def test_hybrid_tickets_keep_the_largest_weights_of_each_layer():
    registry = load_plugins()
    recipe = registry.recipe("smart_ratio", parts={"scores": "magnitude"})
    net = tiny_net()
    ticket = search(recipe, net, tiny_data(), density=0.4, runtime=CPU)
    for name, mask in ticket.mask.items():
        size = net.get_parameter(name).detach().abs()
        if 0 < mask.sum() < mask.numel():
            assert size[mask].min() >= size[~mask].max()


def test_any_importance_can_be_selected_with_it():
    importance = {"conv.weight": torch.rand(8, 3, 3, 3), "fc.weight": torch.rand(10, 8)}
    masks = select(importance, 0.2, allocation="smart_ratio")
    assert [int(mask.sum()) for mask in masks.values()] == [35, 24]


def test_what_cannot_be_met_at_the_end_is_refused_before_training():
    recipe = load_plugins().recipe("gem_miner", parts={"allocation": "smart_ratio"})
    events = []
    with pytest.raises(FitError, match="layers of fixed density"):
        search(
            recipe,
            tiny_net(),
            tiny_data(),
            density=0.01,
            epochs=4,
            runtime=CPU,
            observers=[events.append],
        )
    assert events == []
