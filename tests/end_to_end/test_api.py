"""The Python API: importance on your own model, selection, and search by name."""

import copy
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cli_runs import PLUGIN
from tiny import CPU, REQUIRED, tiny_data, tiny_net
from torch import nn

import gemkit
from gemkit import MeasuredScores, importance, load_plugins, prunable_names, search, select
from gemkit.core.errors import DataError, ImportanceError, OptionError, UnknownNameError
from gemkit.core.tensors import budget, kept, total
from gemkit.plugins.provenance import versions_of
from gemkit.training.labels import check_labels
from gemkit.training.plan import Plan


class TrainModeSaliency(MeasuredScores):
    """|w · dL/dw| with batch statistics: the kind of score that tempts to touch the model."""

    name = "train_mode_saliency"

    def importance(self, probe):
        leaves = {name: weight.clone().requires_grad_() for name, weight in probe.weights.items()}
        loss = sum(
            F.cross_entropy(probe.forward(leaves, x, training=True), y) for x, y in probe.batches
        )
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {
            name: (weight * gradient).abs()
            for (name, weight), gradient in zip(probe.weights.items(), gradients, strict=True)
        }


def batches(dtype=torch.float32):
    return [(x.to(dtype), y) for x, y in tiny_data().train.batches(8, seed=0)]


def test_a_saliency_through_the_probe_is_the_gradient_times_the_weight():
    model = tiny_net().double().train()
    all_batches = batches(torch.float64)
    measured = importance(TrainModeSaliency(), model, all_batches)
    reference = copy.deepcopy(model)
    sum(F.cross_entropy(reference(x), y) for x, y in all_batches).backward()
    for name, value in measured.items():
        weight = reference.get_parameter(name)
        torch.testing.assert_close(value, (weight * weight.grad).abs().detach())


def test_what_is_not_alive_counts_as_zero():
    model = tiny_net()
    alive = {name: torch.ones_like(model.get_parameter(name)) for name in prunable_names(model)}
    alive["0.weight"][:3] = 0
    measured = importance("magnitude", model, [], alive=alive)
    assert measured["0.weight"][:3].count_nonzero() == 0
    assert measured["0.weight"][3:].count_nonzero() == 54


@pytest.mark.parametrize("name", sorted(load_plugins().parts["allocations"]))
def test_selection_is_exact_and_never_revives(name, device):
    allocation = load_plugins().build("allocations", name, REQUIRED.get(name))
    measured = importance("magnitude", tiny_net().to(device), [])
    wide = select(measured, 0.6, allocation=allocation)
    narrow = select(measured, 0.25, allocation=allocation, alive=wide)
    assert kept(wide) == budget(total(wide), 0.6)
    assert kept(narrow) == budget(total(wide), 0.25)
    for name, mask in narrow.items():
        assert mask.dtype == torch.bool
        assert not (mask & ~wide[name]).any()


class Wrong(MeasuredScores):
    """Scores that forget a layer, invent one, or return another shape."""

    name = "wrong"
    fault: str = "key"

    def importance(self, probe):
        measured = {name: weight.abs() for name, weight in probe.weights.items()}
        if self.fault == "type":
            return list(measured)
        if self.fault == "key":
            measured["invented"] = measured.pop("8.weight")
        elif self.fault == "shape":
            measured["8.weight"] = measured["8.weight"].flatten()
        else:
            measured["8.weight"] = measured["8.weight"] * float("nan")
        return measured


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("type", "'wrong' must return a dict.*not list"),
        ("key", "'wrong'.*missing: 8.weight; unknown: invented"),
        ("shape", r"'wrong' returned shape \(18,\) for '8.weight'"),
    ],
)
def test_importance_with_wrong_keys_or_shapes_is_an_error_that_names_them(fault, words):
    with pytest.raises(ImportanceError, match=words):
        importance(Wrong(fault=fault), tiny_net(), [])


def test_importance_that_is_not_finite_cannot_be_selected():
    measured = importance(Wrong(fault="nan"), tiny_net(), [])
    with pytest.raises(ImportanceError, match=r"8\.weight"):
        select(measured, 0.5)


def test_mistakes_in_python_get_the_same_clear_errors():
    model = tiny_net()
    with pytest.raises(UnknownNameError, match="did you mean 'magnitude'"):
        importance("magnitud", model, [])
    with pytest.raises(OptionError, match="magnitude"):
        importance("magnitude", model, [], temperature=3)
    with pytest.raises(OptionError, match="in the part itself"):
        importance(TrainModeSaliency(), model, batches(), temperature=3)
    with pytest.raises(OptionError, match=r"is not in \(0, 1\]"):
        select(importance("magnitude", model, []), 0)
    with pytest.raises(ImportanceError, match="same names"):
        select(importance("magnitude", model, []), 0.5, alive={})
    with pytest.raises(UnknownNameError, match="gem_miner"):
        search("gem_minr", model, tiny_data(), runtime=CPU)


