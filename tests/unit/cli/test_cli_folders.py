"""Commands find the tickets in a run's folder, which may be moved."""

import shutil
from pathlib import Path

import pytest
from cli_runs import TINY, Gemkit, answer, commands_in

from gemkit.cli.tickets import FOUND, TRAINED
from gemkit.runs.directory import RunDir

RANDOM = ("run", "--pruner", "random", *TINY, "--out", "run", "--json")


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


def test_the_file_names_are_those_of_a_run():
    run_dir = RunDir(Path("run"))
    assert (run_dir.ticket.name, run_dir.finetuned.name) == (FOUND, TRAINED)


def test_each_command_takes_its_ticket_from_a_folder(gemkit):
    answer(gemkit(*RANDOM))
    for command, name in {
        "eval": TRAINED,
        "compact": TRAINED,
        "bench": TRAINED,
        "finetune": FOUND,
        "ratios copy": FOUND,
        "ticket show": FOUND,
        "ticket verify": FOUND,
    }.items():
        more = {"finetune": ("--epochs", 1, "--device", "cpu"), "bench": ("--turns", 1)}
        shown = gemkit(*command.split(), "run", *more.get(command, ()))
        assert shown.exit_code == 0, shown.stderr
        assert shown.stderr.startswith(f"note: taking run/{name}\n"), command
    assert Path("run/finetuned-compact.safetensors").exists()
    assert Path("run/ticket-finetuned.safetensors").exists()


def test_the_ticket_that_is_named_is_used(gemkit):
    result = answer(gemkit(*RANDOM))
    reported = answer(gemkit("eval", "run", "--device", "cpu", "--json"))
    assert (reported["ticket"], reported["stage"]) == (f"run/{TRAINED}", "finetuned")
    assert reported["accuracy"] == result["accuracy_after"]
    for name in (TRAINED, "result.json"):  # not fine-tuned yet
        Path("run", name).unlink()
    reported = answer(gemkit("eval", "run", "--device", "cpu", "--json"))
    assert (reported["ticket"], reported["stage"]) == (f"run/{FOUND}", "found")
    assert "note" not in gemkit("eval", f"run/{FOUND}", "--device", "cpu").stderr


@pytest.mark.parametrize(
    "command", ["eval", "finetune", "compact", "bench", "ticket show", "check"]
)
def test_a_folder_without_a_ticket_is_an_error_with_a_way_out(gemkit, command):
    Path("empty").mkdir()
    Path("begun").mkdir()
    Path("begun/config.toml").touch()
    for folder, way_out in {"empty": "`gemkit runs`", "begun": "`gemkit resume begun`"}.items():
        shown = gemkit(*command.split(), folder)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert f"{folder} is a folder without " in shown.stderr
        assert FOUND in shown.stderr
        assert way_out in shown.stderr
    shown = gemkit(*command.split(), "nowhere")
    assert shown.exit_code == 2
    assert "nowhere does not exist; give a ticket file, or the folder of a run" in shown.stderr


@pytest.mark.parametrize("pruner", ["random", "imp_short_cold"])
def test_the_result_of_a_moved_run_has_its_new_paths(gemkit, pruner):
    words = ("run", "--pruner", pruner, *TINY, "--json", "--out")
    reported = answer(gemkit(*words, "run"))
    assert bool(reported["ladder"]) == (pruner != "random")
    Path("far").mkdir()
    shutil.move("run", "far/moved")
    again = answer(gemkit(*words, "far/moved"))
    assert again["run_dir"] == "far/moved"
    files = [again["ticket"], again["finetuned"], *(level["ticket"] for level in again["ladder"])]
    assert all(file.startswith("far/moved/") and Path(file).is_file() for file in files)
    assert again["accuracy_after"] == reported["accuracy_after"]
    assert " run/" not in gemkit(*words[:-2], "--out", "far/moved").stdout


def test_a_finished_run_is_not_repeated(gemkit):
    words = ("run", "--pruner", "random", *TINY)
    first = answer(gemkit(*words, "--json"))
    again = gemkit(*words, "--json")
    assert answer(again) == first
    assert "this is the result of an earlier run; --new makes another one" in again.stderr
    assert len(list(Path("runs").iterdir())) == 1
    new = answer(gemkit(*words, "--new", "--json"))
    assert new["run_dir"] == f"{first['run_dir']}-2"
    other = answer(gemkit(*words, "-o", "finetune.lr=0.01", "--json"))
    assert other["run_dir"] == f"{first['run_dir']}-3", "another configuration is another run"
    assert answer(gemkit(*words, "-o", "finetune.lr=0.01", "--json")) == other


def test_an_interrupted_run_is_not_taken_for_a_finished_one(gemkit):
    words = ("run", "--pruner", "random", *TINY, "--json")
    first = answer(gemkit(*words))
    Path(first["run_dir"], "checkpoints").mkdir()
    assert answer(gemkit(*words))["run_dir"] == f"{first['run_dir']}-2"


def test_runs_are_listed_with_seed_network_and_data_and_means_over_seeds(gemkit):
    runs = {
        seed: answer(gemkit("run", "--pruner", "random", *TINY, "--seed", seed, "--json"))
        for seed in (0, 1)
    }
    gemkit("run", "--pruner", "magnitude", *TINY)
    shown = gemkit("runs").stdout.splitlines()
    for one in runs.values():
        [line] = [line for line in shown if line.startswith(f"{Path(one['run_dir']).name} ")]
        assert line.split()[1:6] == ["done", "random", "conv4", "fake", str(one["seed"])]
    listed = answer(gemkit("runs", "--json"))
    [mean] = listed["means"]
    assert (mean["pruner"], mean["model"], mean["dataset"], mean["seeds"]) == (
        "random",
        "conv4",
        "fake",
        2,
    )
    both = [one["after"] for one in runs.values()]
    assert mean["after"]["mean"] == sum(both) / 2
    assert shown[-2].startswith("random")
    assert shown[-1].startswith("±: half the 95 % confidence interval")
    assert len(listed["runs"]) == 3
