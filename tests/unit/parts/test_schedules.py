"""Freeze schedules: they only fall, they end at the target, and they say what the paper says."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from strategies import field_values

from gemkit import load_plugins
from gemkit.builtin.schedules import (
    Constant,
    Cubic,
    Exponential,
    Iterative,
    Linear,
    Once,
    SteppedSchedule,
)
from gemkit.core.errors import FitError
from gemkit.methods.regrowth import Regrow
from gemkit.parts.fit import misfits
from gemkit.parts.schedule import Freeze

SCHEDULES = {name: entry.thing for name, entry in load_plugins().parts["schedules"].items()}


@given(
    kind=st.sampled_from([Exponential, Linear, Cubic]),
    every=st.integers(1, 5000),
    ends=st.tuples(st.integers(0, 9), st.integers(1, 10)),
    timing=st.sampled_from(["authors", "paper"]),
    epochs=st.integers(0, 3),
)
def test_a_search_that_is_too_short_says_how_long_it_must_be(kind, every, ends, timing, epochs):
    own = (
        {"timing": timing} if kind is Exponential else {"start": ends[0] / 10, "end": ends[1] / 10}
    )
    schedule = kind(every=every, **own)
    if schedule.moments(epochs):
        return
    with pytest.raises(FitError) as error:
        schedule.freezes(0.1, epochs, 7)
    said = re.search(r"train for ([\d,]+) epochs? at least", str(error.value))
    if said is None:
        assert "train longer" in str(error.value)
        assert kind is not Exponential
        assert ends[0] >= ends[1], "there is a moment in any search that is long enough"
        return
    least = int(said[1].replace(",", ""))
    assert schedule.freezes(0.1, least, 7)
    assert not any(schedule.moments(fewer) for fewer in range(epochs, least))


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@given(data=st.data())
def test_every_schedule_is_finite_never_rises_and_ends_at_the_target(name, data):
    fields = data.draw(field_values(SCHEDULES[name]))
    if fields.get("rounds"):
        fields = {"rounds": 1 + fields["rounds"] % 300}  # which none of the others goes with
    schedule = SCHEDULES[name].model_validate(fields)
    target = data.draw(st.floats(1e-4, 1.0))
    epochs = schedule.round_epochs or data.draw(st.integers(0, 400))
    if isinstance(schedule, Iterative) and not epochs:
        with pytest.raises(FitError, match=r"schedule\.every"):
            schedule.freezes(target, epochs, 7)
        return
    if isinstance(schedule, SteppedSchedule) and schedule.trains and not schedule.moments(epochs):
        with pytest.raises(FitError, match=r"schedule\.every"):
            schedule.freezes(target, epochs, 7)
        return
    freezes = schedule.freezes(target, epochs, 7)
    steps = [freeze.step for freeze in freezes]
    densities = [freeze.density for freeze in freezes]
    assert freezes
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= steps[-1] <= epochs * 7
    assert densities == sorted(densities, reverse=True)
    assert densities[-1] == target
    assert all(0 < density <= 1 for density in densities)
    if not schedule.trains:
        assert set(steps) == {0}


@pytest.mark.parametrize(
    ("epochs", "every", "percent", "count", "keep", "left"),
    [
        (150, 5, 0.59, 29, 0.83779, 4),
        (150, 8, 0.59, 18, 0.75190, 5),
        (150, 5, 1.44, 29, 0.86396, 4),
        (150, 10, 1.4, 14, 0.73719, 9),
        (300, 5, 5, 59, 0.95049, 4),
        (50, 5, 5, 9, 0.71687, 4),
    ],
)
def test_the_authors_timing_gives_their_freezes(epochs, every, percent, count, keep, left):
    freezes = Exponential(every=every).freezes(percent / 100, epochs, 1)
    assert len(freezes) == count
    assert freezes[0].step == every + 1
    assert freezes[0].density == pytest.approx(keep, abs=1e-5)
    assert epochs - freezes[-1].step == left


@pytest.mark.parametrize(
    ("epochs", "every", "percent", "count", "keep"),
    [(150, 5, 0.59, 30, 0.84274), (150, 10, 1.4, 15, 0.75233), (300, 5, 1.4, 60, 0.93133)],
)
def test_the_papers_timing_follows_its_exponential(epochs, every, percent, count, keep):
    target = percent / 100
    freezes = Exponential(every=every, timing="paper").freezes(target, epochs, 10)
    c = math.log(1 / target) / epochs
    assert len(freezes) == count
    assert freezes[0].density == pytest.approx(keep, abs=1e-5)
    for step, density, _ in freezes:
        assert density == pytest.approx(math.exp(-c * step / 10))
    assert freezes[-1].step == epochs * 10


def test_the_papers_timing_ends_at_the_target_though_the_period_does_not_divide_the_epochs():
    freezes = Exponential(every=8, timing="paper").freezes(0.01, 20, 1)
    assert [freeze.step for freeze in freezes] == [8, 16, 20]
    assert freezes[-1].density == 0.01


def test_linear_and_cubic_follow_their_curves():
    assert [f.density for f in Linear(every=1, end=1.0).freezes(0.2, 4, 1)] == pytest.approx(
        [0.8, 0.6, 0.4, 0.2]
    )
    cubic = [f.density for f in Cubic(every=1, end=1.0).freezes(0.1, 3, 1)]
    assert cubic == pytest.approx([0.1 + 0.9 * (2 / 3) ** 3, 0.1 + 0.9 / 27, 0.1])


def test_the_cubic_curve_leaves_density_1_at_its_start():
    """The paper's t₀, where s equals s_i = 0, takes nothing; the first freeze is Δt later."""
    freezes = Cubic(every=5, start=0.2, end=0.8).freezes(0.1, 50, 3)
    assert [freeze.step for freeze in freezes] == [3 * epoch for epoch in range(15, 41, 5)]
    assert [freeze.density for freeze in freezes] == pytest.approx(
        [0.1 + 0.9 * (1 - (epoch - 10) / 30) ** 3 for epoch in range(15, 41, 5)]
    )
    assert Cubic().curve(0, 0.1) == 1


