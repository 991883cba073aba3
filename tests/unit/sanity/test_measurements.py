"""Measurements: linear mode connectivity against independent numbers, and how they are reported."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from check_contexts import REGISTRY, context_with
from cli_runs import TINY, Gemkit, answer, commands_in
from torch import nn

import gemkit
from gemkit import Data, Measurement, Plan, RunConfig, RunSettings
from gemkit.core.errors import CheckError, GemkitError, PluginError, TrainingError, UnknownNameError
from gemkit.plugins.registry import Entry
from gemkit.report.verdicts import summary_table
from gemkit.runs.checking import make_checks
from gemkit.sanity.connectivity import (
    LinearModeConnectivity,
    barrier_of,
    errors_between,
    interpolated,
    with_own_statistics,
)
from gemkit.sanity.context import CheckContext
from gemkit.sanity.measurement import measured_numbers
from gemkit.sanity.trials import Measured, Unmade, pending, trials
from gemkit.sanity.verdicts import Summary, summaries

NAME = "linear_mode_connectivity"


# --- linear mode connectivity --------------------------------------------------------------------


def linear(inputs=2, classes=2):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes, bias=False))


def mlp(inputs, hidden, classes):
    return lambda: nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden, bias=False),
        nn.ReLU(),
        nn.Linear(hidden, classes, bias=False),
    )


def normed(inputs=6, hidden=5, classes=3):
    return lambda: nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes, bias=False),
    )


def data_of(images, labels):
    pair = (torch.as_tensor(images).float().reshape(len(labels), -1, 1, 1), torch.tensor(labels))
    return Data.of_tensors(train=pair, validation=pair, test=pair, classes=max(labels) + 1)


def dense_ticket(context, **weights):
    """Return a dense ticket of the context's network, with these weights."""
    ticket = replace(context, density=1.0).search()
    names = {name.replace("_", "."): torch.as_tensor(own).float() for name, own in weights.items()}
    return replace(ticket, state=ticket.state | {f"{n}.weight": w for n, w in names.items()})


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def clouds(classes=3, inputs=6, samples=60, seed=0):
    """Return noisy points around one centre per class, sorted by class, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.sort(np.arange(samples) % classes)
    return (2 * np.eye(classes, inputs))[labels] + rng.normal(size=(samples, inputs)), labels


def test_the_path_of_a_linear_model_from_right_to_wrong_is_known():
    """Half of the points on each side of 0; the second end has all signs flipped."""
    points = [[x, 0.0] for x in (-3, -2, -1, 1, 2, 3)]
    context = context_with(
        "random", network=linear(), data=data_of(points, [1, 1, 1, 0, 0, 0]), density=1.0
    )
    right = [[1.0, 0.0], [-1.0, 0.0]]
    one, other = (
        dense_ticket(context, **{"1": torch.tensor(right) * sign}) for sign in (1.0, -1.0)
    )
    errors = errors_between(one, other, context, points=5, renew_statistics=True)
    assert errors == [0.0, 0.0, 0.5, 1.0, 1.0], "at the middle all logits are 0, which is class 0"
    assert barrier_of(errors) == 0.5


def reference_errors(images, labels, ends, points, act=lambda x: x):
    """Compute the errors of a linear model, or of two layers, in plain numpy."""
    found = []
    for place in np.linspace(0, 1, points):
        layers = [(1 - place) * one + place * other for one, other in zip(*ends, strict=True)]
        hidden = images
        for layer in layers[:-1]:
            hidden = act(hidden @ layer.T)
        found.append(float(((hidden @ layers[-1].T).argmax(1) != labels).mean()))
    return found


@pytest.mark.parametrize("points", [3, 11])
def test_errors_of_a_linear_model_are_those_of_an_independent_implementation(points):
    images, labels = clouds()
    context = context_with(
        "random", network=linear(6, 3), data=data_of(images, labels.tolist()), density=1.0
    )
    weights = [drawn(seed, 3, 6) for seed in (1, 2)]
    one, other = (dense_ticket(context, **{"1": weight}) for weight in weights)
    expected = reference_errors(
        images.astype("f"), labels, [[weight.numpy()] for weight in weights], points
    )
    errors = errors_between(one, other, context, points=points, renew_statistics=True)
    assert errors == pytest.approx(expected, abs=1e-6)
    assert len(set(errors)) > 1
    assert errors != pytest.approx(list(reversed(expected)), abs=1e-6), "ends are not swapped"


def test_identical_ends_have_no_barrier():
    images, labels = clouds()
    context = context_with(
        "random", network=normed(), data=data_of(images, labels.tolist()), density=1.0
    )
    ticket = context.finetune(dense_ticket(context))
    errors = errors_between(ticket, ticket, context, points=11, renew_statistics=True)
    assert len(errors) == 11
    assert len(set(errors)) == 1
    assert barrier_of(errors) == 0.0


def test_two_permuted_copies_have_a_large_barrier():
    """Every class has one hidden unit; half-way, each unit is the mean of two others' weights."""
    classes = 4
    points, labels = np.eye(classes).repeat(5, 0), np.arange(classes).repeat(5)
    context = context_with(
        "random",
        network=mlp(classes, classes, classes),
        data=data_of(points, labels.tolist()),
        density=1.0,
    )
    eye, order = torch.eye(classes), torch.tensor([1, 0, 3, 2])
    one = dense_ticket(context, **{"1": eye, "3": eye})
    other = dense_ticket(context, **{"1": eye[order], "3": eye[:, order]})
    errors = errors_between(one, other, context, points=11, renew_statistics=True)
    assert (errors[0], errors[-1]) == (0.0, 0.0), "the same function"
    assert barrier_of(errors) == max(errors) == 0.5, "half-way, classes 0 and 1 look alike"
    ends = [[eye.numpy(), eye.numpy()], [eye[order].numpy(), eye[:, order].numpy()]]
    relu = lambda x: np.maximum(x, 0)  # noqa: E731
    assert errors == pytest.approx(reference_errors(points, labels, ends, 11, relu))


