"""Records: validation, grouping over seeds, labels, verdicts and spreads."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import DENSITIES, METHODS, record, study

from gemkit.core.errors import OptionError
from gemkit.report.groups import group, series_of
from gemkit.report.judged import judged, measured
from gemkit.report.records import records_from
from gemkit.report.spread import shown_worse, spread_of
from gemkit.sanity.trials import TICKET, Trial
from gemkit.sanity.verdicts import confidence_interval, verdicts
from gemkit.training.metrics import ACCURACY, METRICS


def grouped(records):
    return group(records_from(records))


def test_a_study_has_a_group_for_each_cell_and_a_series_for_each_method():
    groups = grouped(study())
    assert len(groups) == 12
    assert series_of(groups) == list(METHODS)
    assert {one.density for one in groups} == set(DENSITIES)
    assert {len(one.records) for one in groups} == {5}


def test_cells_with_other_settings_are_not_pooled():
    other = record(seed=1)
    other["config"]["search"]["lr"] = 0.2
    one, two = grouped([record(), other])
    assert (one.label, two.label) == ("gem_miner, search.lr 0.1", "gem_miner, search.lr 0.2")


def test_a_setting_that_differs_between_densities_alone_makes_no_other_series():
    other = record(density=0.1)
    other["config"]["search"]["lr"] = 0.2
    assert [one.label for one in grouped([record(), other])] == ["gem_miner"] * 2


def test_labels_name_the_fewest_settings_and_axes_first():
    first, second = record(), record()
    second["config"]["recipe"]["regularizer"] = {"name": "auto", "gain": 3}
    labels = [one.label for one in grouped([first, second])]
    assert labels == ["gem_miner, regularizer l2", "gem_miner, regularizer auto"]
    first["axes"], second["axes"] = {"strength": 1}, {"strength": 2}
    labels = [one.label for one in grouped([first, second])]
    assert labels == ["gem_miner, strength 1", "gem_miner, strength 2"]


def test_labels_stay_different_when_they_are_cut():
    records = [record(axes={"name": f"{'long ' * 50}{number}"}) for number in range(3)]
    labels = [one.label for one in grouped(records)]
    assert len(set(labels)) == 3
    assert max(map(len, labels)) < 90


def test_variants_are_named():
    labels = [one.label for one in grouped([record(variant=name) for name in ("mine", None)])]
    assert labels == ["gem_miner, mine", "gem_miner"]


def test_a_seed_that_comes_twice_counts_once():
    poor = record(after=None, state="partial", controls={"reinit": {"after": 0.5}}, layers=[])
    [one] = grouped([poor, record()])
    assert [own.state for own in one.records] == ["done"]
    assert set(one.checks()) == {"shuffle", "permute", "reinit"}
    assert one.layers()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"after": float("nan")}, "record 2 cannot be reported: after"),
        ({"density": 2}, "density"),
        ({"layers": [["a", -1, 3]]}, "layers"),
        ({"pruner": "x" * 10_000}, "pruner"),
        ({"state": "odd"}, "state"),
    ],
)
def test_a_wrong_record_is_refused_in_one_sentence(change, words):
    with pytest.raises(OptionError, match=words) as error:
        records_from([record(), record(**change)])
    assert "\n" not in str(error.value)


def test_control_characters_of_names_are_escaped():
    [one] = records_from([record(model="a\x1b[31m\nb\u202e")])
    assert one.model == "a\\x1b[31m\\nb\\u202e"


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=12))
def test_an_interval_is_that_of_the_verdicts(values):
    spread = spread_of(values)
    low, high = confidence_interval(values)
    assert spread.mean - spread.half == pytest.approx(low, abs=1e-6)
    assert spread.mean + spread.half == pytest.approx(high, abs=1e-6)


def test_two_seeds_have_no_interval_and_none_have_no_mean():
    assert spread_of([0.5, 0.7]) == (pytest.approx(0.6), None, 2)
    assert spread_of([]) is None
    assert spread_of([0.5, 0.7]).text(ACCURACY) == "60.0"
    assert spread_of([0.5, 0.5, 0.5]).text(ACCURACY) == "50.0 ± 0.0"


def test_worse_is_a_paired_comparison_in_the_direction_of_the_metric():
    best = {seed: 0.9 + 0.05 * (seed % 2) for seed in range(4)}
    slightly = {seed: value - 0.01 for seed, value in best.items()}
    assert shown_worse(slightly, best, ACCURACY)
    assert not shown_worse(best, slightly, ACCURACY)
    assert shown_worse(best, slightly, METRICS["mean_squared_error"])
    assert shown_worse({0: 0.1, 1: 0.1, 7: 0.1}, best, ACCURACY) is None


def test_verdicts_are_those_of_the_checks():
    records = [record(seed=seed) for seed in range(5)]
    trials = [
        Trial(check=check, seed=one["seed"], kept=1, prunable=2, **values)
        for one in records
        for check, values in (
            (TICKET, {"before": one["before"], "after": one["after"]}),
            *one["controls"].items(),
        )
    ]
    expected = verdicts(trials, 0.01, {"permute": "same"})
    found = judged(grouped(records), 0.01, {"permute": "same"})
    assert [one.verdict for one in found] == expected
    assert [one.verdict.outcome for one in found] == ["passes", "passes"]


def test_measurements_have_mean_and_standard_deviation():
    records = [record(seed=seed) for seed in range(3)]
    [(_, summary)] = measured(grouped(records))
    values = [one["measurements"]["linear_mode_connectivity"]["barrier"] for one in records]
    assert (summary.mean, summary.std) == (statistics.fmean(values), statistics.stdev(values))


def test_curves_are_means_over_the_seeds_that_have_an_epoch():
    short = record(seed=1)
    short["curves"]["search"] = short["curves"]["search"][:3]
    [one] = grouped([record(), short])
    curve = one.curve("search", lambda moment: moment.metric)
    assert [(epoch, spread.n) for epoch, spread in curve][2:4] == [(3, 2), (4, 1)]
    assert one.bound()[0] == (0.0, 1.0)


def test_a_bound_starts_with_every_weight():
    [one] = grouped([record(bound=[[3, 0.5], [5, 0.1]])])
    assert one.bound() == [(0.0, 1.0), (3.0, 0.5), (5.0, 0.1)]
    [one] = grouped([record(bound=[[0, 0.1]])])
    assert one.bound() == [(0.0, 0.1)]
