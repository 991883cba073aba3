"""The command line, run for real on tiny data."""

import hashlib
import json
import math
import shlex
import tomllib
from pathlib import Path

import pytest
from cli_runs import PLUGIN, TINY, Gemkit, answer, commands_in

from gemkit.parts.scores import LearnedScores
from gemkit.plugins.loader import load_plugins
from gemkit.tickets.ticket import Ticket

PRUNERS = [
    *("gem_miner", "edge_popup", "global_ep", "gradual_ep"),
    *("gradual_ep_l2", "magnitude", "random", "dense"),
]
FILES = [
    *(".lock", "config.toml", "environment.json", "finetuned.safetensors"),
    *("log.txt", "metrics.jsonl", "result.json", "ticket.safetensors"),
]


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def tiny_ticket(gemkit) -> Path:
    """Search a random ticket and return its file."""
    return Path(answer(gemkit("run", "--pruner", "random", *TINY, "--json"))["ticket"])


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruner", PRUNERS)
def test_every_pruner_runs_and_answers_with_one_json_object(gemkit, pruner):
    result = answer(gemkit("run", "--pruner", pruner, *TINY, "--json"))
    target = 1.0 if pruner == "dense" else 0.3
    learned = isinstance(load_plugins().recipe(pruner).scores, LearnedScores)
    assert result["pruner"] == pruner
    assert result["density_target"] == target
    assert result["density"] == result["kept"] / result["prunable"] <= target + 1e-3
    assert result["kept"] <= result["alive"] <= result["prunable"]
    assert result["kept"] == sum(layer["kept"] for layer in result["layers"])
    assert result["prunable"] == sum(layer["prunable"] for layer in result["layers"])
    assert 0 <= result["accuracy_before"] <= 1
    assert 0 <= result["accuracy_after"] <= 1
    assert (result["epochs"], result["finetune_epochs"]) == (3 if learned else 0, 3)
    assert result["seed"] == 0
    assert result["seconds"] > 0
    assert result["recipe"]["pruner"] == pruner
    assert (result["model"]["name"], result["dataset"]["name"]) == ("conv4", "fake")
    assert set(result["versions"]) == {"gemkit", "torch"}


def test_a_run_leaves_config_metrics_tickets_and_result_behind(gemkit):
    result = answer(gemkit("run", *TINY, "--seed", "5", "--json"))
    folder = Path(result["run_dir"])
    assert folder == Path("runs/gem_miner-conv4-fake-d0.3-s5")
    assert sorted(file.name for file in folder.iterdir()) == FILES
    assert json.loads((folder / "result.json").read_text()) == result
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["recipe"] == result["recipe"]
    assert (config["model"], config["dataset"]) == (result["model"], result["dataset"])
    assert (config["density"], config["seed"]) == (0.3, 5)
    assert config["search"]["epochs"] == config["finetune"]["epochs"] == 3
    assert config["search"]["lr"] > 0 < config["finetune"]["lr"]
    assert config["versions"] == result["versions"]
    metrics = lines_of(folder / "metrics.jsonl")
    assert [line["epoch"] for line in metrics if line["event"] == "epoch"] == [1, 2, 3, 1, 2, 3]
    [freeze] = [line for line in metrics if line["event"] == "freeze"]
    assert freeze["target"] == 0.3


def test_the_tickets_of_a_run_know_their_network_and_data(gemkit):
    result = answer(gemkit("run", *TINY, "--json"))
    found, finetuned = Ticket.load(result["ticket"]), Ticket.load(result["finetuned"])
    assert found.info.model == result["model"] == {**result["model"], "name": "conv4", "width": 4}
    assert found.info.dataset == result["dataset"]
    assert (found.info.stage, finetuned.info.stage) == ("found", "finetuned")
    assert (found.kept, found.prunable) == (result["kept"], result["prunable"])


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(gemkit):
    first, second, other = (
        answer(gemkit("run", *TINY, "--new", "--seed", seed, "--json")) for seed in ("1", "1", "2")
    )
    assert first["run_dir"] != second["run_dir"] == f"{first['run_dir']}-2"
    own = {"seconds", "seconds_search", "ticket", "finetuned", "run_dir"}
    assert {key: first[key] for key in first.keys() - own} == {
        key: second[key] for key in second.keys() - own
    }
    for kind in ("ticket", "finetuned"):
        one, two, three = (Path(run[kind]).read_bytes() for run in (first, second, other))
        assert one == two != three