def test_a_curve_that_ends_before_it_starts_is_refused():
    with pytest.raises(FitError, match="no moment to freeze"):
        Cubic(start=0.5, end=0.5).freezes(0.1, 20, 1)


@pytest.mark.parametrize(
    ("target", "rounds"),
    [
        (0.0144, 19),  # the paper's "1.44 %"
        (0.8**19, 19),
        (0.0059, 23),
        (0.05, 14),
        (0.64, 2),
        (0.63, 3),
        (0.8, 1),
        (0.95, 1),
        (1.0, 1),
    ],
)
def test_iterative_takes_as_many_rounds_as_it_needs(target, rounds):
    freezes = Iterative().freezes(target, 7, 10)
    assert len(freezes) == rounds
    assert {freeze.step for freeze in freezes} == {70}
    assert [freeze.density for freeze in freezes[:-1]] == [
        float(Fraction(4, 5) ** count) for count in range(1, rounds)
    ]


def test_iterative_densities_have_no_binary_dust():
    """0.9**3 as floats is 0.7290000000000001, which can be one weight too many."""
    densities = [freeze.density for freeze in Iterative(fraction=0.1).freezes(0.5, 1, 1)]
    assert densities[:4] == [0.9, 0.81, 0.729, 0.6561]
    assert 0.9**3 != 0.729


def test_once_and_constant_freeze_a_single_time():
    assert Once().freezes(0.3, 10, 5) == [Freeze(0, 0.3)]
    assert Once(after=0.5).freezes(0.3, 10, 5) == [Freeze(25, 0.3)]
    assert Constant().freezes(0.3, 10, 5) == [Freeze(0, 0.3)]


