"""Runs with an objective and a metric of their own: files, tables, checks and commands."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, answer, commands_in
from kept import Killed

import gemkit
from gemkit import Plan, RunConfig, RunSettings, Runtime, load_plugins
from gemkit.core.errors import OptionError
from gemkit.core.events import StepEnded
from gemkit.parts.objective import CrossEntropy
from gemkit.report.verdicts import verdict_table
from gemkit.runs.read_config import config_from, load_config
from gemkit.sanity.trials import Trial
from gemkit.sanity.verdicts import verdicts
from gemkit.training.metrics import METRICS, values_of

VALUES = """
import torch
from gemkit import Data, DatasetPart, hookimpl


class Rows(DatasetPart):
    '''Rows of six numbers, and two targets.'''

    name = "rows"

    def load(self, folder):
        rows = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
        pair = (rows, torch.stack([rows[:, 0] * rows[:, 1], rows.sum(1)], 1))
        return Data.of_tensors(train=pair, test=pair)


@hookimpl
def gemkit_datasets():
    return [Rows]
"""
OWN = """
pruner = "own"
scores = { name = "popup" }
rounding = { name = "topk" }
allocation = { name = "uniform" }
schedule = { name = "constant" }
objective = { name = "cross_entropy", weight = 100.0 }
"""
SHORT = ("--epochs", "3", "--batch-size", "16", "--density", "0.3", "--device", "cpu")
ROWS = ("--plugin", "rows.py", "--dataset", "rows", "--model", "lenet300", *SHORT)
MSE = ("--objective", "mse", "--on-collapse", "warn")
SMALL = RunConfig(
    pruner="random",
    density=0.3,
    model={"name": "conv4", "width": 4},
    dataset={"name": "fake", "samples": 60},
    search=Plan(epochs=3, batch_size=16),
    finetune=Plan(batch_size=16),
    runtime=Runtime(device="cpu"),
)


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "rows.py").write_text(VALUES)
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")


def config_in(folder):
    return tomllib.loads(Path(folder, "config.toml").read_text())


# --- a run of values -----------------------------------------------------------------------------


def test_a_run_of_values_says_what_it_measures(command):
    said = command("run", *ROWS, *MSE, "--out", "run", "--check", "shuffle", "--check-seeds", "3")
    assert said.exit_code == 0, said.stderr
    assert "accuracy" not in said.stdout + said.stderr
    assert "mean_squared_error before fine-tuning: " in said.stdout
    assert "loss" in said.stderr
    assert "a rise in mean_squared_error counts from 1 % of the tickets' mean on" in said.stdout
    result = json.loads(Path("run/result.json").read_text())
    assert (result["metric"], result["higher_is_better"]) == ("mean_squared_error", False)
    assert not {"accuracy_before", "accuracy_after"} & result.keys()
    assert result["after"] < result["before"]
    config = config_in("run")
    assert config["objective"] == {"name": "mse"}
    assert "metric" not in config
    assert "classes" not in config["data"]
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert {line["metric"] for line in epochs} == {"mean_squared_error"}
    assert all("accuracy" not in line for line in epochs)
    report = json.loads(Path("run/checks.json").read_text())
    assert (report["metric"], report["higher_is_better"]) == ("mean_squared_error", False)
    assert report["setting"]["objective"] == {"name": "mse"}
    own = {one["seed"]: one["after"] for one in report["trials"] if one["check"] == "ticket"}
    drops = [
        one["after"] - own[one["seed"]] for one in report["trials"] if one["check"] == "shuffle"
    ]
    [verdict] = report["verdicts"]
    assert verdict["drop"] == pytest.approx(sum(drops) / 3)
    assert verdict["margin"] == pytest.approx(0.01 * sum(own.values()) / 3)
    listed = command("runs", ".")
    assert f"mean_squared_error {result['after']:.4g}" in " ".join(listed.stdout.split())


def test_commands_on_a_ticket_use_its_task(command):
    run = answer(command("run", *ROWS, *MSE, "--pruner", "snip", "--out", "run", "--json"))
    measured = answer(command("eval", "run", "--plugin", "rows.py", "--device", "cpu", "--json"))
    assert (measured["metric"], measured["value"]) == ("mean_squared_error", run["after"])
    assert "accuracy" not in measured
    other = ("--metric", "r2", "--device", "cpu", "--json")
    assert answer(command("eval", "run", "--plugin", "rows.py", *other))["value"] < 1
    again = ("--epochs", "3", "--batch-size", "16", "--device", "cpu", "--json")
    tuned = answer(command("finetune", "run", "--plugin", "rows.py", *again))
    assert (tuned["before"], tuned["after"]) == (run["before"], run["after"])
    checked = command("check", "run", "--plugin", "rows.py", "--checks", "random_labels,half_data",
                      "--seeds", "1", "--device", "cpu")  # fmt: skip
    assert checked.exit_code == 0, checked.stderr
    assert "not made" not in checked.stdout
    wrong = command("eval", "run", "--plugin", "rows.py", "--metric", "accuracy")
    assert wrong.exit_code == 2
    assert "metric 'accuracy' is for classes" in wrong.stderr
    shown = command("ticket", "verify", "run")
    assert shown.exit_code == 0, shown.stderr


def test_a_killed_run_of_values_resumes_to_the_same_bits(command):
    registry = load_plugins(only=(), files=["rows.py"])
    config = SMALL.replace(
        dataset="rows", model="lenet300", objective="mse", metric="r2", pruner="gem_miner",
        on_collapse="warn", run=RunSettings(checkpoint_minutes=0),
        finetune=Plan(batch_size=16, select="best"),
    )  # fmt: skip
    whole = gemkit.run(config, "whole", registry=registry)
    steps = []

    def mortal(event):
        steps.append(isinstance(event, StepEnded))
        if sum(steps) in (3, 8, 14):
            steps.append(True)
            raise Killed

    for _ in range(4):
        try:
            result = gemkit.run(config, "pieces", registry=registry, observers=[mortal])
            break
        except Killed:
            continue
    for name in ("ticket.safetensors", "finetuned.safetensors", "config.toml"):
        assert Path("whole", name).read_bytes() == Path("pieces", name).read_bytes()
    assert result.after == whole.after


# --- the command line ----------------------------------------------------------------------------


def test_a_typed_objective_is_that_of_all_phases(command):
    smooth = ("--objective", "cross_entropy", "-o", "objective.smoothing=0.3")
    for folder, words in {"usual": (), "all": smooth}.items():
        done = command("run", *TINY, "--out", folder, "--on-collapse", "warn", *words)
        assert done.exit_code == 0, done.stderr
    written = {"name": "cross_entropy", "weight": 1.0, "smoothing": 0.3}
    assert config_in("all")["objective"] == written
    assert "objective" not in config_in("all")["recipe"]
    assert "objective" not in config_in("usual")
    fields_alone = command("run", *TINY, "--out", "fields", "--on-collapse", "warn", *smooth[2:])
    assert fields_alone.exit_code == 0, fields_alone.stderr
    assert config_in("fields") == config_in("all")


def test_a_typed_objective_that_replaces_the_recipes_is_noted(command):
    Path("own.toml").write_text(OWN)
    typed = ("--recipe", "own.toml", "--objective", "cross_entropy", "--on-collapse", "warn")
    done = command("run", *TINY, *typed)
    assert done.exit_code == 0, done.stderr
    assert "note: --objective replaces what the search of pruner 'own' minimizes" in done.stderr
    assert "cross_entropy [weight 100.0]" in done.stderr
    same = command("run", *TINY, *typed, "-o", "objective.weight=100.0", "--out", "same")
    assert same.exit_code == 0, same.stderr
    assert "note:" not in same.stderr


def test_an_objective_with_a_dense_network_is_the_searchs_alone(command):
    done = command("run", *TINY, "--pruner", "edge_popup", "--objective", "kl", "--out", "run",
                   "-o", "objective.weight=2.0")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "objective" not in config_in("run")
    assert config_in("run")["recipe"]["objective"] == {"name": "kl", "weight": 2.0}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--objective", "mes"), "unknown objective 'mes'; did you mean 'mse'?"),
        (("--metric", "accurate"), "there is no metric 'accurate'; did you mean 'accuracy'"),
        (("--metric", "r2"), "metric 'r2' is for values"),
        (("--objective", "mse", "-o", "objective.smoothing=1"), "smoothing does not exist"),
    ],
)
def test_mistakes_are_one_sentence(command, words, reason):
    done = command("run", *TINY, *words)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_metric_by_name(command):
    result = answer(command("run", *TINY, "--pruner", "random", "--metric", "f1", "--json"))
    assert result["metric"] == "f1"
    assert 0 <= result["after"] <= 1
    assert config_in(result["run_dir"])["metric"] == "f1"


# --- functions -----------------------------------------------------------------------------------


def absolute(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets).abs()


def test_a_run_with_a_function_is_resumed_from_python_alone(command):
    first = gemkit.run(SMALL.replace(objective=absolute), "run")
    assert (first.metric, first.higher_is_better) == ("loss", False)
    recorded = config_in("run")["objective"]
    assert recorded["name"] == "function"
    assert recorded["function"].endswith("test_task_runs.absolute")
    again = gemkit.run({**SMALL.to_data(), "objective": absolute}, "run")
    assert again.after == first.after
    for words in (("resume", "run"), ("eval", "run"), ("check", "run")):
        refused = command(*words)
        assert refused.exit_code == 2
        assert "absolute', and a file alone runs no code" in refused.stderr
    named = answer(command("eval", "run", "--objective", "cross_entropy", "--device", "cpu",
                           "--metric", "loss", "--json"))  # fmt: skip
    assert named["value"] == pytest.approx(first.after)
    with pytest.raises(OptionError, match="a file alone runs no code"):
        gemkit.run(load_config("run/config.toml"), "other")


def test_a_configuration_takes_parts_names_tables_and_functions():
    assert SMALL.replace(objective=CrossEntropy()) != SMALL
    for objective in ("mse", {"name": "mse"}, absolute):
        config = config_from({"objective": objective})
        assert config.objective == objective
    with pytest.raises(ValueError, match="MSELoss is a class; give an instance"):
        SMALL.replace(objective=torch.nn.MSELoss)
    assert "objective" not in SMALL.to_data()
    for usual in ("cross_entropy", {"name": "cross_entropy"}, CrossEntropy()):
        assert "objective" not in SMALL.replace(objective=usual).to_data()
    smooth = SMALL.replace(objective=CrossEntropy(smoothing=0.1)).to_data()
    assert smooth["objective"]["smoothing"] == 0.1
    assert SMALL.replace(objective="mse", metric="r2").to_data()["metric"] == "r2"
    with pytest.raises(ValueError, match="None"):
        SMALL.replace(objective={"name": "mse", "weight": None})


# --- verdicts ------------------------------------------------------------------------------------


def trials(metric):
    """A control that is worse by about one."""
    sign = 1 if METRICS[metric].higher_is_better else -1
    for seed in range(4):
        for check, value in (("ticket", 5.0), ("shuffle", 5.0 - sign * (1 + 0.01 * seed))):
            values = {"before": value, "after": value}
            yield Trial(check=check, seed=seed, kept=5, prunable=10, **values)


@pytest.mark.parametrize("metric", ["mean_squared_error", "r2", "loss"])
def test_a_verdict_respects_the_direction(metric):
    own = list(trials(metric))
    [verdict] = verdicts(own, metric=METRICS[metric])
    assert verdict.outcome == "passes"
    assert verdict.drop == pytest.approx(1.015)
    assert verdict.margin == pytest.approx(0.05)
    other = "r2" if metric != "r2" else "loss"
    [wrong] = verdicts(own, metric=METRICS[other])
    assert wrong.outcome == "fails"
    text = verdict_table(own, [verdict], METRICS[metric])
    assert ("rise" in text) == (not METRICS[metric].higher_is_better)
    assert "+1.015" in text


def test_old_results_have_accuracies_alone():
    old = {"accuracy_before": 0.5, "accuracy_after": 0.75}
    assert (
        values_of(old)
        == values_of({**old, "before": None, "after": None})
        == {"metric": "accuracy", "higher_is_better": True, "before": 0.5, "after": 0.75}
    )
