"""One objective and one metric for a whole run: search, scores, fine-tuning and evaluation."""

import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU, tiny_data, tiny_net
from torch import nn
from torchmetrics import MeanMetric

from gemkit import Data, Plan, Ticket, evaluate, finetune, importance, load_plugins, search, select
from gemkit.builtin.objectives import BinaryCrossEntropy, KullbackLeibler, MeanSquaredError
from gemkit.core.errors import (
    DataError,
    FitError,
    ImportanceError,
    OptionError,
    TicketError,
    TrainingError,
)
from gemkit.core.events import EpochEnded, Noted
from gemkit.core.probe import Wanted
from gemkit.core.tensors import generator
from gemkit.parts.now import Now
from gemkit.parts.objective import CrossEntropy, FunctionObjective, matched
from gemkit.pruning import finetune as pruning
from gemkit.training.calibration import draw
from gemkit.training.device import make_fabric
from gemkit.training.evaluation import _value, measure
from gemkit.training.metrics import METRICS, metric_named
from gemkit.training.task import Task, task_from

REGISTRY = load_plugins(only=[])
PLAN = Plan(epochs=3, batch_size=16, lr=0.5)
KINDS = {"values": "mse", "labels": "binary"}


def squared(outputs, targets):
    return (outputs - targets).square().mean()


def found(objective, data, pruner="gem_miner", **how):
    how = {"density": 0.5, "plan": PLAN, "runtime": CPU, "on_collapse": "warn", **how}
    return search(pruner, tiny_net(), data, objective=objective, **how)


def batch_of(data):
    return next(iter(data.train.batches(16, seed=0)))


# --- losses --------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.sampled_from([(4, 1), (4, 3), (5, 2, 2)]))
def test_the_losses_are_what_their_formulas_say(seed, shape):
    rng = generator(seed, "values")
    outputs, targets = torch.randn(shape, generator=rng), torch.rand(shape, generator=rng)
    batch = (torch.zeros(shape[0]), targets.squeeze(1) if shape[1] == 1 else targets)
    loss = MeanSquaredError().loss(outputs, batch, Now())
    torch.testing.assert_close(loss, ((outputs - targets) ** 2).sum() / targets.numel())
    p = 1 / (1 + (-outputs.double()).exp())
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()
    loss = BinaryCrossEntropy().loss(outputs, batch, Now())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)


def test_targets_are_never_broadcast():
    outputs = torch.zeros(4, 1)
    assert matched(torch.arange(4), outputs).tolist() == [[0.0], [1.0], [2.0], [3.0]]
    with pytest.raises(DataError, match=r"shape \[4\] for each sample.* outputs of shape \[1\]"):
        matched(torch.zeros(4, 4), outputs)
    with pytest.raises(DataError, match="both must be the same"):
        MeanSquaredError().loss(torch.zeros(4, 3), (outputs, torch.zeros(4)), Now())


def test_a_function_gets_real_targets_in_the_shape_of_the_outputs():
    """[4] against [4, 1] would compare every output with every target."""
    shapes = []

    def seen(outputs, targets):
        shapes.append(tuple(targets.shape))
        return squared(outputs, targets) if targets.is_floating_point() else outputs.sum()

    targets = torch.arange(4.0)
    loss = FunctionObjective(function=seen).loss
    assert loss(targets[:, None], (None, targets), Now()) == 0
    assert loss(targets, (None, targets[:, None]), Now()) == 0
    loss(torch.zeros(4, 3), (None, targets.long()), Now())
    loss(torch.zeros(4, 1), (None, targets.long()), Now())
    assert shapes == [(4, 1), (4,), (4,), (4,)], "numbers of classes stay as they are"


def test_a_function_must_return_one_number():
    per_sample = FunctionObjective(function=lambda outputs, targets: outputs.sum(1))
    with pytest.raises(TrainingError, match=r"returns shape \[4\]; it must return a tensor"):
        per_sample.loss(torch.zeros(4, 2), (torch.zeros(4), torch.zeros(4)), Now())
    with pytest.raises(TrainingError, match="returns float"):
        FunctionObjective(function=lambda *_: 1.0).loss(torch.zeros(4, 2), (None, None), Now())


