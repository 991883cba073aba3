"""Verdicts on synthetic numbers: right as often as promised, and undecided when in doubt."""

import builtins
import random
import statistics

import pytest
from scipy import stats

from gemkit.core.errors import GemkitError
from gemkit.report.picture import draw
from gemkit.report.verdicts import verdict_table
from gemkit.sanity.trials import Trial
from gemkit.sanity.verdicts import LEAST_SEEDS, confidence_interval, judge, more_seeds, verdicts


def drops(mean, scatter, seeds, rng):
    return [rng.gauss(mean, scatter) for _ in range(seeds)]


def outcomes(mean, scatter, seeds, repeats=400, margin=0.01, expects="drop"):
    rng = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gemkit.sanity.verdicts.more_seeds", lambda *what: None)  # takes time
        judged = [
            judge("x", drops(mean, scatter, seeds, rng), margin, expects) for _ in range(repeats)
        ]
    return {
        outcome: sum(one.outcome == outcome for one in judged) / repeats
        for outcome in ("passes", "fails", "undecided")
    }


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("drop", [0.0, 0.01, 0.9, -0.9])
def test_one_seed_or_two_give_no_verdict_however_large_the_drop(seeds, drop):
    verdict = judge("shuffle", [drop] * seeds)
    assert verdict.outcome == "undecided"
    assert verdict.interval is None
    assert verdict.more_seeds == LEAST_SEEDS - seeds
    assert verdict.drop == pytest.approx(drop)


def test_a_drop_well_beyond_the_margin_passes_and_none_fails():
    assert outcomes(0.10, 0.01, 5)["passes"] > 0.99
    assert outcomes(0.0, 0.002, 5)["fails"] > 0.99
    assert outcomes(-0.10, 0.01, 5)["fails"] > 0.99, "a better control is no pass"
    assert outcomes(0.01, 0.05, 5)["undecided"] > 0.9


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_a_drop_equal_to_the_margin_is_decided_either_way_as_rarely_as_promised(seeds):
    shares = outcomes(0.01, 0.02, seeds, repeats=4000)
    for wrong in ("passes", "fails"):
        assert 0.018 < shares[wrong] < 0.032, "one time in forty"


def test_the_margin_counts():
    clear = [0.020, 0.022, 0.018, 0.021, 0.019]
    assert judge("x", clear, margin=0.01).outcome == "passes"
    assert judge("x", clear, margin=0.03).outcome == "fails"
    assert judge("x", clear, margin=0.02).outcome == "undecided"


def test_equivalent_is_within_the_margin_on_both_sides():
    alike, better = [0.001, -0.001, 0.0, 0.002, -0.002], [-0.05, -0.051, -0.049, -0.05, -0.052]
    for values, equivalent in ((alike, True), (better, False)):
        verdict = judge("x", values)
        assert (verdict.outcome, verdict.equivalent) == ("fails", equivalent)


def test_the_interval_is_students():
    values = [0.03, 0.05, 0.02, 0.06]
    low, high = confidence_interval(values)
    tested = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((tested.low, tested.high))
    above = stats.ttest_1samp(values, low, alternative="greater").pvalue
    below = stats.ttest_1samp(values, high, alternative="less").pvalue
    assert (above, below) == pytest.approx((0.025, 0.025)), "two one-sided tests"


@pytest.mark.parametrize(
    ("value", "outcome"), [(0.0, "fails"), (0.5, "passes"), (0.01, "undecided")]
)
def test_differences_without_scatter_are_judged_without_a_warning(value, outcome):
    verdict = judge("x", [value] * 3, margin=0.01)
    assert verdict.outcome == outcome
    assert verdict.interval == (value, value)
    assert verdict.more_seeds is None


def test_a_control_equal_to_the_ticket_fails_at_any_margin():
    for margin in (0.0, 0.01):
        verdict = judge("x", [0.0] * 3, margin=margin)
        assert (verdict.outcome, verdict.equivalent) == ("fails", True)
    assert judge("x", [-0.01, 0.0, 0.01], margin=0.0).outcome == "undecided"
    assert judge("x", [0.0] * 2, margin=0.0).outcome == "undecided", "two seeds never decide"


def test_the_suggested_seeds_usually_suffice():
    start = [0.015, 0.035, 0.005, 0.045, 0.025]
    verdict = judge("x", start)
    assert verdict.outcome == "undecided"
    scatter, total = statistics.stdev(start), 5 + verdict.more_seeds
    decided = 1 - outcomes(0.025, scatter, total, repeats=2000)["undecided"]
    assert 0.75 < decided < 0.9
    before = 1 - outcomes(0.025, scatter, total - 3, repeats=2000)["undecided"]
    assert before < 0.8, "and fewer would not"
    assert more_seeds([0.0, 0.02, 0.0100001], 0.01) is None, "too close to the margin"


# --- positive controls ---------------------------------------------------------------------------


def test_a_positive_control_passes_when_it_is_the_same_and_fails_when_it_is_not():
    assert outcomes(0.0, 0.002, 5, expects="same")["passes"] > 0.99
    assert outcomes(0.10, 0.01, 5, expects="same")["fails"] > 0.99
    assert outcomes(-0.10, 0.01, 5, expects="same")["fails"] > 0.99, "better is not the same"
    assert outcomes(0.0, 0.05, 5, expects="same")["undecided"] > 0.9


