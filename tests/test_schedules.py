"""Freeze schedules: they only fall, they end at the target, and they say what the paper says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import field_values

from gemkit import load_plugins
from gemkit.builtin.schedules import Constant, Cubic, Exponential, Linear, Once, SteppedSchedule
from gemkit.errors import FitError

SCHEDULES = {name: entry.thing for name, entry in load_plugins().parts["schedules"].items()}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@given(data=st.data())
def test_every_schedule_is_finite_never_rises_and_ends_at_the_target(name, data):
    fields = data.draw(field_values(SCHEDULES[name]))
    if fields.get("rounds"):
        fields["rounds"] = 1 + fields["rounds"] % 300
    schedule = SCHEDULES[name].model_validate(fields)
    target = data.draw(st.floats(1e-4, 1.0))
    epochs = data.draw(st.integers(0, 400))
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
    for step, density in freezes:
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


def test_once_and_constant_freeze_a_single_time():
    assert Once().freezes(0.3, 10, 5) == [(0, 0.3)]
    assert Once(after=0.5).freezes(0.3, 10, 5) == [(25, 0.3)]
    assert Constant().freezes(0.3, 10, 5) == [(0, 0.3)]


def test_rounds_follow_each_other_before_any_training():
    freezes = Exponential(rounds=100).freezes(0.01, 0, 0)
    assert len(freezes) == 100
    assert {freeze.step for freeze in freezes} == {0}
    assert freezes[49].density == pytest.approx(0.1)