def with_label(label, split):
    """Return tiny data, one label of which is another."""
    data = tiny_data()
    source = getattr(data, split)
    labels = source.labels.clone()
    labels[0] = label
    return replace(data, classes=label + 1, **{split: replace(source, labels=labels)})


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_label_without_an_output_is_told_before_anything_is_computed(split, fabric):
    model, data, plan = tiny_net(), tiny_data(), Plan(epochs=1)
    how, words = {"fabric": fabric}, rf"{split} split .* label 7, .*3 outputs"
    ticket = search("magnitude", model, data, density=0.5, **how)
    wrong = with_label(7, split)
    heard = []
    with pytest.raises(DataError, match=words):
        search("gem_miner", model, wrong, epochs=8, observers=[heard.append], **how)
    with pytest.raises(DataError, match=words):
        gemkit.finetune(ticket, model, wrong, plan=plan, observers=[heard.append], **how)
    with pytest.raises(DataError, match=words):
        gemkit.evaluate(ticket, model, wrong, split=split, **how)
    assert heard == []
    other = "test" if split == "train" else "train"
    assert 0 <= gemkit.evaluate(ticket, model, wrong, split=other, **how) <= 1


def test_importance_on_labels_without_an_output_is_refused():
    wrong = [(images, labels + 3) for images, labels in batches()]
    with pytest.raises(DataError, match=r"batch 0 holds label 5, and the network has 3 outputs"):
        importance("snip", tiny_net(), wrong)


def test_labels_may_be_probabilities_and_classes_more_than_labels():
    soft = [(images, F.one_hot(labels, 3).float()) for images, labels in batches()]
    hard = importance("snip", tiny_net(), batches())
    for name, value in importance("snip", tiny_net(), soft).items():
        torch.testing.assert_close(value, hard[name])
    search("magnitude", tiny_net(), replace(tiny_data(), classes=9), density=0.5, runtime=CPU)


class Counting(nn.Module):
    """Counts images in a buffer and draws random numbers, whatever its mode."""

    def __init__(self):
        super().__init__()
        self.net = tiny_net()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        self.seen += len(images)
        return self.net(images) + torch.rand(())


def test_counting_outputs_leaves_no_trace():
    model = Counting().train()
    state = torch.get_rng_state()
    check_labels(model, tiny_data())
    assert model.seen == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


@pytest.mark.parametrize("name", ["uniform", "popup"])
def test_learned_scores_say_nothing_before_a_search(name):
    with pytest.raises(ImportanceError, match=f"'{name}' are learned.*use gemkit.search"):
        importance(name, tiny_net(), batches())


def test_a_ticket_records_the_plan_and_what_brought_its_parts(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    own = load_plugins(files=[file], only=[]).recipe("steady")
    found = search(own, tiny_net(), tiny_data(), density=0.5, runtime=CPU, epochs=2)
    digest = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert found.info.versions["mine.py"] == digest
    assert set(found.info.versions) == {"gemkit", "torch", "mine.py"}
    assert found.info.plan.epochs == found.info.epochs == 0, "a one-shot pruner does not train"

    learned = search("gem_miner", tiny_net(), tiny_data(), density=0.5, runtime=CPU, epochs=4)
    assert set(learned.info.versions) == {"gemkit", "torch"}
    plan = learned.info.plan
    assert (plan.epochs, plan.lr, plan.weight_decay) == (4, 6.0, 0.0), "with what was left open"


def test_a_part_written_on_the_spot_is_recorded_too(monkeypatch):
    recipe = load_plugins(only=[]).recipe("magnitude")
    recipe = recipe.model_copy(update={"scores": TrainModeSaliency()})
    registry = load_plugins(only=[])
    here = Path(__file__)
    digest = hashlib.sha256(here.read_bytes()).hexdigest()
    assert versions_of(recipe.parts().values(), registry) == {here.name: f"sha256:{digest}"}
    monkeypatch.setattr(TrainModeSaliency, "__module__", "notebook")
    assert versions_of(recipe.parts().values(), registry) == {"notebook": "unknown"}


def test_every_public_name_can_be_imported_and_is_listed():
    assert dir(gemkit) == gemkit.__all__
    for name in gemkit.__all__:
        assert getattr(gemkit, name) is not None
    assert set(gemkit.__all__) == set(gemkit._HOME)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        gemkit.nothing_like_this  # noqa: B018