# --- one task everywhere -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pruner", ["gem_miner", "snip", "grasp", "gradual_magnitude"])
def test_pruners_find_tickets_for_other_targets(kind, pruner):
    data, events = tiny_data(targets=kind), []
    ticket = found(KINDS[kind], data, pruner, observers=[events.append])
    assert ticket.info.objective == {"name": KINDS[kind]}
    assert ticket.info.classes is None
    trained = finetune(ticket, tiny_net(), data, plan=PLAN, runtime=CPU, observers=[events.append])
    assert trained.info.objective == {"name": KINDS[kind]}
    metric = METRICS[REGISTRY.build("objectives", KINDS[kind]).metric]
    assert {event.metric for event in events if isinstance(event, EpochEnded)} == {metric.name}
    before, after = (
        evaluate(one, tiny_net(), data, runtime=CPU, metric="loss") for one in (ticket, trained)
    )
    assert after < before, "fine-tuning lowers the loss that is measured"


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_measured_by_the_objective(kind):
    """Against autograd on the whole network."""
    data, model = tiny_data(targets=kind), tiny_net().eval()
    images, targets = batch_of(data)
    given_scores = importance("snip", model, [(images, targets)], objective=KINDS[kind])
    losses = {"values": F.mse_loss, "labels": F.binary_cross_entropy_with_logits}
    losses[kind](model(images), targets).backward()
    for name, own in given_scores.items():
        weight = model.get_parameter(name)
        torch.testing.assert_close(own, (weight * weight.grad).abs().detach())


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_scores_by_the_objective(kind):
    """Cross-entropy would take such targets for probabilities, and rank otherwise."""
    data, model = tiny_data(targets=kind), tiny_net()
    batches = draw(data.train, Wanted(1), PLAN.batch_size, seed=0, turn=0)
    own, other = (
        select(importance("snip", model, batches, objective=objective), 0.5)
        for objective in (KINDS[kind], "cross_entropy")
    )
    ticket = found(KINDS[kind], data, "snip")
    assert all(torch.equal(ticket.mask[name], mask) for name, mask in own.items())
    assert any(not torch.equal(ticket.mask[name], mask) for name, mask in other.items())


@pytest.mark.parametrize(("pruner", "count"), [("snip", 3), ("gem_miner", 2 + 3 * 2)])
def test_steps_and_checks_for_signal_use_the_objective(pruner, count):
    """SNIP trains nothing: the function is called at the start, for scores, and at the end.

    Gem-Miner's scores are learned, in three epochs of two steps.
    """
    calls = []

    def noted(outputs, targets):
        calls.append(len(outputs))
        return squared(outputs, targets)

    found(noted, tiny_data(targets="values"), pruner, metric="r2")
    assert len(calls) == count


