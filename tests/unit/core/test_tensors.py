"""Names of prunable weights, exact budgets, and independent random generators."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gemkit.core.errors import GemkitError
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, density_of, generator, kept, total


def test_prunable_weights_are_found_by_type_in_module_order():
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(3, 4),
            "up": nn.ConvTranspose2d(3, 4, 2),
            "norm": nn.LayerNorm(4),
            "attention": nn.MultiheadAttention(4, 2),
            "head": nn.Linear(4, 2),
        }
    )
    assert prunable_names(model) == [
        "up.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "head.weight",
    ]
    assert prunable_names(model, include=["head*", "up*"]) == [
        "up.weight",
        "head.weight",
    ]
    assert "head.weight" not in prunable_names(model, skip=["head*"])


def test_attention_with_separate_projections_is_prunable_too():
    names = prunable_names(nn.MultiheadAttention(4, 2, kdim=3, vdim=5))
    assert names == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]


def test_a_shared_weight_counts_once():
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    assert prunable_names(nn.Sequential(one, other)) == ["0.weight"]


def test_a_model_without_prunable_weights_is_an_error():
    with pytest.raises(GemkitError, match="no prunable weights"):
        prunable_names(nn.BatchNorm2d(3))


@given(entries=st.integers(0, 10**9), thousandths=st.integers(1, 1000))
def test_the_budget_rounds_the_decimal_density_half_up(entries, thousandths):
    exact = Fraction(thousandths, 1000) * entries
    result = budget(entries, thousandths / 1000)
    assert abs(result - exact) <= Fraction(1, 2)
    assert result - exact != Fraction(-1, 2)


def test_floating_point_rounding_would_be_off_by_one():
    """The broken versions: truncation, and the pruned fraction computed in binary."""
    assert budget(10, 0.9) == 9
    assert 10 - int((1 - 0.9) * 10) == 10  # keeps everything
    assert budget(5, 0.1) == 1
    assert round(5 * 0.1) == 0  # rounds half to even
    assert budget(100, 0.285) == 29
    assert int(100 * 0.285 + 0.5) == 28  # 0.285 is a little less in binary


def test_counts_and_density_are_exact():
    masks = {"a": torch.tensor([True, False]), "b": torch.ones(2, 3, dtype=torch.bool)}
    assert (kept(masks), total(masks), density_of(masks)) == (7, 8, 7 / 8)


def test_generators_depend_only_on_seed_and_purpose():
    def draw(seed, purpose):
        return torch.rand(4, generator=generator(seed, purpose)).tolist()

    assert draw(1, "scores") == draw(1, "scores")
    assert draw(1, "scores") != draw(1, "weights")
    assert draw(1, "scores") != draw(2, "scores")
    assert draw(-1, "scores") != draw(1, "scores")