def normalized(images, weight):
    hidden = images @ weight.T
    return np.maximum((hidden - hidden.mean(0)) / np.sqrt(hidden.var(0, ddof=1) + 1e-5), 0)


def test_statistics_are_those_of_the_network_between_the_ends():
    images, labels = clouds()
    one_batch = Plan(epochs=1, batch_size=60)
    context = context_with(
        "random",
        network=normed(),
        data=data_of(images, labels.tolist()),
        density=1.0,
        finetune=one_batch,
    )
    layers = [(drawn(seed, 5, 6), drawn(seed + 9, 3, 5)) for seed in (1, 2)]
    one, other = (dense_ticket(context, **{"1": first, "4": last}) for first, last in layers)
    errors = errors_between(one, other, context, points=7, renew_statistics=True)
    expected = []
    for place in np.linspace(0, 1, 7):
        first, last = (((1 - place) * a + place * b).numpy() for a, b in zip(*layers, strict=True))
        logits = normalized(images.astype("f"), first) @ last.T
        expected.append(float((logits.argmax(1) != labels).mean()))
    assert errors == pytest.approx(expected, abs=1e-6)
    stale = errors_between(one, other, context, points=7, renew_statistics=False)
    assert stale != pytest.approx(expected, abs=1e-6)


def test_interpolated_statistics_belong_to_no_network_on_the_line():
    images, labels = clouds()
    context = context_with(
        "random",
        network=normed(),
        data=data_of(images, labels.tolist()),
        density=1.0,
        finetune=Plan(epochs=1, batch_size=60),
    )
    small = drawn(1, 5, 6)
    ends = [
        with_own_statistics(dense_ticket(context, **{"1": small * scale}), context)
        for scale in (1.0, 9.0)
    ]
    middle = interpolated(*ends, 0.5)
    true = (images.astype("f") @ (5 * small).numpy().T).var(0, ddof=1)
    own = with_own_statistics(middle, context)
    torch.testing.assert_close(own.state["2.running_var"], torch.tensor(true), rtol=1e-4, atol=0)
    assert (middle.state["2.running_var"] / own.state["2.running_var"] > 1.6).all(), "41 / 25"