def summary_of(shown) -> dict[str, str]:
    """Read the summary that a run prints on stderr; a long row is wrapped."""
    rows: dict[str, str] = {}
    [block] = [part for part in shown.stderr.split("\n\n") if "\nparts  " in f"\n{part}"]
    for line in block.splitlines():
        name, text = line[:11].strip(), line[11:].strip()
        if name:
            rows[name] = text
        elif rows:
            rows[list(rows)[-1]] += f" {text}"
    return rows


def test_a_run_starts_with_a_short_summary_on_stderr(gemkit):
    shown = gemkit("run", *TINY)
    rows = summary_of(shown)
    assert rows.pop("search").startswith("3 epochs [batch_size 16, lr ")
    assert rows == {
        "pruner": "gem_miner",
        "parts": "scores uniform · rounding threshold · allocation global · schedule exponential "
        "· regularizer l2 · init signed_constant · structure weights",
        "model": "conv4 [width 4]",
        "data set": "fake [samples 60]",
        "density": "0.3",
        "fine-tuning": "3 epochs [batch_size 16, lr 0.05, weight_decay 0.0001]",
        "seed": "0",
        "device": "cpu",
    }
    assert shown.stdout.startswith("layer "), "stdout begins with what was found"


def test_the_summary_names_every_field_that_is_not_at_its_default(gemkit):
    words = ("-o", "regularizer.weight=3e-4", "-o", "finalize=alive", "--on-collapse", "warn")
    many = f"[{', '.join(['0.3'] * 5)}]"
    parts = ("--allocation", "densities", "-o", f"allocation.densities={many}")
    long = f"[{', '.join(f'0.{number}' for number in range(11, 20))}]"
    others = ("--precision", "bf16", "-o", f"finetune.milestones={long}")
    rows = summary_of(gemkit("run", *TINY, *words, *parts, *others))
    assert rows["pruner"] == "gem_miner [finalize alive]"
    assert f"allocation densities [densities {many}]" in rows["parts"]
    assert "regularizer l2 [weight 0.0003]" in rows["parts"]
    assert rows["density"] == "0.3 [on_collapse warn]"
    assert rows["device"] == "cpu [precision bf16]"
    assert f"milestones {long[:40]}…" in rows["fine-tuning"], "a long value is cut off"


def test_the_summary_of_rounds_and_of_a_search_that_trains_nothing(gemkit):
    rounds = ("--pruner", "imp_short_warm", "-o", "schedule.every=3", "-o", "rewind.weights=1")
    rows = summary_of(gemkit("run", *TINY, *rounds, "-o", "rewind.clock=1"))
    assert rows["pruner"] == "imp_short_warm [rewind.weights 1.0, rewind.clock 1.0]"
    assert rows["search"].startswith("3 epochs per round [")
    assert summary_of(gemkit("run", "--pruner", "random", *TINY))["search"] == "trains nothing"


def test_layers_result_and_a_next_command_that_works_are_printed(gemkit):
    shown = gemkit("run", *TINY)
    assert shown.exit_code == 0, shown.stderr
    assert "classifier.weight  4x16" in shown.stdout
    assert "before fine-tuning, " in shown.stdout
    assert "runs/gem_miner-conv4-fake-d0.3-s0/ticket.safetensors" in shown.stdout
    command = shown.stdout.strip().splitlines()[-1].removeprefix("next").strip()
    program, *words = shlex.split(command)
    assert program == "gemkit"
    again = gemkit(*words, "--epochs", "1", "--json")
    assert answer(again)["seed"] == 1


def test_both_densities_are_shown_where_they_differ(gemkit):
    words = ("run", *TINY, "--rounding", "bernoulli")
    result = answer(gemkit(*words, "--json"))
    assert result["alive"] > result["kept"]
    shown = gemkit(*words).stdout
    assert f"{result['alive']:,} weights never frozen" in shown
    assert f"{result['kept']:,} of {result['prunable']:,} weights kept" in shown


def test_progress_without_a_terminal_is_a_few_lines_on_stderr(gemkit):
    shown = gemkit("run", "--pruner", "random", *TINY, "--finetune-epochs", "25")
    lines = [line for line in shown.stderr.splitlines() if line.startswith("fine-tune ")]
    assert len(lines) == 10
    assert lines[-1].startswith("fine-tune 25/25  density 0.300  loss ")
    assert "fine-tune" not in shown.stdout
    assert "\x1b" not in shown.output


def test_a_pruner_with_a_fixed_density_prints_a_note_for_another(gemkit):
    shown = gemkit("run", "--pruner", "dense", *TINY, "--json")
    assert (
        "note: pruner 'dense' insists on density 1; the given density 0.3 is ignored"
        in shown.stderr
    )
    assert answer(shown)["density_target"] == answer(shown)["density"] == 1.0
    unasked = [word for word in TINY if word not in {"--density", "0.3"}]
    assert "note:" not in gemkit("run", "--new", "--pruner", "dense", *unasked).stderr


