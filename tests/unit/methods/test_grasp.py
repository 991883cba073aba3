"""GraSP against finite differences of the gradient norm, and the data its authors use."""

import pytest
import torch
import torch.nn.functional as F
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Data, importance, load_plugins, search
from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Wanted
from gemkit.core.tensors import budget, kept, total
from gemkit.data.source import TensorSource
from gemkit.methods.grasp import Grasp
from gemkit.training.calibration import draw


def batches(parts=2, dtype=torch.float64):
    images, labels = next(tiny_data().train.batches(32))
    return list(zip(images.to(dtype).chunk(parts), labels.chunk(parts), strict=True))


def smooth_net():
    """No kinks, so that finite differences are exact enough."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    ).double()


def gradient_norm(model, temperature):
    """Return gᵀg of the prunable weights, g summed over the batches."""
    weights = [model[0].weight, model[4].weight]
    losses = sum(F.cross_entropy(model(x) / temperature, y) for x, y in batches())
    return sum(g.square().sum() for g in torch.autograd.grad(losses, weights))


@pytest.mark.parametrize("temperature", [1.0, 200.0])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_score_is_how_the_gradient_norm_changes_with_the_weight(mode, temperature):
    """d(gᵀg)/dc = 2 w · Hg for a factor c on the weight: central differences of the left side."""
    model = smooth_net()
    measured = importance("grasp", model, batches(), mode=mode, temperature=temperature)
    model.train(mode == "train")
    scale = max(float(value.abs().max()) for value in measured.values())
    for name, index in (("0.weight", (1, 1, 2, 0)), ("4.weight", (2, 17))):
        weight, norms = model.get_parameter(name), []
        for factor in (1 + 1e-5, 1 - 1e-5):
            before = weight[index].item()
            with torch.no_grad():
                weight[index] = before * factor
            norms.append(float(gradient_norm(model, temperature)))
            with torch.no_grad():
                weight[index] = before
        slope = (norms[0] - norms[1]) / 2e-5
        assert float(measured[name][index]) == pytest.approx(slope / 2, abs=1e-5 * scale)


def test_signs_count_unless_the_variant_is_asked_for():
    signed = importance("grasp", smooth_net(), batches())
    absolute = importance("grasp", smooth_net(), batches(), absolute=True)
    assert min(float(value.min()) for value in signed.values()) < 0
    assert all(torch.equal(absolute[name], signed[name].abs()) for name in signed)


def test_what_is_pruned_has_no_part_in_gradient_and_curvature():
    """Along pruned weights nothing moves any more, so they must not enter Hg."""
    model = smooth_net()
    alive = {name: torch.ones_like(model.get_parameter(name)) for name in ("0.weight", "4.weight")}
    alive["4.weight"][:, ::2] = 0
    measured = importance("grasp", model, batches(), alive=alive, temperature=1.0)
    small = smooth_net()
    with torch.no_grad():
        small[4].weight.mul_(alive["4.weight"])
    weights = [small[0].weight, small[4].weight]
    loss = sum(F.cross_entropy(small(x), y) for x, y in batches())
    g = torch.autograd.grad(loss, weights, create_graph=True)
    along = (g[0] * g[0].detach()).sum() + (g[1] * g[1].detach() * alive["4.weight"]).sum()
    hg = torch.autograd.grad(along, weights)
    torch.testing.assert_close(measured["0.weight"], (small[0].weight * hg[0]).detach())
    assert measured["4.weight"][:, ::2].count_nonzero() == 0


def test_dropout_is_the_same_in_both_passes():
    """g and H must belong to one function: then the score is half the slope of its own gᵀg."""
    images = torch.randn(8, 6, dtype=torch.float64)
    labels = torch.arange(8) % 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    measured = importance("grasp", model, [(images, labels)], temperature=1.0)
    torch.manual_seed(0)  # the first batch's own
    weights = [model[0].weight, model[2].weight]
    loss = F.cross_entropy(model.train()(images), labels)
    g = torch.autograd.grad(loss, weights, create_graph=True)
    hg = torch.autograd.grad(sum(part.square().sum() for part in g) / 2, weights)
    torch.testing.assert_close(measured["0.weight"], (weights[0] * hg[0]).detach())


def test_a_network_without_second_derivatives_is_refused_in_words():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Hardsigmoid(), nn.Linear(8, 3))
    images, labels = next(tiny_data().train.batches(8))
    with pytest.raises(ImportanceError, match="torch lacks one for this network"):
        importance("grasp", model, [(images, labels)])


def test_without_data_there_is_a_clear_error():
    with pytest.raises(ImportanceError, match="at least one batch"):
        importance("grasp", tiny_net(), [])


# --- drawing -------------------------------------------------------------------------------------


def uneven():
    """Seven samples of class 0, two of class 1, none of class 2, one of class 3; each distinct."""
    labels = torch.tensor([0] * 7 + [1] * 2 + [3])
    images = torch.arange(10.0).view(10, 1, 1, 1)
    return Data.of_tensors(
        train=(images, labels), validation=(images, labels), test=(images, labels), classes=4
    ).train


def test_it_wants_ten_of_every_class_in_two_halves():
    assert Grasp().batches_wanted() == Wanted(batches=2, per_class=10)


def test_samples_are_balanced_sorted_by_class_and_cut_in_halves():
    source = tiny_data(classes=3, samples=60).train
    halves = draw(source, Wanted(batches=2, per_class=5), 16, seed=0, turn=0)
    assert [len(labels) for _, labels in halves] == [7, 8]
    assert torch.cat([labels for _, labels in halves]).tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert all(len(images) == len(labels) for images, labels in halves)


def test_rare_classes_give_what_they_have_and_no_sample_comes_twice():
    [(images, labels)] = draw(uneven(), Wanted(batches=1, per_class=3), 4, seed=0, turn=0)
    assert labels.tolist() == [0, 0, 0, 1, 1, 3]
    assert len(set(images.flatten().tolist())) == 6
    true_label = dict(zip(range(10), [0] * 7 + [1] * 2 + [3], strict=True))
    assert [true_label[int(image)] for image in images.flatten()] == labels.tolist()


class Backwards(TensorSource):
    """A source with an order of its own."""

    def batches(self, size, **how):
        batches = [*super().batches(size, **how)]
        return reversed([(images.flip(0), labels.flip(0)) for images, labels in batches])


def test_samples_of_a_source_with_another_order_are_balanced_too():
    source = Backwards(*(getattr(uneven(), part) for part in ("images", "labels")))
    [(images, labels)] = draw(source, Wanted(batches=1, per_class=3), 4, seed=0, turn=0)
    assert labels.tolist() == [0, 0, 0, 1, 1, 3]
    assert [source.labels[int(image)] for image in images.flatten()] == labels.tolist()


def test_more_parts_than_samples_are_no_empty_batches():
    drawn = draw(uneven(), Wanted(batches=5, per_class=1), 4, seed=0, turn=0)
    assert [len(labels) for _, labels in drawn] == [1, 1, 1]


def test_every_freeze_draws_others_and_a_seed_draws_the_same():
    source = tiny_data(samples=60).train
    wanted = Wanted(batches=1, per_class=3)
    one, again, later, other = (
        draw(source, wanted, 16, seed=seed, turn=turn)[0][0]
        for seed, turn in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, later)
    assert not torch.equal(one, other)


def test_ordinary_batches_are_whole_and_go_on_into_the_next_epoch():
    source = tiny_data(samples=35).train
    drawn = draw(source, Wanted(batches=5), 16, seed=0, turn=0)
    assert [len(labels) for _, labels in drawn] == [16] * 5
    assert [len(labels) for _, labels in draw(uneven(), Wanted(2), 16, seed=0, turn=0)] == [10, 10]
    assert draw(source, Wanted(), 16, seed=0, turn=0) == []


def test_the_pruner_reaches_its_count():
    assert load_plugins().recipe("grasp").schedule.name == "once"
    ticket = search("grasp", tiny_net(), tiny_data(), density=0.3, runtime=CPU, on_collapse="warn")
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.3)