@pytest.mark.parametrize(
    ("after", "epochs", "epoch"),
    [(0.5, 5, 3), (0.5, 3, 2), (0.7, 5, 4), (0.29, 50, 15), (0.1, 4, 1), (1e-9, 4, 1), (1.0, 4, 4)],
)
def test_once_freezes_at_the_nearest_epoch_half_up_and_trains_where_it_says_so(
    after, epochs, epoch
):
    assert Once(after=after).freezes(0.3, epochs, 7) == [Freeze(7 * epoch, 0.3)]
    assert Once(after=after).freezes(0.3, 0, 7) == [Freeze(0, 0.3)]


@pytest.mark.parametrize(("epochs", "per_epoch", "count"), [(10, 100, 7), (1, 3, 0), (4, 101, 3)])
def test_rigls_updates_follow_a_cosine_and_end_at_three_quarters(epochs, per_epoch, count):
    """Evci et al. 2020: f(t) = α/2 · (1 + cos(π t / T_end)), α = 0.3, ΔT = 100, T_end = 75 %."""
    first, *others = Regrow().freezes(0.1, epochs, per_epoch)
    assert first == Freeze(0, 0.1)
    end = 0.75 * epochs * per_epoch
    expected = [t for t in range(1, epochs * per_epoch) if t % 100 == 0 and t < end]
    assert [freeze.step for freeze in others] == expected
    assert len(expected) == count
    for step, density, regrow in others:
        assert density == 0.1
        assert regrow == pytest.approx(0.3 * (1 + math.cos(math.pi * step / end)) / 2, rel=1e-12)
    fractions = [freeze.regrow for freeze in others]
    assert fractions == sorted(fractions, reverse=True)


def test_too_many_updates_are_refused():
    with pytest.raises(FitError, match="schedule 'regrow' would freeze 75,000 times"):
        Regrow(every=1).freezes(0.1, 100, 1000)


CONTRADICTIONS = [
    (Exponential(rounds=3, every=5), "schedule.every=5"),
    (Exponential(rounds=3, timing="paper"), "schedule.timing=paper"),
    (Cubic(rounds=3, start=0.5, end=0.9), r"schedule.start=0.5 and schedule.end=0.9"),
    (Linear(rounds=1, every=1), "schedule.every=1"),
]


@pytest.mark.parametrize(("schedule", "idle"), CONTRADICTIONS)
def test_fields_that_rounds_would_leave_without_effect_are_refused(schedule, idle):
    with pytest.raises(FitError, match=f"schedule.rounds={schedule.rounds} .*{idle} would have no"):
        schedule.freezes(0.1, 30, 7)
    recipe = load_plugins(only=()).recipe("synflow").model_copy(update={"schedule": schedule})
    assert [
        problem for problem in misfits(recipe, epochs=30, density=0.1) if "no effect" in problem
    ]


def test_a_curves_own_fields_go_with_rounds():
    class Power(Linear):
        """A curve with a field of its own."""

        power: float = Field(default=1.0, gt=0, description="how the curve is bent")

        def curve(self, progress, target):
            return 1 - (1 - target) * progress**self.power

    densities = [freeze.density for freeze in Power(rounds=2, power=2.0).freezes(0.2, 0, 0)]
    assert densities == pytest.approx([0.8, 0.2])
    with pytest.raises(FitError, match=r"where schedule.end=0.5 would have no effect"):
        Power(rounds=2, power=2.0, end=0.5).freezes(0.2, 0, 0)


@pytest.mark.parametrize("cls", [Exponential, Linear, Cubic])
def test_every_field_of_ours_is_known_to_go_with_rounds_or_not(cls):
    assert {*cls.of_training, "rounds"} == set(cls.model_fields)


def test_rounds_follow_each_other_before_any_training():
    freezes = Exponential(rounds=100).freezes(0.01, 0, 0)
    assert len(freezes) == 100
    assert {freeze.step for freeze in freezes} == {0}
    assert freezes[49].density == pytest.approx(0.1)
