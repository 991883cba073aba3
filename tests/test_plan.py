"""Learning rates by the clock alone, and plans that refuse nonsense."""

import math

import pytest
from pydantic import ValidationError

from gemkit import Plan, Runtime
from gemkit.errors import OptionError


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


@pytest.mark.parametrize("schedule", ["cosine", "multistep", "constant"])
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
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValidationError):
        Plan(**wrong)


def test_a_setting_that_was_removed_is_refused_in_a_sentence_unless_it_is_off():
    with pytest.raises(OptionError, match=r"lean searches were removed .* leave out"):
        Runtime(lean=True)
    assert Runtime(lean=False) == Runtime()
    assert "lean" not in Runtime(lean=False).model_dump()