@pytest.mark.parametrize("edge", [0.01, -0.01])
def test_a_positive_control_at_the_margin_is_decided_either_way_as_rarely_as_promised(edge):
    shares = outcomes(edge, 0.002, 5, repeats=4000, expects="same")
    for wrong in ("passes", "fails"):
        assert 0.018 < shares[wrong] < 0.032, "one time in forty"


@pytest.mark.parametrize(
    ("drops", "drop", "same"),
    [
        ([0.0] * 3, "fails", "passes"),
        ([0.5, 0.51, 0.49], "passes", "fails"),
        ([-0.5, -0.51, -0.49], "fails", "fails"),
        ([0.001, -0.001, 0.0], "fails", "passes"),
        ([0.1, -0.1, 0.0], "undecided", "undecided"),
        ([0.0] * 2, "undecided", "undecided"),
    ],
)
def test_the_expectation_decides_what_passes(drops, drop, same):
    for expects, outcome in (("drop", drop), ("same", same)):
        verdict = judge("x", drops, 0.01, expects)
        assert (verdict.outcome, verdict.expects) == (outcome, expects)
    assert judge("x", drops).expects == "drop"


@pytest.mark.parametrize("mean", [0.0, 0.004, -0.004, 0.02, -0.02])
def test_the_suggested_seeds_usually_suffice_for_a_positive_control(mean):
    start = [mean + 0.013 * step for step in (-1, 0, 1)]
    verdict = judge("x", start, expects="same")
    assert verdict.outcome == "undecided"
    total = 3 + verdict.more_seeds
    shares = outcomes(mean, 0.013, total, repeats=1500, expects="same")
    assert 0.75 < 1 - shares["undecided"] < 0.95
    before = outcomes(mean, 0.013, total * 2 // 3, repeats=1500, expects="same")
    assert 1 - before["undecided"] < 0.8, "and many fewer would not"
    assert more_seeds([0.0, 0.02, 0.0100001], 0.01, "same") is None, "too close to the margin"


# --- from trials ---------------------------------------------------------------------------------


def trial(check, seed, after, before=0.5):
    return Trial(check=check, seed=seed, kept=5, prunable=100, before=before, after=after)


TRIALS = [
    trial("shuffle", 2, 0.70),
    trial("ticket", 0, 0.90),
    trial("ticket", 1, 0.95),
    trial("ticket", 2, 0.80),
    trial("shuffle", 0, 0.80),
    trial("shuffle", 1, 0.85),
    trial("reinit", 0, 0.91),
    trial("reinit", 9, 0.10),
]


def test_tickets_and_controls_are_paired_by_seed():
    shuffle, reinit = verdicts(TRIALS)
    assert (shuffle.check, shuffle.seeds, shuffle.outcome) == ("shuffle", 3, "passes")
    assert shuffle.drop == pytest.approx(0.10)
    assert shuffle.interval == pytest.approx((0.10, 0.10)), "not blurred by what seeds differ in"
    assert (reinit.check, reinit.seeds) == ("reinit", 1), (
        "a control without its ticket says nothing"
    )


def test_the_table_shows_every_verdict(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = verdict_table(TRIALS, verdicts(TRIALS))
    rows = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert rows["ticket"].split()[1:] == ["0.0500", "50.0", "±", "0.0", "88.3", "±", "7.6", "3"]
    assert rows["shuffle"].endswith("passes")
    assert "+10.0 … +10.0" in rows["shuffle"]
    assert "–" in rows["reinit"]
    assert rows["reinit"].endswith("undecided (+2 seeds?)")


def test_the_table_says_what_a_verdict_on_a_positive_control_means():
    trials = [trial(name, seed, 0.9) for name in ("ticket", "permute") for seed in range(3)]
    for other, words in ((trials, "passes (same)"), (TRIALS, "fails (not the same)")):
        names = {"permute": "same", "shuffle": "same"}
        judged = verdicts(other, expects=names)
        assert words in verdict_table(other, judged)
        assert words not in verdict_table(other, verdicts(other))


# --- the picture ---------------------------------------------------------------------------------


def test_the_same_trials_give_the_same_picture_whatever_the_users_style(tmp_path):
    import matplotlib

    contents = []
    for folder, size in (("one", 9), ("other", 30)):
        (tmp_path / folder).mkdir()
        with matplotlib.rc_context({"font.size": size}):
            files = draw(TRIALS, "title", tmp_path / folder, "checks")
        assert [file.name for file in files] == ["checks.svg", "checks.png"]
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]
    assert contents[0][1].startswith(b"\x89PNG")
    assert b"<dc:date>" not in contents[0][0]
    (tmp_path / "third").mkdir()
    marked = draw(TRIALS, "title", tmp_path / "third", "marked", ["shuffle"])
    assert marked[0].read_bytes() != contents[0][0], "a positive control is marked"
    others = draw([*TRIALS[:-1], trial("reinit", 0, 0.2)], "title", tmp_path / "third", "checks")
    assert others[0].read_bytes() != contents[0][0]


def test_without_matplotlib_there_is_a_clear_message(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GemkitError, match=r"pip install 'gemkit\[plots\]'"):
        draw(TRIALS, "title", tmp_path, "checks")
