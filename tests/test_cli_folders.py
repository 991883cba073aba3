"""A run's folder: it stands for its tickets, and may be moved."""

import shutil
from pathlib import Path

import pytest
from cli_runs import TINY, Gemkit, answer, commands_in

from gemkit.cli.ticket_argument import FOUND, TRAINED
from gemkit.rundir import RunDir

RANDOM = ("run", "--pruner", "random", *TINY, "--out", "run", "--json")


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


def test_the_files_are_called_as_a_run_calls_them():
    run_dir = RunDir(Path("run"))
    assert (run_dir.ticket.name, run_dir.finetuned.name) == (FOUND, TRAINED)


def test_a_folder_stands_for_the_ticket_that_suits_the_command(gemkit):
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


def test_the_file_that_is_taken_is_the_one_that_is_used(gemkit):
    result = answer(gemkit(*RANDOM))
    told = answer(gemkit("eval", "run", "--device", "cpu", "--json"))
    assert (told["ticket"], told["stage"]) == (f"run/{TRAINED}", "finetuned")
    assert told["accuracy"] == result["accuracy_after"]
    Path("run", TRAINED).unlink()
    told = answer(gemkit("eval", "run", "--device", "cpu", "--json"))
    assert (told["ticket"], told["stage"]) == (f"run/{FOUND}", "found")
    assert "note" not in gemkit("eval", f"run/{FOUND}", "--device", "cpu").stderr


@pytest.mark.parametrize(
    "command", ["eval", "finetune", "compact", "bench", "ticket show", "check"]
)
def test_a_folder_without_a_ticket_says_what_was_looked_for(gemkit, command):
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
def test_the_result_of_a_run_that_was_moved_tells_where_it_is_now(gemkit, pruner):
    words = ("run", "--pruner", pruner, *TINY, "--json", "--out")
    told = answer(gemkit(*words, "run"))
    assert bool(told["ladder"]) == (pruner != "random")
    Path("far").mkdir()
    shutil.move("run", "far/moved")
    again = answer(gemkit(*words, "far/moved"))
    assert again["run_dir"] == "far/moved"
    files = [again["ticket"], again["finetuned"], *(rung["ticket"] for rung in again["ladder"])]
    assert all(file.startswith("far/moved/") and Path(file).is_file() for file in files)
    assert again["accuracy_after"] == told["accuracy_after"]
    assert " run/" not in gemkit(*words[:-2], "--out", "far/moved").stdout