def test_grasp_of_values_has_neither_temperature_nor_classes():
    data, model = tiny_data(targets="values"), tiny_net()
    batches = [batch_of(data)]
    one, other = (
        importance("grasp", model, batches, objective="mse", temperature=temperature)
        for temperature in (1.0, 200.0)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    own = importance("grasp", model, [batch_of(tiny_data())], temperature=1.0)
    hot = importance("grasp", model, [batch_of(tiny_data())], temperature=200.0)
    assert any(not torch.allclose(own[name], hot[name]) for name in own)


def test_a_function_is_the_objective_it_computes():
    data = tiny_data(targets="values")
    named, called = found("mse", data), found(squared, data)
    assert all(torch.equal(called.mask[name], mask) for name, mask in named.mask.items())
    assert called.info.objective["name"] == "function"
    assert called.info.objective["function"].endswith("test_task.squared")
    tuned = {"plan": PLAN, "runtime": CPU}
    one = finetune(named, tiny_net(), data, **tuned)
    other = finetune(called, tiny_net(), data, objective=squared, **tuned)
    assert all(torch.equal(other.state[name], state) for name, state in one.state.items())
    value = evaluate(other, tiny_net(), data, runtime=CPU, objective=squared)
    expected = evaluate(one, tiny_net(), data, runtime=CPU)
    assert value == pytest.approx(expected, rel=1e-5)


def test_fine_tuning_minimizes_the_objective():
    """Smoothing in fine-tuning alone gives other weights for the same mask."""
    data = tiny_data()
    ticket = found("cross_entropy", data)
    assert ticket == found(None, data)
    smooth = {"name": "cross_entropy", "smoothing": 0.3}
    plain, other = (
        finetune(ticket, tiny_net(), data, plan=PLAN, runtime=CPU, objective=objective)
        for objective in (None, smooth)
    )
    assert plain.digest() != other.digest()
    assert other.info.objective == {**smooth, "weight": 1.0}
    assert plain.info.objective is None


def test_the_recipes_own_objective_is_only_for_its_search():
    data = tiny_data()
    recipe = REGISTRY.recipe("edge_popup", parts={"objective": "kl"})
    events = []
    ticket = found(None, data, recipe, observers=[events.append])
    assert ticket.info.objective is None
    assert not any("objective" in event.message for event in events if isinstance(event, Noted))
    found(CrossEntropy(smoothing=0.1), data, recipe, observers=[events.append])
    [note] = [
        event for event in events if isinstance(event, Noted) and "objective" in event.message
    ]
    assert "minimizes objective 'kl'" in note.message
    assert "'cross_entropy' of the run counts for scores" in note.message
    assert evaluate(ticket, tiny_net(), data, runtime=CPU) <= 1
    with pytest.raises(FitError, match=r"minimizes 'kl', which is for classes.*'mse' are values"):
        found("mse", tiny_data(targets="values"), recipe)


def test_the_usual_task_says_nothing_in_files():
    assert Task().to_data() == {}
    assert Task(CrossEntropy(), "accuracy").to_data() == {}
    assert Task(CrossEntropy(), "f1").to_data() == {"metric": "f1"}
    assert Task(MeanSquaredError()).to_data() == {"objective": {"name": "mse"}}


# --- metrics -------------------------------------------------------------------------------------


def counted(data, metric, model=None):
    task = Task({"classes": CrossEntropy, "labels": BinaryCrossEntropy, "values": MeanSquaredError}[
        METRICS[metric].targets
    ](), metric)  # fmt: skip
    return measure(model or tiny_net(), data.test, make_fabric(CPU), task)


@pytest.mark.parametrize("metric", [name for name in METRICS if name != "loss"])
def test_metrics_are_what_their_definitions_say(metric):
    kind = METRICS[metric].targets
    data, model = tiny_data(targets=kind), tiny_net().eval()
    images, targets = next(data.test.batches(100))
    outputs = model(images).detach().double()
    choice = outputs.argmax(1)
    hits = (outputs > 0) == (targets > 0.5) if kind == "labels" else None

    def f1(chosen, true):
        both = (chosen & true).sum().item()
        return 2 * both / max(1, chosen.sum().item() + true.sum().item())

    def jaccard(chosen, true):
        return (chosen & true).sum().item() / (chosen | true).sum().item()

    def precision(scores, true):
        order = scores.argsort(descending=True)
        ranked = true[order].double()
        return ((ranked.cumsum(0) / torch.arange(1, len(true) + 1)) * ranked).sum() / ranked.sum()

    def per_class(measured):
        values = [measured(k) for k in range(3)]
        return sum(float(value) for value in values) / 3

    expected = {
        "accuracy": lambda: (choice == targets).double().mean(),
        "balanced_accuracy": lambda: per_class(
            lambda k: (choice[targets == k] == k).double().mean()
        ),
        "f1": lambda: per_class(lambda k: f1(choice == k, targets == k)),
        "jaccard": lambda: per_class(lambda k: jaccard(choice == k, targets == k)),
        "multilabel_accuracy": lambda: hits.double().mean(),
        "multilabel_f1": lambda: per_class(lambda k: f1(outputs[:, k] > 0, targets[:, k] > 0.5)),
        "multilabel_average_precision": lambda: per_class(
            lambda k: precision(outputs[:, k], targets[:, k])
        ),
        "mean_squared_error": lambda: (outputs - targets).square().mean(),
        "mean_absolute_error": lambda: (outputs - targets).abs().mean(),
        "r2": lambda: per_class(
            lambda k: (
                1
                - (outputs[:, k] - targets[:, k]).square().sum()
                / (targets[:, k] - targets[:, k].mean()).square().sum()
            )
        ),
    }[metric]()
    assert counted(data, metric) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)