def test_a_learning_rate_without_training_prints_a_note(gemkit):
    ignored = "trains nothing, so --lr 0.5 is ignored"
    assert ignored in gemkit("run", "--pruner", "random", *TINY, "--lr", "0.5").stderr
    assert ignored not in gemkit("run", *TINY, "--lr", "0.5").stderr
    assert ignored not in gemkit("run", "--pruner", "random", *TINY).stderr


def test_fine_tuning_may_be_left_out(gemkit):
    result = answer(gemkit("run", *TINY, "--finetune-epochs", "0", "--json"))
    assert result["finetune_epochs"] == 0
    assert result["accuracy_after"] == result["accuracy_before"]


# --- choosing parts and fields -------------------------------------------------------------------


def test_options_reach_the_field_they_name_and_win_over_other_options(gemkit):
    fields = (
        *("regularizer.weight=3e-4", "finalize=alive", "schedule.timing=paper", "model.bias=true"),
        *("dataset.classes=3", "search.optimizer=adam", "search.epochs=2", "search.lr=1"),
        *("finetune.milestones=[0.25, 0.5]", "finetune.lr_schedule=multistep"),
    )
    words = [word for field in fields for word in ("-o", field)]
    folder = Path(answer(gemkit("run", *TINY, "--lr", "0.5", *words, "--json"))["run_dir"])
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["recipe"]["regularizer"] == {"name": "l2", "weight": 3e-4}
    assert config["recipe"]["finalize"] == "alive"
    assert config["recipe"]["schedule"]["timing"] == "paper"
    assert config["model"]["bias"] is True
    assert config["dataset"]["classes"] == 3
    assert (config["search"]["optimizer"], config["search"]["epochs"]) == ("adam", 2)
    assert (config["search"]["lr"], config["finetune"]["lr"]) == (1.0, 0.05)
    assert config["finetune"]["epochs"] == 2, "fine-tuning follows the search"
    assert config["finetune"]["milestones"] == [0.25, 0.5]


def test_training_options_reach_the_phase_they_are_for(gemkit):
    words = ("--finetune-epochs", "1", "--lr", "0.25", "--finetune-lr", "0.125")
    folder = Path(answer(gemkit("run", *TINY, *words, "--json"))["run_dir"])
    config = tomllib.loads((folder / "config.toml").read_text())
    search, finetune = config["search"], config["finetune"]
    assert (search["epochs"], search["lr"], search["batch_size"]) == (3, 0.25, 16)
    assert (finetune["epochs"], finetune["lr"], finetune["batch_size"]) == (1, 0.125, 16)


def test_a_shown_recipe_runs_from_its_file_just_as_by_name(gemkit):
    shown = gemkit("show", "gem_miner", "--rounding", "threshold")
    Path("mine.toml").write_text(shown.stdout)
    by_file = answer(gemkit("run", "--recipe", "mine.toml", *TINY, "--json"))
    by_name = answer(gemkit("run", *TINY, "--json"))
    assert Path(by_file["ticket"]).read_bytes() == Path(by_name["ticket"]).read_bytes()


def test_part_options_override_a_recipe_file(gemkit):
    Path("mine.toml").write_text(gemkit("show", "gem_miner", "-o", "pruner=mine").stdout)
    words = ("--regularizer", "none", "--rounding", "bernoulli", "-o", "schedule.every=1")
    result = answer(gemkit("run", "--recipe", "mine.toml", *words, *TINY, "--json"))
    assert result["pruner"] == "mine"
    assert result["recipe"]["regularizer"] == {"name": "none"}
    assert result["recipe"]["rounding"]["name"] == "bernoulli"
    assert result["recipe"]["schedule"]["every"] == 1


def test_out_may_be_new_or_empty(gemkit):
    Path("empty").mkdir()
    for out in ("empty", "some/new/place"):
        result = answer(gemkit("run", "--pruner", "random", *TINY, "--out", out, "--json"))
        assert result["run_dir"] == out
        assert sorted(file.name for file in Path(out).iterdir()) == FILES


# --- plugins -------------------------------------------------------------------------------------


