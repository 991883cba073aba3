"""Iterative pruning on the command line: levels, rewinding by option, epochs of all rounds."""

import json
import tomllib
from pathlib import Path

import pytest
from cli_runs import TINY, Gemkit, answer, commands_in

from gemkit.tickets.ticket import Ticket


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


def test_an_iterative_run_leaves_a_ticket_for_every_round(gemkit):
    result = answer(gemkit("run", "--pruner", "imp_long_cold", *TINY, "--json"))
    folder = Path(result["run_dir"]) / "ladder"
    names = sorted(file.name for file in folder.iterdir())
    assert [name[:5] for name in names] == [f"{number:03d}-d" for number in range(1, 7)]
    assert [level["ticket"] for level in result["ladder"]] == [str(folder / name) for name in names]
    for level in result["ladder"]:
        ticket = Ticket.load(level["ticket"])
        assert ticket.density == level["density"]
        assert f"{ticket.density:.4f}" in level["ticket"]
        assert ticket.info.model == result["model"]
    assert ticket == Ticket.load(result["ticket"])
    assert result["epochs"] == 18
    assert json.loads((folder.parent / "result.json").read_text()) == result


def test_the_accuracy_of_a_level_is_that_of_its_own_network(gemkit):
    result = answer(gemkit("run", "--pruner", "imp_long_cold", *TINY, "--json"))
    lines = (Path(result["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    epochs = [line for line in map(json.loads, lines) if line["event"] == "epoch"]
    trained = {
        round(line["density"], 9): line["accuracy"] for line in epochs if line["phase"] == "search"
    }
    *levels, last = result["ladder"]
    assert [level["accuracy"] for level in levels] == [
        trained[round(level["density"], 9)] for level in levels
    ]
    assert last["accuracy"] is None, "fine-tuning trains the last one"


def test_any_level_can_be_fine_tuned_and_evaluated(gemkit):
    result = answer(gemkit("run", "--pruner", "gradual_magnitude", *TINY, "--json"))
    level = result["ladder"][0]
    assert level["accuracy"] is not None
    trained = answer(gemkit("finetune", level["ticket"], "--epochs", "1", "--json"))
    assert trained["density"] == level["density"]
    assert answer(gemkit("eval", trained["ticket"], "--json"))["stage"] == "finetuned"


def test_the_levels_are_printed(gemkit):
    shown = gemkit("run", "--pruner", "lr_rewinding", *TINY)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count("ladder/") == 6
    assert "validation  ticket" in shown.stdout
    assert "ladder/001-d0.8" in shown.stdout
    assert "search 18/18  density 0." in shown.stderr


def test_a_run_that_trains_no_weights_has_no_levels(gemkit):
    result = answer(gemkit("run", "--pruner", "random", *TINY, "--json"))
    assert result["ladder"] == []
    assert not (Path(result["run_dir"]) / "ladder").exists()


def test_short_rounds_have_their_own_length_and_print_a_note(gemkit):
    shown = gemkit("run", "--pruner", "imp_short_cold", *TINY, "--json")
    result = answer(shown)
    assert (result["epochs"], result["finetune_epochs"]) == (30, 3)
    assert (
        "trains rounds of 5 epochs (schedule.every); --epochs 3 does not change that"
        in shown.stderr
    )
    config = tomllib.loads((Path(result["run_dir"]) / "config.toml").read_text())
    assert config["search"]["epochs"] == 5
    unasked = [word for word in TINY if word not in {"--epochs", "3"}]
    few = ("--finetune-epochs", "0", "-o", "schedule.every=1")
    assert "note:" not in gemkit("run", "--pruner", "imp_short_cold", *unasked, *few).stderr


def test_rewinding_is_set_by_option_in_run_and_show(gemkit):
    options = ("-o", "rewind.weights=1.5", "-o", "rewind.clock=0")
    shown = tomllib.loads(gemkit("show", "imp_long_warm", *options).stdout)
    assert shown["rewind"] == {"weights": 1.5, "clock": 0.0}
    result = answer(gemkit("run", "--pruner", "imp_long_warm", *TINY, *options, "--json"))
    assert result["recipe"]["rewind"] == shown["rewind"]
    assert "rewind" not in tomllib.loads(gemkit("show", "gem_miner").stdout)


def test_a_shown_recipe_that_rewinds_runs_from_its_file(gemkit, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(gemkit("show", "imp_long_warm").stdout)
    one = answer(gemkit("run", "--recipe", file, *TINY, "--json"))
    other = answer(gemkit("run", "--pruner", "imp_long_warm", *TINY, "--json"))
    assert Ticket.load(one["ticket"]) == Ticket.load(other["ticket"])


def test_a_ticket_shows_how_its_search_rewound(gemkit):
    result = answer(gemkit("run", "--pruner", "lr_rewinding", *TINY, "--json"))
    shown = gemkit("ticket", "show", result["ticket"])
    assert "rewind    clock 0.0" in shown.stdout
    assert "18 epochs, 6 freezes" in shown.stdout


def test_the_fields_of_rewind_are_listed_like_those_of_parts(gemkit):
    [rewind] = answer(gemkit("parts", "rewind", "--json"))["rewind"]
    assert [field["name"] for field in rewind["fields"]] == ["weights", "clock"]
    assert {tuple(field["bounds"].items()) for field in rewind["fields"]} == {((">=", 0),)}
    assert "weights = (unset)" in gemkit("parts").stdout