def test_small_logits_are_logits():
    """torchmetrics takes a batch between 0 and 1 for probabilities, and 0.2 for a no."""
    metric = METRICS["multilabel_accuracy"]
    meter = metric.make(2)
    meter.update(*metric.prepared(torch.tensor([[0.2, 0.3]]), torch.ones(1, 2)))
    assert meter.compute() == 1


def test_a_share_of_a_label_counts_from_one_half():
    metric = METRICS["multilabel_accuracy"]
    _, targets = metric.prepared(torch.zeros(1, 4), torch.tensor([[0.0, 0.4, 0.5, 0.9]]))
    assert targets.tolist() == [[0, 0, 1, 1]]
    outputs, targets = metric.prepared(torch.zeros(0, 4), torch.zeros(0, 4))
    assert outputs.shape == targets.shape == (0, 4), "the share of a process may be empty"


@pytest.mark.parametrize(
    "metric", [name for name, own in METRICS.items() if own.targets == "labels"]
)
def test_one_label_needs_no_dimension_of_its_own(metric):
    rows = torch.randn(20, 4, generator=generator(0, "rows"))
    pair = (rows, (rows[:, 0] > 0).float())
    data = Data.of_tensors(train=pair, test=pair)
    column = nn.Linear(4, 1)
    line = nn.Sequential(column, nn.Flatten(0))
    assert counted(data, metric, line) == counted(data, metric, column)


def test_the_loss_is_a_metric_of_every_objective():
    data, model = tiny_data(), tiny_net().eval()
    images, labels = next(data.test.batches(100))
    value = measure(model, data.test, make_fabric(CPU), Task(CrossEntropy(smoothing=0.2), "loss"))
    expected = F.cross_entropy(model(images), labels, label_smoothing=0.2)
    assert value == pytest.approx(expected.item(), rel=1e-5)


def test_a_metric_without_a_value_is_refused():
    meter = MeanMetric(nan_strategy="disable")
    meter.update(torch.tensor(torch.inf))
    with pytest.raises(TrainingError, match="metric 'r2' is inf"):
        _value(meter, "r2")


@pytest.mark.parametrize("columns", [1, 3])
def test_r2_is_exact_far_from_zero(columns):
    """R² does not depend on where zero is; sums in single precision lose it at an offset."""
    draw = torch.Generator().manual_seed(0)
    targets = 1e4 + torch.rand(1000, columns, generator=draw)
    outputs = targets + 0.1 * torch.rand(1000, columns, generator=draw)
    metric = METRICS["r2"]
    meter = metric.meter(outputs, targets)
    for part, own in zip(outputs.split(100), targets.split(100), strict=True):
        meter.update(*metric.prepared(part, own))
    y, f = targets.double(), outputs.double()
    expected = 1 - ((y - f) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)
    assert float(meter.compute()) == pytest.approx(float(expected.mean()), rel=1e-6)


@pytest.mark.parametrize(("metric", "best"), [("mean_squared_error", min), ("r2", max)])
def test_the_best_epoch_is_by_the_direction_of_the_metric(metric, best):
    data, events = tiny_data(targets="values"), []
    ticket = found("mse", data, "random")
    plan = Plan(epochs=3, batch_size=8, lr=4.0, lr_schedule="constant", select="best")
    told = {"observers": [events.append], "metric": metric, "runtime": CPU}
    trained = finetune(ticket, tiny_net(), data, plan=plan, **told)
    values = [event.value for event in events if isinstance(event, EpochEnded)]
    assert values.index(best(values)) < len(values) - 1, "or the last epoch would do"
    value = evaluate(trained, tiny_net(), data, split="validation", runtime=CPU, metric=metric)
    assert value == pytest.approx(best(values), rel=1e-5)