def test_a_plugin_file_brings_a_pruner_that_runs_and_is_recorded(gemkit):
    file = Path("one_off.py")
    file.write_text(PLUGIN)
    shown = gemkit("run", "--pruner", "steady", "--plugin", file, *TINY, "--json")
    result = answer(shown)
    assert "a plugin that talks" in shown.stderr, "stdout is for the answer alone"
    assert "and talks" in shown.stderr
    digest = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert result["versions"]["one_off.py"] == digest
    assert Ticket.load(result["ticket"]).info.versions == result["versions"]
    other = answer(gemkit("run", "--plugin", file, "--pruner", "random", *TINY, "--json"))
    assert set(other["versions"]) == {"gemkit", "torch"}, "none of its parts are used"


def test_an_installed_plugin_is_recorded_with_its_version_and_can_be_left_out(gemkit, monkeypatch):
    info = Path("site/gemkit_steady-1.5.dist-info")
    info.mkdir(parents=True)
    Path("site/plug_steady_cli.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gemkit-steady\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[gemkit]\nsteady = plug_steady_cli\n")
    monkeypatch.syspath_prepend(Path("site").resolve())
    monkeypatch.setenv("GEMKIT_PLUGINS", "steady")
    result = answer(gemkit("run", "--pruner", "steady", *TINY, "--json"))
    assert result["versions"]["gemkit-steady"] == "1.5"
    assert "steady (gemkit-steady 1.5): scores steady, " in gemkit("plugins").stdout
    listed = answer(gemkit("plugins", "--json"))["plugins"]
    assert listed[0]["built_in"]
    assert listed[-1] == {
        "plugin": "steady",
        "distribution": "gemkit-steady 1.5",
        "built_in": False,
        "brings": {
            "scores": ["steady"],
            "datasets": ["nowhere"],
            "observers": ["tally"],
            "pruners": ["steady"],
        },
    }
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    left_out = gemkit("run", "--pruner", "steady", *TINY)
    assert left_out.exit_code == 2
    assert "unknown pruner 'steady'" in left_out.stderr


def test_plugins_lists_what_was_refused_and_why(gemkit, monkeypatch):
    info = Path("site/gemkit_broken-2.0.dist-info")
    info.mkdir(parents=True)
    Path("site/plug_broken_cli.py").write_text("raise RuntimeError('out of order')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gemkit-broken\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[gemkit]\nbroken = plug_broken_cli\n")
    monkeypatch.syspath_prepend(Path("site").resolve())
    monkeypatch.delenv("GEMKIT_PLUGINS")
    shown = gemkit("plugins")
    assert shown.exit_code == 0
    assert "refused: " in shown.stdout
    assert "gemkit-broken 2.0" in shown.stdout
    assert "out of order" in shown.stdout
    [refused] = answer(gemkit("plugins", "--json"))["refused"]
    assert (refused["plugin"], refused["distribution"]) == ("broken", "gemkit-broken 2.0")
    assert "out of order" in refused["reason"]
    assert gemkit("show", "random").exit_code == 0, "commands that do not use it still work"


def test_observers_receive_the_events_of_their_run(gemkit):
    Path("one_off.py").write_text(PLUGIN)
    words = ("run", "--plugin", "one_off.py", *TINY, "--json")
    events = Path(answer(gemkit(*words, "--observer", "tally"))["run_dir"], "tally").read_text()
    assert events.split().count("EpochEnded") == 6
    assert events.split().count("Froze") == 1
    again = answer(gemkit(*words, "--observer", "tally"))["run_dir"]
    assert Path(again, "tally").read_text() == events, (
        "an observer is for a run, not for its result"
    )
    assert not Path(answer(gemkit(*words, "--new"))["run_dir"], "tally").exists()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_the_data_folder_reaches_the_data_set(gemkit, monkeypatch, by):
    Path("one_off.py").write_text(PLUGIN)
    words = ["run", "--plugin", "one_off.py", "--dataset", "nowhere"]
    if by == "environment":
        monkeypatch.setenv("GEMKIT_DATA", "my/data")
    else:
        words += ["--data-dir", "my/data"]
    assert "looked into my/data" in gemkit(*words).stderr


# --- tickets -------------------------------------------------------------------------------------


def test_finetune_repeats_the_fine_tuning_of_the_run(gemkit):
    run = answer(gemkit("run", *TINY, "--json"))
    words = ("--epochs", "3", "--batch-size", "16", "--device", "cpu", "--json")
    again = answer(gemkit("finetune", run["ticket"], *words))
    assert again["accuracy_before"] == run["accuracy_before"]
    assert again["accuracy_after"] == run["accuracy_after"]
    assert again["ticket"] == run["ticket"].replace("ticket.", "ticket-finetuned.")
    assert Path(again["ticket"]).read_bytes() == Path(run["finetuned"]).read_bytes()
    other = answer(gemkit("finetune", run["ticket"], *words, "--seed", "9", "--out", "nine"))
    assert Path(other["ticket"]).read_bytes() != Path(run["finetuned"]).read_bytes()