def test_statistics_come_from_shuffled_batches():
    """These samples are sorted by class, and a batch of one class has too little variance."""
    images, labels = clouds(samples=96)
    data = data_of(images, labels.tolist())
    context = context_with(
        "random", network=normed(), data=data, density=1.0, finetune=Plan(epochs=1, batch_size=16)
    )
    weight = torch.eye(5, 6)
    own = with_own_statistics(dense_ticket(context, **{"1": weight}), context)
    true = torch.tensor(images[:, :3].var(0, ddof=1)).float()
    broken = torch.stack([x.flatten(1)[:, :3].var(0) for x, _ in data.train.batches(16)]).mean(0)
    torch.testing.assert_close(own.state["2.running_var"][:3], true, rtol=0.15, atol=0)
    assert (broken < 0.7 * true).all(), "batches in order would be noticed"
    assert int(own.state["2.num_batches_tracked"]) == 6
    again = with_own_statistics(own, context)
    assert again == own, "the same batches every time"


def test_weights_stay_when_statistics_are_recomputed_and_without_norms_nothing_changes():
    context = context_with("random")
    ticket = context.search()
    own = with_own_statistics(ticket, context)
    changed = {n for n, value in ticket.state.items() if not torch.equal(value, own.state[n])}
    assert changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert all(torch.equal(mask, own.mask[name]) for name, mask in ticket.mask.items())
    plain = context_with("random", network=linear(72, 3))
    bare = plain.search()
    assert with_own_statistics(bare, plain) is bare


def test_every_point_has_the_mask_of_the_ticket():
    context = context_with("random")
    ticket = context.search()
    one, other = (context.finetune(ticket, seed=seed) for seed in (1, 2))
    for place in (0.0, 0.3, 1.0):
        model = interpolated(one, other, place).apply(context.network())
        for name, mask in ticket.mask.items():
            assert not model.get_parameter(name)[~mask].any()
    assert interpolated(one, other, 0.0) == one
    last = interpolated(one, other, 1.0)
    assert all(torch.equal(last.state[name], other.state[name]) for name in ticket.state)
    assert not torch.equal(one.state["0.weight"], other.state["0.weight"])


def test_two_copies_start_from_the_ticket_with_seeds_of_their_own(monkeypatch):
    calls = []

    def finetune(self, ticket, *, seed=None, plan=None):
        calls.append((ticket, seed, plan))
        return ticket

    monkeypatch.setattr(CheckContext, "finetune", finetune)
    contexts = [context_with("random", seed=seed) for seed in (0, 0, 1)]
    ticket = contexts[0].search()
    for context in contexts:
        numbers = LinearModeConnectivity(points=3).measure(ticket, context)
        assert numbers["barrier"] == 0.0
    seeds = [seed for _, seed, _ in calls]
    assert seeds[:2] == seeds[2:4], "the same for the same seed"
    assert len({*seeds, 0, 1}) == 6, "others for another, and never the seed itself"
    assert all(given is ticket and plan is None for given, _, plan in calls)


def test_a_context_fine_tunes_with_another_seed_or_plan():
    context = context_with("random", seed=3)
    ticket = context.search()
    own, other = context.finetune(ticket), context.finetune(ticket, seed=4)
    assert own == context.finetune(ticket, seed=3)
    assert own != other
    assert all(torch.equal(own.mask[name], other.mask[name]) for name in own.mask)
    nothing = context.finetune(ticket, plan=Plan(epochs=0))
    assert all(torch.equal(ticket.state[name], nothing.state[name]) for name in ticket.mask)


def test_fine_tuning_without_a_step_is_refused():
    context = context_with("random", finetune=Plan(epochs=0))
    with pytest.raises(CheckError, match="0 epochs leave them equal; give --finetune-epochs"):
        LinearModeConnectivity().check_fit(context)


# --- numbers -------------------------------------------------------------------------------------


class Given(Measurement):
    """Returns what a test gives it."""

    name = "given"

    def measure(self, ticket, context):
        return GIVEN[-1](context.seed)


GIVEN = []


@pytest.fixture
def given():
    """Let `Given` return this."""
    GIVEN.clear()
    return lambda function: GIVEN.append(function) or Given()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not something of type NoneType"),
        ([1.0], "not something of type list"),
        ({}, "not no numbers"),
        ({"Bad name": 1.0}, "small letters, digits and _, a letter first, not 'Bad name'"),
        ({3: 1.0}, "not '3'"),
        ({"x": float("nan")}, "finite numbers .* not 'x = nan'"),
        ({"x": float("-inf")}, "not 'x = -inf'"),
        ({"x": 10**400}, "finite numbers"),
        ({"x": 1e200}, "finite numbers"),
        ({"x": True}, "not 'x = True'"),
        ({"x": torch.tensor(1.0)}, "not 'x = tensor"),
        ({"x": "1"}, "finite numbers"),
    ],
)
def test_anything_but_finite_numbers_with_plain_names_is_refused(value, words, given):
    context = context_with("random")
    with pytest.raises(CheckError, match=words):
        measured_numbers(given(lambda seed: value), context.search(), context)


