"""LAMP against a double loop over the weights of a layer, and inner scores of any sort."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU, tiny_data, tiny_net

from gemkit import Probe, Wanted, load_plugins, search
from gemkit.core.errors import SignalError
from gemkit.core.tensors import generator, kept
from gemkit.methods import lamp
from gemkit.methods.baselines import Magnitude, Random
from gemkit.methods.lamp import Lamp
from gemkit.methods.snip import Snip
from gemkit.parts.scores import MeasuredScores

REGISTRY = load_plugins(only=[])


def slow_lamp(values):
    """x_u² / Σ over all v with |x_v| ≥ |x_u| of x_v², as the paper writes it; 0 for 0."""
    scores = []
    for u in values:
        total = sum(v * v for v in values if abs(v) >= abs(u))
        scores.append(u * u / total if total else 0.0)
    return scores


class Given(MeasuredScores):
    """The weights themselves, with their signs."""

    name = "given"

    def importance(self, probe):
        return probe.weights


def importance_of(values, alive=None):
    weights = {"a": torch.tensor(values, dtype=torch.float64)}
    masks = {"a": torch.ones(len(values), dtype=torch.bool) if alive is None else alive}
    probe = Probe(model=torch.nn.Identity(), weights=weights, alive=masks)
    return Lamp(of=Given()).importance(probe)["a"]


numbers = st.sampled_from([0.0, 0.5, -0.5, 1.0]) | st.floats(1e-9, 10) | st.floats(-10, -1e-9)


@given(values=st.lists(numbers, min_size=1, max_size=12))
def test_lamp_is_that_of_a_double_loop(values):
    torch.testing.assert_close(
        importance_of(values), torch.tensor(slow_lamp(values), dtype=torch.float64)
    )


@given(values=st.lists(numbers, min_size=2, max_size=12), seed=st.integers(0, 99))
def test_pruned_weights_count_nothing(values, seed):
    alive = torch.rand(len(values), generator=generator(seed, "alive")) < 0.6
    living = [value for value, lives in zip(values, alive.tolist(), strict=True) if lives]
    other = [v if lives else torch.inf for v, lives in zip(values, alive.tolist(), strict=True)]
    for given_values in (values, other):
        found = importance_of(given_values, alive)
        expected = torch.tensor(slow_lamp(living), dtype=torch.float64)
        torch.testing.assert_close(found[alive], expected)
        assert found[~alive].count_nonzero() == 0


def test_ties_in_sort_order_would_be_noticed(monkeypatch):
    """The broken version: of equal weights, each divides by what comes after it in the sort."""

    def by_position(score):
        ordered, order = torch.sort(score.double().square().flatten())
        tails = ordered.flip(0).cumsum(0).flip(0)
        return torch.empty_like(ordered).scatter_(0, order, ordered / tails).view(score.shape)

    values = [1.0, 1.0, 2.0, 0.5]
    expected = torch.tensor(slow_lamp(values), dtype=torch.float64)
    torch.testing.assert_close(importance_of(values), expected)
    monkeypatch.setattr(lamp, "_lamp", by_position)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(importance_of(values), expected)


def test_the_largest_weight_of_a_layer_has_score_one_so_no_layer_is_lost():
    recipe = REGISTRY.recipe("magnitude", parts={"scores": "lamp"})
    net = tiny_net()
    with torch.no_grad():
        net[0].weight.mul_(1e-4)  # which global magnitude would prune as a whole
    ticket = search(recipe, net, tiny_data(), density=0.1, runtime=CPU)
    assert all(mask.any() for mask in ticket.mask.values())
    plain = REGISTRY.recipe("magnitude")
    lost = search(plain, net, tiny_data(), density=0.1, runtime=CPU, on_collapse="warn")
    assert not lost.mask["0.weight"].any()


def test_what_the_inner_scores_want_is_drawn():
    assert Lamp().batches_wanted() == Wanted()
    assert Lamp(of=Snip(batches=3)).batches_wanted() == Snip(batches=3).batches_wanted()


def test_scores_within_scores_need_what_those_need():
    """A dead layer matters to SNIP, and so to LAMP of SNIP, but not to LAMP of magnitude."""
    net = tiny_net()
    torch.nn.init.zeros_(net[8].weight)
    for of, fatal in ((Magnitude(), False), (Random(), False), (Snip(), True)):
        recipe = REGISTRY.recipe("magnitude").model_copy(update={"scores": Lamp(of=of)})
        how = {"density": 0.3, "runtime": CPU, "on_collapse": "warn"}
        if fatal:
            with pytest.raises(SignalError, match="scores 'lamp' would say nothing"):
                search(recipe, net, tiny_data(), **how)
        else:
            assert kept(search(recipe, net, tiny_data(), **how).mask) > 0