def test_accuracy_is_not_what_another_metric_is():
    known = ("search", 1, 0.5, 0.25, 0.1, 0.1, 1.0)
    assert EpochEnded(*known).accuracy == 0.25
    with pytest.raises(AttributeError, match="measures 'r2', not accuracy"):
        _ = EpochEnded(*known, metric="r2").accuracy


# --- mistakes ------------------------------------------------------------------------------------

VALUES, LABELS, CLASSES = (tiny_data(targets=kind) for kind in ("values", "labels", "classes"))
PAIR = (torch.zeros(8, *CLASSES.shape), torch.zeros(8))
SINGLE = Data.of_tensors(train=PAIR, test=PAIR)
MISTAKES = {
    "no classes": (VALUES, {}, DataError, "objective 'cross_entropy' is for classes.*'mse'"),
    "unknown": (VALUES, {"objective": "mes"}, Exception, "unknown objective 'mes'; did you mean"),
    "field": (VALUES, {"objective": {"name": "mse", "x": 1}}, OptionError, "x does not exist"),
    "metric": (VALUES, {"objective": "mse", "metric": "f2"}, OptionError, "no metric 'f2'.*, r2$"),
    "misfit": (CLASSES, {"metric": "r2"}, OptionError, "'r2' is for values.* are classes"),
    "dense": (CLASSES, {"objective": "kl"}, OptionError, "only a search can minimize it"),
    "classes": (
        CLASSES,
        {"objective": "mse"},
        DataError,
        "'mse' is for values.* give float targets",
    ),
    "values": (
        CLASSES,
        {"objective": squared, "metric": "r2"},
        DataError,
        "metric 'r2' is for values",
    ),
    "shape": (SINGLE, {"objective": "mse"}, DataError, r"the train split.*shape \[\].*\[3\]"),
    "a class": (VALUES, {"objective": nn.MSELoss}, OptionError, r"a class; give .* MSELoss\(\)"),
    "a number": (
        VALUES,
        {"objective": "mse", "metric": 3},
        OptionError,
        "metric = 3: should be a name",
    ),
    "no density": (CLASSES, {"density": None}, OptionError, "density: None is not a number"),
    "yes": (CLASSES, {"density": True}, OptionError, "density: True is not a number"),
    "density": (CLASSES, {"density": 7}, OptionError, r"density: 7 is not in \(0, 1\].*7%"),
    "no shares": (VALUES, {"objective": "binary"}, DataError, "must be 0 or 1"),
    "function": (
        VALUES,
        {"objective": squared, "metric": "accuracy"},
        DataError,
        "metric 'accuracy' is for classes",
    ),
    "vector": (
        VALUES,
        {"objective": lambda outputs, targets: outputs.sum(1)},
        TrainingError,
        "must return a tensor with one number",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_before_any_training(mistake):
    data, how, error, words = MISTAKES[mistake]
    events = []
    with pytest.raises(error, match=words) as caught:
        found(how.pop("objective", None), data, observers=[events.append], **how)
    assert "\n" not in str(caught.value)
    assert not any(isinstance(event, EpochEnded) for event in events)


def test_importance_without_an_objective_is_for_classes():
    batch = batch_of(VALUES)
    with pytest.raises(DataError, match=r"are float32.* such as objective='mse'"):
        importance("snip", tiny_net(), [batch])
    assert importance("magnitude", tiny_net(), [batch]), "which uses no targets"


@pytest.mark.parametrize("density", [None, True, [1], 0.0, float("nan")])
def test_a_density_is_a_number_or_a_text_in_every_call(density):
    with pytest.raises(OptionError, match=r"density: .* is not"):
        importance("magnitude", tiny_net(), [], density=density)
    with pytest.raises(OptionError, match=r"density: .* is not"):
        select({"0.weight": torch.rand(4)}, density)


def test_indices_for_a_network_of_values_are_refused():
    table = (torch.randint(0, 9, (20, 4)), torch.arange(20) % 2)
    data = Data.of_tensors(train=table, test=table)
    assert data.indices
    with pytest.raises(DataError, match=r"int64, so they count as indices.* give values as float"):
        search("snip", nn.Sequential(nn.Linear(4, 2)), data, runtime=CPU)


class Reader(nn.Module):
    """Embeds four tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(32, 2)

    def forward(self, tokens):
        return self.head(self.table(tokens).flatten(1))


def tokens_data():
    tokens = torch.randint(0, 9, (20, 4), generator=generator(0, "tokens"))
    pair = (tokens, torch.arange(20) % 2)
    return Data.of_tensors(train=pair, test=pair)


def test_tokens_are_compared_with_the_dense_network():
    recipe = REGISTRY.recipe("edge_popup", parts={"objective": "kl"})
    how = {"density": 0.7, "plan": PLAN, "runtime": CPU, "on_collapse": "warn"}
    assert search(recipe, nn.Sequential(Reader()), tokens_data(), **how).info.shape == (4,)


def test_synflow_is_not_for_tokens():
    data, model = tokens_data(), nn.Sequential(Reader())
    with pytest.raises(ImportanceError, match="these inputs are indices such as tokens"):
        search("synflow", model, data, plan=PLAN, runtime=CPU)
    with pytest.raises(ImportanceError, match="these inputs are indices such as tokens"):
        importance("synflow", model, [batch_of(data)])


@pytest.mark.parametrize(
    ("inputs", "network"),
    [
        (torch.randint(0, 9, (20, 4), generator=generator(0, "tokens")), Reader),
        (torch.randn(20, 4, generator=generator(0, "rows")), lambda: nn.Linear(4, 2)),
        (
            torch.randn(20, 1, 4, generator=generator(0, "signals")),
            lambda: nn.Sequential(nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(6, 2)),
        ),
        (torch.randint(0, 255, (20, 4)).byte(), lambda: nn.Linear(4, 2)),
    ],
    ids=["tokens", "rows", "signals", "bytes"],
)
@pytest.mark.parametrize("pruner", ["snip", "gem_miner"])
def test_inputs_need_not_be_images(inputs, network, pruner, tmp_path):
    torch.manual_seed(0)
    model, labels = nn.Sequential(network()), torch.arange(20) % 2
    data = Data.of_tensors(train=(inputs, labels), test=(inputs, labels))
    how = {"density": 0.7, "plan": PLAN, "runtime": CPU, "on_collapse": "warn"}
    ticket = search(pruner, model, data, **how)
    ticket.save(tmp_path / "ticket")
    again = Ticket.load(tmp_path / "ticket")
    assert again == ticket
    assert again.info.shape == tuple(inputs.shape[1:])
    trained = finetune(again, model, data, plan=PLAN, runtime=CPU)
    assert 0 <= evaluate(trained, model, data, runtime=CPU) <= 1


# --- files ---------------------------------------------------------------------------------------


def test_a_ticket_records_its_task_and_files_run_no_function(tmp_path):
    data, file = tiny_data(targets="values"), tmp_path / "ticket"
    found(squared, data, "random", metric="r2").save(file)
    ticket = Ticket.load(file)
    assert ticket.info.metric == "r2"
    with pytest.raises(OptionError, match=r"test_task\.squared', and a file alone runs no code"):
        evaluate(ticket, tiny_net(), data, runtime=CPU)
    with pytest.raises(TicketError, match="give it as `task`"):
        pruning.evaluate(ticket, tiny_net(), data, runtime=CPU)
    value = evaluate(ticket, tiny_net(), data, runtime=CPU, objective=squared, metric="r2")
    assert value == evaluate(ticket, tiny_net(), data, runtime=CPU, objective="mse", metric="r2")


def test_a_usual_ticket_says_nothing_of_its_task():
    info = found(None, tiny_data()).info.model_dump(mode="json")
    assert not {"objective", "metric"} & info.keys()
    assert "classes" in json.dumps(info)


def test_tasks_are_made_of_names_tables_parts_and_functions():
    for spec in ("mse", {"name": "mse"}, MeanSquaredError()):
        assert task_from(REGISTRY, spec) == Task(MeanSquaredError())
    assert task_from(REGISTRY) == Task(CrossEntropy())
    assert task_from(REGISTRY, squared).metric is metric_named("loss")
    with pytest.raises(OptionError, match="only a search"):
        task_from(REGISTRY, KullbackLeibler())