def test_whole_numbers_are_numbers(given):
    context = context_with("random")
    numbers = measured_numbers(given(lambda seed: {"count": 3}), context.search(), context)
    assert numbers == {"count": 3.0}


def test_measurements_take_turns_with_controls_and_are_not_repeated(given):
    context = context_with("random")
    ticket = context.search()
    part = given(lambda seed: {"x": seed / 2})
    checks = {"shuffle": REGISTRY.build("checks", "shuffle"), "given": part}
    results = list(trials(ticket, checks, range(2), context))
    order = [("ticket", 0), ("shuffle", 0), ("given", 0), ("ticket", 1), ("shuffle", 1)]
    assert [(one.check, one.seed) for one in results] == [*order, ("given", 1)]
    assert results[-1] == Measured(check="given", seed=1, numbers={"x": 0.5})
    assert pending(list(checks), range(2), results[:-1]) == [("given", 1)]
    assert list(trials(ticket, checks, range(2), context, results)) == []


def test_a_measurement_that_fails_is_reported_and_the_others_continue(given):
    def fails(seed):
        raise TrainingError("diverged")

    context = context_with("random")
    checks = {"given": given(fails), "shuffle": REGISTRY.build("checks", "shuffle")}
    _, failed, shuffled = trials(context.search(), checks, [0], context)
    assert failed == Unmade(check="given", seed=0, reason="diverged")
    assert shuffled.check == "shuffle"


def test_numbers_are_summarized_over_the_seeds_that_have_them():
    values = [0.1, 0.4, 0.7]
    measured = [
        Measured(check="a", seed=seed, numbers={"x": value} | ({"y": 2.0} if seed == 1 else {}))
        for seed, value in enumerate(values)
    ]
    assert summaries(measured) == [
        Summary("a", "x", statistics.fmean(values), statistics.stdev(values), 3),
        Summary("a", "y", 2.0, None, 1),
    ]
    table = summary_table(summaries(measured)).splitlines()
    assert table[0].split() == ["measurement", "mean", "±", "std", "seeds"]
    assert table[1].split() == ["a", "x", "0.4", "±", "0.3", "3"]
    assert table[2].split() == ["a", "y", "2", "1"]


# --- by name -------------------------------------------------------------------------------------


def test_names_of_either_kind_are_found():
    made = make_checks(REGISTRY, ["shuffle", NAME], {NAME: {"points": 5}})
    assert made[NAME] == LinearModeConnectivity(points=5)
    with pytest.raises(UnknownNameError, match=r"measurement .* did you mean 'linear_mode_conn"):
        make_checks(REGISTRY, ["linear_mode_conectivity"])
    with pytest.raises(UnknownNameError, match=r"unknown check .* did you mean 'shuffle'"):
        make_checks(REGISTRY, ["shufle"])


def test_a_name_of_both_kinds_is_refused():
    measurements = {"shuffle": Entry(Given, "mine", "file mine.py")}
    registry = replace(REGISTRY, parts={**REGISTRY.parts, "measurements": measurements})
    with pytest.raises(PluginError, match=r"'shuffle' is a check and a measurement.*'mine'"):
        make_checks(registry, ["shuffle"])


# --- the command line ----------------------------------------------------------------------------

PLUGIN = '''
from gemkit import GemkitError, Measurement, hookimpl


class Seeded(Measurement):
    """The seed and the density, for tests."""

    name = "seeded"
    fails: int = 9

    def measure(self, ticket, context):
        if context.seed == self.fails:
            raise GemkitError("no luck")
        return {"own_seed": context.seed, "density": ticket.density}


@hookimpl
def gemkit_measurements():
    return [Seeded]
'''
SMALL = ("--device", "cpu", "--plugin", "mine.py", "--finetune-epochs", 1)


@pytest.fixture
def command(tmp_path, monkeypatch) -> Gemkit:
    monkeypatch.setenv("COLUMNS", "100")
    made = commands_in(tmp_path, monkeypatch)
    Path("mine.py").write_text(PLUGIN)
    return made