def test_finetune_overwrites_only_when_forced(gemkit, tiny_ticket):
    Path("out").mkdir()
    words = ("finetune", tiny_ticket, "--epochs", "1", "--out", "out")
    assert gemkit(*words).exit_code == 0
    before = Path("out/ticket-finetuned.safetensors").read_bytes()
    refused = gemkit(*words, "--seed", "3")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert Path("out/ticket-finetuned.safetensors").read_bytes() == before
    assert gemkit(*words, "--seed", "3", "--force").exit_code == 0
    assert Path("out/ticket-finetuned.safetensors").read_bytes() != before


def test_finetune_records_the_data_it_was_given_instead(gemkit, tiny_ticket):
    words = ("-o", "dataset.seed=4", "--dataset", "fake", "--epochs", "1", "--json")
    trained = Ticket.load(answer(gemkit("finetune", tiny_ticket, *words))["ticket"])
    assert trained.info.dataset["seed"] == 4
    assert trained.info.model == Ticket.load(tiny_ticket).info.model


def test_training_a_trained_ticket_on_is_noted(gemkit, tiny_ticket):
    finetuned = tiny_ticket.with_name("finetuned.safetensors")
    assert "trained further" in gemkit("finetune", finetuned, "--epochs", "1").stderr


@pytest.mark.parametrize(("split", "images"), [("test", 12), ("validation", 12), ("train", 36)])
def test_eval_measures_on_the_split_asked_for(gemkit, tiny_ticket, split, images):
    result = answer(gemkit("eval", tiny_ticket, "--split", split, "--json"))
    assert (result["split"], result["images"]) == (split, images)
    assert math.isclose(result["accuracy"] * images % 1, 0, abs_tol=1e-5)
    assert f"of {images} {split} images" in gemkit("eval", tiny_ticket, "--split", split).stdout


def test_eval_agrees_with_the_run(gemkit):
    run = answer(gemkit("run", *TINY, "--json"))
    for file, accuracy in (("ticket", "accuracy_before"), ("finetuned", "accuracy_after")):
        assert answer(gemkit("eval", run[file], "--json"))["accuracy"] == run[accuracy]


def test_a_ticket_can_be_shown_and_verified(gemkit, tiny_ticket):
    loaded = Ticket.load(tiny_ticket)
    data = answer(gemkit("ticket", "show", tiny_ticket, "--json"))
    assert data["sha256"] == loaded.digest()
    assert data["pruner"] == "random"
    assert [layer["name"] for layer in data["layers"]] == list(loaded.mask)
    text = gemkit("ticket", "show", tiny_ticket).stdout
    assert loaded.summary() in text
    assert "classifier.weight" in text
    assert loaded.digest() in text
    assert "is sound" in gemkit("ticket", "verify", tiny_ticket).stdout


# --- what there is -------------------------------------------------------------------------------


def test_parts_lists_everything_that_is_registered(gemkit):
    registry = load_plugins()
    listed = answer(gemkit("parts", "--json"))
    for kind, entries in {**registry.parts, "pruners": registry.pruners}.items():
        assert [part["name"] for part in listed[kind]] == list(entries)
    text = gemkit("parts").stdout
    for parts in listed.values():
        for part in parts:
            assert f"\n  {part['name']}" in text
            assert part["plugin"] in text


def test_parts_describes_fields_with_type_default_and_bounds(gemkit):
    [l2] = [
        part
        for part in answer(gemkit("parts", "regularizers", "--json"))["regularizers"]
        if part["name"] == "l2"
    ]
    [weight] = l2["fields"]
    assert (weight["name"], weight["type"], weight["bounds"]) == ("weight", "float", {">=": 0})
    assert weight["default"] == load_plugins().build("regularizers", "l2").weight
    text = gemkit("parts", "regularizers").stdout
    assert f"weight = {weight['default']}" in " ".join(text.split())
    assert ">= 0" in text


@pytest.mark.parametrize(
    ("word", "kind"), [("rounding", "roundings"), ("init", "initializers"), ("pruner", "pruners")]
)
def test_parts_takes_the_words_of_options_for_kinds(gemkit, word, kind):
    assert list(answer(gemkit("parts", word, "--json"))) == [kind]


def test_plugins_counts_what_is_built_in(gemkit):
    registry = load_plugins()
    count = sum(map(len, [*registry.parts.values(), registry.pruners, registry.presets]))
    assert gemkit("plugins").stdout == f"built into gemkit: {count} parts, pruners and presets\n"
