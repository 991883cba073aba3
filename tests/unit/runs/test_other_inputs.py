"""Runs on tables, signals and tokens, through every command."""

import json
import re
from pathlib import Path

import pytest
from cli_runs import answer, commands_in
from kept import Killed

import gemkit
from gemkit import Plan, RunConfig, Runtime
from gemkit.core.events import StepEnded
from gemkit.data import generated

PAIRS = {"table": "mlp", "digit_rows": "conv1d", "sequences": "transformer"}
SHORT = ("--epochs", "3", "--batch-size", "60", "--density", "0.5", "--device", "cpu")
ROUGH = ("-o", "search.on_no_signal=warn", "-o", "model.width=8")


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """Generate a few samples only."""
    monkeypatch.setattr(generated, "_SIZES", (240, 60, 60))


@pytest.fixture
def gemkit_in(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("dataset", PAIRS)
def test_every_command_takes_them(dataset, gemkit_in):
    words = ("--dataset", dataset, "--model", PAIRS[dataset], *SHORT, *ROUGH, "--out", "run")
    found = answer(gemkit_in("run", *words, "--check", "shuffle", "--check-seeds", "1", "--json"))
    assert found["accuracy_after"] == found["after"]
    assert answer(gemkit_in("eval", "run", "--json"))["accuracy"] == found["after"]
    checks = "reinit,invert,random_labels,shuffled_pixels,half_data,permute,random_like"
    checked = gemkit_in("check", "run", "--checks", checks, "--seeds", "1", "--json")
    trials = {trial["check"] for trial in answer(checked)["trials"]}
    assert trials == {"ticket", "shuffle", *checks.split(",")}
    assert gemkit_in("resume", "run").exit_code == 0
    for command in (("finetune", "run", "--epochs", "1", "--compact"), ("compact", "run")):
        shown = gemkit_in(*command)
        assert shown.exit_code == 0, shown.stderr
    assert "form" in gemkit_in("bench", "run", "--turns", "1", "--batch", "3").stdout


def test_real_values_of_the_table(gemkit_in):
    words = ("--dataset", "table", "--model", "mlp", *SHORT, *ROUGH, "-o", "dataset.target=value")
    found = answer(gemkit_in("run", *words, "--objective", "mse", "--json"))
    assert found["metric"] == "mean_squared_error"
    refused = gemkit_in("run", *words)
    assert refused.exit_code == 2
    assert "choose an objective for them, such as 'mse'" in refused.stderr


@pytest.mark.parametrize(
    ("model", "dataset", "sentence"),
    [
        ("conv4", "sequences", "takes values, and the inputs of data set 'sequences' are int64"),
        ("mlp", "sequences", "model 'transformer' takes tokens"),
        ("lenet300", "sequences", "count as tokens; model 'transformer' takes tokens"),
        ("timm:resnet10t", "sequences", "cannot be built|cannot take"),
        ("resnet18", "table", r"takes images, not inputs of shape \[20\]"),
        ("mobilenet_v2", "digit_rows", r"takes images, not inputs of shape \[8, 8\]"),
        ("conv1d", "digits", r"takes signals of \[channels, steps\], .* model 'mlp' takes any"),
        ("transformer", "table", "takes tokens, int64, .* are values"),
        ("transformer", "digits", "takes tokens, int64, .* are values"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(model, dataset, sentence, gemkit_in):
    refused = gemkit_in("run", "--model", model, "--dataset", dataset, *SHORT)
    assert refused.exit_code == 2
    assert not Path("runs").exists()
    assert "Traceback" not in refused.stderr
    assert re.search(sentence, refused.stderr.splitlines()[-1]), refused.stderr


def test_synflow_of_tokens_is_refused_in_a_sentence(gemkit_in):
    words = ("--dataset", "sequences", "--model", "transformer", *SHORT, "--pruner", "synflow")
    refused = gemkit_in("run", *words)
    assert refused.exit_code == 2
    assert "these inputs are indices such as tokens" in refused.stderr


def test_embeddings_are_named_as_not_pruned_unless_the_recipe_names_them(gemkit_in):
    words = ("--dataset", "sequences", "--model", "transformer", *SHORT, "--pruner", "snip")
    shown = gemkit_in("run", *words, "--finetune-epochs", "1")
    assert "not pruned: 'tokens.weight', 'positions.weight'" in shown.stderr
    kinds = 'prunable.kinds=["conv", "linear", "attention", "embedding"]'
    pruned = gemkit_in("run", *words, "--finetune-epochs", "1", "-o", kinds)
    assert pruned.exit_code == 0, pruned.stderr
    assert "not pruned" not in pruned.stderr


@pytest.mark.parametrize("dataset", ["table", "sequences"])
def test_a_killed_run_is_resumed_to_the_same_bits(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    plan = Plan(epochs=3, batch_size=60, on_no_signal="warn")
    config = RunConfig(
        model={"name": PAIRS[dataset], "width": 8},
        dataset=dataset,
        density=0.5,
        search=plan,
        finetune=plan,
        runtime=Runtime(device="cpu"),
    ).replace(run={"checkpoint_minutes": 0.0})
    whole = gemkit.run(config, tmp_path / "whole", progress=False)
    steps = []

    def kill(event):
        if isinstance(event, StepEnded):
            steps.append(event)
            if len(steps) == 9:
                raise Killed

    with pytest.raises(Killed):
        gemkit.run(config, tmp_path / "killed", observers=[kill], progress=False)
    resumed = gemkit.resume(tmp_path / "killed", progress=False)
    for name in ("ticket.safetensors", "finetuned.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert (resumed.before, resumed.after) == (whole.before, whole.after)
    assert json.loads((tmp_path / "whole" / "result.json").read_text())