@pytest.fixture
def run(command) -> Path:
    """Make a run and return its folder."""
    return Path(answer(command("run", "--pruner", "random", *TINY, "--json"))["run_dir"])


def test_numbers_are_printed_and_saved(command, run):
    words = ("--checks", f"seeded,{NAME}", "-o", f"{NAME}.points=3", "--seeds", 2)
    shown = command("check", run, *words, *SMALL)
    assert shown.exit_code == 0, shown.stderr
    assert "[2/6] seed 0, seeded: own_seed 0, density 0.3" in shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["seeded", "own_seed", "0.5", "±", "0.7071", "2"] in rows
    assert any(row[:2] == [NAME, "barrier"] for row in rows)
    saved = json.loads((run / "checks.json").read_text())
    numbers = [(one["check"], one["seed"], list(one["numbers"])) for one in saved["measurements"]]
    ends = ["barrier", "first_error", "second_error"]
    assert numbers == [
        (name, seed, own)
        for seed in (0, 1)
        for name, own in (("seeded", ["own_seed", "density"]), (NAME, ends))
    ]
    first = {"check": "seeded", "number": "own_seed", "mean": 0.5, "std": 0.5**0.5, "seeds": 2}
    assert saved["summaries"][0] == pytest.approx(first)
    assert saved["verdicts"] == []
    assert [trial["check"] for trial in saved["trials"]] == ["ticket", "ticket"]


def test_measurements_are_resumed_like_trials(command, run):
    words = ("check", run, "--checks", "seeded", *SMALL, "--json")
    first = answer(command(*words, "--seeds", 1))
    more = command(*words, "--seeds", 2)
    assert "[2/2]" in more.stderr, "only the second seed is measured"
    assert answer(more)["measurements"][:1] == first["measurements"]
    again = command(*words, "--seeds", 2)
    assert "[1/" not in again.stderr
    assert answer(again)["measurements"] == answer(more)["measurements"]
    other = command(*words, "--seeds", 2, "-o", "seeded.fails=1")
    assert "[2/2] seed 1, seeded: not made: no luck" in other.stderr, "another field is another one"
    assert [one["seed"] for one in answer(other)["measurements"]] == [0]


def test_a_file_without_measurements_can_be_continued(command, run):
    words = ("check", run, *SMALL, "--seeds", 1, "--json")
    old = answer(command(*words, "--checks", "shuffle"))
    file = run / "checks.json"
    saved = json.loads(file.read_text())
    for key in ("measurements", "summaries"):
        del saved[key]
    file.write_text(json.dumps(saved))
    new = command(*words, "--checks", "shuffle,seeded")
    assert "[1/1] seed 0, seeded" in new.stderr
    assert answer(new)["trials"] == old["trials"]


@pytest.mark.parametrize(
    "numbers", ['{"x": NaN}', '{"x": 1e200}', '{"x y": 1}', "{}", '{"x": "1"}', "[1]"]
)
def test_a_damaged_measurement_is_refused(numbers, command, run):
    words = ("check", run, "--checks", "seeded", *SMALL, "--seeds", 1)
    assert command(*words).exit_code == 0
    file = run / "checks.json"
    saved = json.loads(file.read_text())
    saved["measurements"][0]["numbers"] = "HERE"
    file.write_text(json.dumps(saved).replace('"HERE"', numbers))
    damaged = command(*words)
    assert damaged.exit_code == 2
    assert "cannot be read as checks; replace it with --force" in damaged.stderr


def test_a_run_can_measure_its_ticket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        pruner="random",
        density=0.3,
        model={"name": "conv4", "width": 4},
        dataset={"name": "fake", "samples": 60},
        search=Plan(epochs=1, batch_size=16),
        run=RunSettings(checks=[NAME], check_seeds=1),
    )
    result = gemkit.run(config, "out")
    [measured] = result.checks["measurements"]
    assert measured["check"] == NAME
    assert measured["numbers"]["barrier"] >= 0
    again = gemkit.run(config, "out")
    assert again.checks["measurements"] == [measured]
    with pytest.raises(GemkitError, match="0 epochs leave them equal"):
        gemkit.run(config.replace(finetune=Plan(epochs=0)), "other")
    assert not Path("other").exists()


def test_the_parts_list_measurements(command):
    listed = command("parts", "measurements").stdout
    assert NAME in listed
    assert "points = 11" in listed
