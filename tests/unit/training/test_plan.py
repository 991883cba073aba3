"""Learning rates by the clock alone, and plans that refuse nonsense."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gemkit import Plan, Runtime
from gemkit.core.errors import OptionError
from gemkit.training.plan import SCHEDULES


def rates(plan, per_epoch=2):
    return [plan.lr_at(step, per_epoch) for step in range(plan.epochs * per_epoch)]


def test_cosine_falls_epoch_by_epoch_as_in_the_authors_code():
    plan = Plan(epochs=4, lr=0.2)
    expected = [0.1 * (1 + math.cos(math.pi * epoch / 4)) for epoch in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert rates(plan) == pytest.approx(expected)


def test_multistep_divides_by_ten_at_its_milestones():
    plan = Plan(epochs=150, lr=0.1, lr_schedule="multistep", milestones=(80 / 150, 120 / 150))
    by_epoch = rates(plan, per_epoch=1)
    assert by_epoch[79:81] == pytest.approx([0.1, 0.01])
    assert by_epoch[119:121] == pytest.approx([0.01, 0.001])


def test_constant_stays():
    assert set(rates(Plan(epochs=3, lr=0.3, lr_schedule="constant"))) == {0.3}


def test_linear_falls_to_zero_epoch_by_epoch():
    plan = Plan(epochs=4, lr=0.4, lr_schedule="linear")
    assert rates(plan) == pytest.approx([0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1])
    assert plan.lr_at(8, 2) == 0


def half_way(progress):
    return 1.0 if progress < 0.5 else 0.25


def test_a_function_is_asked_in_every_step_for_the_fraction_of_the_peak():
    asked = []
    plan = Plan(epochs=3, lr=0.4, warmup_epochs=1, lr_schedule=lambda at: asked.append(at) or at)
    assert rates(plan) == pytest.approx([0.2, 0.4, 0.0, 0.1, 0.2, 0.3])
    assert asked == [0.0, 0.25, 0.5, 0.75]
    assert plan.lr_at(100, 2) == 0.4, "progress ends at one"
    assert rates(Plan(epochs=2, lr=1.0, lr_schedule=half_way)) == [1.0, 1.0, 0.25, 0.25]
    assert rates(Plan(epochs=1, lr=1.0, lr_schedule=lambda at: np.float32(0.5))) == [0.5, 0.5]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1, "0.5", None])
def test_a_function_that_returns_no_fraction_is_refused(wrong):
    plan = Plan(epochs=2, lr=0.4, lr_schedule=lambda at: wrong)
    with pytest.raises(OptionError, match=r"lr_schedule 'custom:test_plan\..*<lambda>' returns"):
        plan.lr_at(1, 1)


@given(
    schedule=st.sampled_from([*SCHEDULES, half_way]),
    epochs=st.integers(1, 20),
    warmup=st.integers(0, 20),
)
def test_rates_stay_between_zero_and_the_peak(schedule, epochs, warmup):
    plan = Plan(epochs=epochs, lr=0.3, lr_schedule=schedule, warmup_epochs=warmup)
    assert all(0 <= rate <= 0.3 for rate in rates(plan, per_epoch=3))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_rises_to_the_peak_and_the_schedule_takes_over(schedule):
    plan = Plan(epochs=8, lr=1.0, lr_schedule=schedule, warmup_epochs=2)
    assert rates(plan)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_plan_without_a_learning_rate_cannot_be_followed():
    with pytest.raises(ValueError, match="decided"):
        Plan().lr_at(0, 1)
    open_plan, own = Plan(), Plan(lr=0.2, weight_decay=0.0)
    for plan, expected in ((open_plan, (0.3, 1e-4)), (own, (0.2, 0.0))):
        decided = plan.decided(lr=0.3, weight_decay=1e-4)
        assert (decided.lr, decided.weight_decay) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": -1},
        {"lr": 0.0},
        {"momentum": 1.0},
        {"epochs": True},
        {"typo": 1},
        {"milestones": (80.0,)},
        {"lr_schedule": "cosin"},
        {"lr_schedule": 3},
        {"clip_grad": 0.0},
        {"clip_grad": math.inf},
        {"accumulate": 0},
        {"accumulate": 1.5},
        {"optimizer_options": {"eps": object()}},
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValidationError):
        Plan(**wrong)


def test_a_misspelt_schedule_is_told_the_right_one():
    with pytest.raises(ValidationError, match="no such schedule; did you mean 'cosine'"):
        Plan(lr_schedule="cosin")


def test_new_fields_are_written_only_where_they_are_used():
    """So older files, and hashes of older configurations, stay as they are."""
    new = {"optimizer_options", "clip_grad", "accumulate"}
    written = Plan().model_dump(mode="json")
    assert not new & written.keys()
    assert set(written) == {
        *("epochs", "batch_size", "optimizer", "lr", "momentum", "nesterov", "weight_decay"),
        *("lr_schedule", "milestones", "on_nan", "warmup_epochs"),
    }
    used = Plan(clip_grad=1.0, accumulate=2, optimizer="adam", optimizer_options={"eps": 1e-6})
    assert new <= used.model_dump(mode="json").keys()
    assert Plan.model_validate_json(used.model_dump_json()) == used
    assert used.lasting(3) == used.model_copy(update={"epochs": 3})


def test_a_setting_that_was_removed_is_refused_in_a_sentence_unless_it_is_off():
    with pytest.raises(OptionError, match=r"lean searches were removed .* leave out"):
        Runtime(lean=True)
    assert Runtime(lean=False) == Runtime()
    assert "lean" not in Runtime(lean=False).model_dump()
