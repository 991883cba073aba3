"""Dense maps as targets: a class, a label or a value for every place of an image."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU
from torch import nn
from torch.utils.data import TensorDataset

from gemkit import Data, Plan, evaluate, finetune, importance, search
from gemkit.core.errors import DataError
from gemkit.core.probe import IGNORED
from gemkit.core.tensors import generator
from gemkit.testing.clauses.datasets import check_split
from gemkit.training.device import make_fabric
from gemkit.training.evaluation import measure
from gemkit.training.metrics import METRICS
from gemkit.training.task import Task

PLAN = Plan(epochs=4, batch_size=8, lr=0.2)
HOW = {"density": 0.5, "plan": PLAN, "runtime": CPU, "on_collapse": "warn", "progress": False}
CLASSES = 3


def images(samples=24):
    return torch.randn(samples, 2, 8, 6, generator=generator(0, "images"))


def classes(inputs):
    """0, 1 or 2 at every place, by the sums around it; the first row of images is not labelled."""
    sums = F.avg_pool2d(inputs.sum(1, keepdim=True), 3, 1, 1).squeeze(1)
    labels = (sums > -0.2).long() + (sums > 0.2).long()
    labels[:, 0] = IGNORED
    return labels


TARGETS = {
    "cross_entropy": (classes, CLASSES),
    "mse": (lambda inputs: inputs.mean(1), 1),
    "binary": (lambda inputs: (inputs > 0).float(), 2),
}


def unet(outputs):
    """A tiny segmentation network: down, up, and a skip."""
    torch.manual_seed(0)
    return Unet(outputs)


class Unet(nn.Module):
    """One level of a U-Net."""

    def __init__(self, outputs):
        super().__init__()
        self.enter = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Conv2d(16, outputs, 1)

    def forward(self, inputs):
        first = torch.relu(self.norm(self.enter(inputs)))
        return self.head(torch.cat([first, torch.relu(self.up(torch.relu(self.down(first))))], 1))


def data_of(objective, kind="tensors"):
    inputs = images()
    pair = (inputs, TARGETS[objective][0](inputs))
    if kind == "tensors":
        return Data.of_tensors(train=pair, validation=pair, test=pair)
    own = TensorDataset(*pair)
    if kind == "data sets":
        return Data.of_datasets(train=own, validation=own, test=own)
    loader = torch.utils.data.DataLoader(own, batch_size=8)
    return Data.of_loaders(train=loader, validation=loader, test=loader)


@pytest.mark.parametrize("kind", ["tensors", "data sets", "loaders"])
@pytest.mark.parametrize("pruner", ["snip", "gem_miner", "grasp"])
@pytest.mark.parametrize("objective", TARGETS)
def test_pruners_find_tickets_for_maps(objective, pruner, kind):
    data, model = data_of(objective, kind), unet(TARGETS[objective][1])
    ticket = search(pruner, model, data, objective=objective, **HOW)
    trained = finetune(ticket, model, data, plan=PLAN, runtime=CPU)
    before, after = (
        evaluate(one, model, data, runtime=CPU, metric="loss") for one in (ticket, trained)
    )
    assert after < before


def outputs_of(model, data):
    inputs, targets = next(data.test.batches(24))
    with torch.no_grad():
        return model.eval()(inputs), targets


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1", "jaccard", "loss"])
@pytest.mark.parametrize("kind", ["tensors", "loaders"])
def test_metrics_of_classes_count_places_that_are_labelled(metric, kind):
    data, model = data_of("cross_entropy", kind), unet(CLASSES)
    outputs, targets = outputs_of(model, data_of("cross_entropy"))
    there = targets != IGNORED
    choice, truth = outputs.argmax(1)[there], targets[there]

    def both(k):
        return ((choice == k) & (truth == k)).sum().item()

    def size(of, k):
        return (of == k).sum().item()

    shares = {
        "balanced_accuracy": lambda k: both(k) / size(truth, k),
        "f1": lambda k: 2 * both(k) / (size(choice, k) + size(truth, k)),
        "jaccard": lambda k: both(k) / (size(choice, k) + size(truth, k) - both(k)),
    }
    picked = outputs.log_softmax(1).gather(1, targets.clamp(min=0)[:, None]).squeeze(1)
    expected = {
        "accuracy": lambda: (choice == truth).float().mean(),
        "loss": lambda: -picked[there].mean(),
    }.get(metric, lambda: sum(map(shares.get(metric), range(CLASSES))) / CLASSES)()
    value = measure(model, data.test, make_fabric(CPU), Task(metric_name=metric))
    assert value == pytest.approx(float(expected), rel=1e-5)


def test_the_loss_counts_places_and_not_batches():
    """The second batch has one labelled row, and a third has none."""
    inputs, targets = images(), classes(images())
    targets[8:16, 1:] = IGNORED
    targets[8:16, 1] = 1
    targets[16:] = IGNORED
    batches = [(inputs[at : at + 8], targets[at : at + 8]) for at in (0, 8, 16)]
    data = Data.of_loaders(train=batches, validation=batches, test=batches, classes=CLASSES)
    model = unet(CLASSES).eval()
    value = measure(model, data.test, make_fabric(CPU), Task(metric_name="loss"))
    with torch.no_grad():
        expected = F.cross_entropy(model(inputs), targets).item()
    assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "metric", [one.name for one in METRICS.values() if one.targets == "labels"]
)
def test_metrics_of_labels_are_those_of_all_places(metric):
    from gemkit.builtin.objectives import BinaryCrossEntropy

    data, model = data_of("binary"), unet(2)
    outputs, targets = outputs_of(model, data)
    flat = outputs.movedim(1, -1).flatten(0, 2), targets.movedim(1, -1).flatten(0, 2)
    own = METRICS[metric]
    meter = own.make(2)
    meter.update(*own.prepared(*flat))
    value = measure(model, data.test, make_fabric(CPU), Task(BinaryCrossEntropy(), metric))
    assert value == pytest.approx(float(meter.compute()), rel=1e-5)


@given(st.integers(0, 100))
def test_snip_of_maps_is_that_of_autograd(seed):
    model = unet(CLASSES).eval()
    inputs = torch.randn(4, 2, 8, 6, generator=generator(seed, "maps"))
    found = importance("snip", model, [(inputs, classes(inputs))])
    model.zero_grad()
    F.cross_entropy(model(inputs), classes(inputs)).backward()
    for name, own in found.items():
        weight = model.get_parameter(name)
        torch.testing.assert_close(own, (weight * weight.grad).abs().detach())


def test_outputs_of_another_size_are_refused():
    data = data_of("cross_entropy")
    small = nn.Sequential(unet(CLASSES), nn.AvgPool2d(2))
    with pytest.raises(
        DataError, match=r"outputs of shape \['classes', 8, 6\], and has \[3, 4, 3\]"
    ):
        search("snip", small, data, **HOW)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(96, CLASSES))
    with pytest.raises(DataError, match=r"has \[3\]; several labels .* objective 'binary'"):
        search("snip", flat, data, **HOW)
    with pytest.raises(DataError, match="label 2, and the network has 2 outputs"):
        search("snip", unet(2), data, **HOW)


def test_places_that_do_not_count_have_one_number():
    inputs, targets = images(), classes(images())
    for wrong in (-1, -99):
        targets[0, 0, 0] = wrong
        with pytest.raises(DataError, match="some are negative"):
            Data.of_tensors(train=(inputs, targets), test=(inputs, targets))
    with pytest.raises(DataError, match=r"not labels of shape \[24, 1\]"):
        Data.of_tensors(train=(inputs, targets[:, :1, 0] * 0), test=(inputs, targets))
    assert data_of("cross_entropy").classes == CLASSES


def test_random_labels_leave_what_does_not_count():
    from gemkit.sanity.search_controls import RandomLabels

    train = data_of("cross_entropy").train
    other = RandomLabels().corrupt(train, CLASSES, generator(0, "labels"))
    assert torch.equal(other.labels == IGNORED, train.labels == IGNORED)
    assert other.labels.unique().tolist() == [IGNORED, 0, 1, 2]
    assert not torch.equal(other.labels, train.labels)


class Share:
    """A process of several, without the others."""

    def __init__(self, rank, world):
        self.device, self.global_rank, self.world_size = torch.device("cpu"), rank, world


@pytest.mark.parametrize("metric", ["accuracy", "f1", "jaccard", "loss"])
def test_a_process_without_a_sample_in_the_last_batch_measures_the_others(metric):
    inputs = images(513)[:, :, :2, :2]
    pair = (inputs, torch.randint(0, CLASSES, (513, 2, 2), generator=generator(1, "labels")))
    data = Data.of_tensors(train=pair, validation=pair, test=pair)
    torch.manual_seed(0)
    model, task = nn.Conv2d(2, CLASSES, 1), Task(metric_name=metric)
    assert 0 <= measure(model, data.test, Share(1, 2), task) < 10


def step_of(plan, targets):
    """Return the weights after one step on all samples."""
    inputs = images()
    pair = (inputs, targets)
    data = Data.of_tensors(train=pair, validation=pair, test=pair)
    torch.manual_seed(0)
    model = nn.Conv2d(2, CLASSES, 1)
    ticket = search("random", model, data, **HOW)
    trained = finetune(ticket, model, data, plan=plan, runtime=CPU, progress=False)
    return trained.apply(model).state_dict()


def test_parts_of_a_batch_count_by_their_places():
    targets = classes(images())
    targets[:12, 1:] = IGNORED  # the first parts have fewer places than the others
    targets[:12, 1] = 1
    plan = Plan(epochs=1, batch_size=24, lr=0.5, momentum=0, weight_decay=0)
    whole = step_of(plan, targets)
    parts = step_of(plan.model_copy(update={"accumulate": 4}), targets)
    for name, value in whole.items():
        assert torch.allclose(value, parts[name], rtol=1e-4, atol=1e-6), name


def test_a_batch_without_a_place_that_counts_changes_nothing_and_stops_nothing():
    targets = classes(images())
    targets[::2] = IGNORED
    plan = Plan(epochs=2, batch_size=1, lr=0.1, momentum=0, weight_decay=0)
    assert all(value.isfinite().all() for value in step_of(plan, targets).values())


def test_labels_in_a_column_are_not_taken_for_one_hot_labels():
    pair = (torch.randn(8, 4), torch.randint(0, CLASSES, (8, 1)))
    data = Data.of_loaders(train=[pair], validation=[pair], test=[pair])
    with pytest.raises(DataError, match=r"labels\.squeeze\(1\)"):
        search("snip", nn.Linear(4, CLASSES), data, **HOW)


def test_the_contract_takes_maps_with_places_that_do_not_count():
    data = data_of("cross_entropy")
    assert data.classes == CLASSES
    check_split("train", data.train, data)
    data.train.targets()[0, 1, 1] = -1
    with pytest.raises(AssertionError, match="labels outside"):
        check_split("train", data.train, data)
