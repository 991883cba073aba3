"""User errors end with one message, exit code 2 and no files; interruptions with 130."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch
from cli_runs import PLUGIN, TINY, Gemkit, answer, commands_in

from gemkit.cli import main
from gemkit.cli.configure import parse_value
from gemkit.cli.paths import PathType
from gemkit.cli.program import COMMANDS
from gemkit.cli.progress import only_first_prints
from gemkit.core.errors import StorageError, TooLittleMemoryError, TrainingError
from gemkit.plugins.faults import FAULT
from gemkit.runs import runner
from gemkit.tickets.ticket import Ticket

ERRORS = {
    "run --pruner gem_minor": ["unknown pruner 'gem_minor'", "did you mean 'gem_miner'"],
    "run --model conv5": ["unknown model 'conv5'", "'conv4'"],
    "run --dataset digit": ["unknown dataset 'digit'", "'digits'"],
    "run --rounding treshold": ["unknown rounding 'treshold'", "'threshold'"],
    "run --observer wandbb": ["unknown observer 'wandbb'; there is csv"],
    "run --preset nothing": ["unknown preset 'nothing'", "`gemkit presets` lists"],
    "run -o regularizer.weight=-1": ["regularizer.weight = -1", "greater than or equal to 0"],
    "run -o regularizer.wight=1": ["regularizer.wight does not exist", "'weight'"],
    "run -o regulariser.weight=1": ["no kind 'regulariser'", "'regularizer'"],
    "run -o schedule.every=0 -o regularizer.weight=x": [
        "2 problems",
        "schedule.every = 0: should be greater than or equal to 1",
        "regularizer.weight = 'x': should be a valid number",
    ],
    "run -o weight": ["-o weight", "kind.field=value"],
    "run -o weight=1": ["weight does not exist"],
    "run -o model.width=0": ["model.width = 0", "greater than or equal to 1"],
    "run -o dataset.samples=1": ["dataset.samples"],
    "run -o search.momentum=2 -o search.nesterov=1": [
        "2 problems",
        "search.momentum = 2",
        "less than 1",
    ],
    "run --epochs -1": ["search.epochs = -1", "greater than or equal to 0"],
    "run --finetune-epochs -1": ["finetune.epochs = -1", "greater than or equal to 0"],
    "run --batch-size 0": ["search.batch_size = 0", "greater than or equal to 1"],
    "run --lr nan": ["search.lr = nan", "finite"],
    "run --finetune-lr 0": ["finetune.lr = 0.0", "greater than 0"],
    "run --density 0": ["--density", "0 is not in (0, 1]: a density is the fraction to keep."],
    "run --density 5": ["--density", "5 is not in (0, 1]", "write 5% if that is meant."],
    "run --density nan": ["--density", "nan is not a finite number."],
    "run --sparsity 1": ["--sparsity", "1 is not in [0, 1): a sparsity is the fraction to prune."],
    "run --checkpoint-minutes inf": ["--checkpoint-minutes", "inf is not a finite number"],
    "reproduce demo --no-runs --scale nan": ["--scale", "nan is not a finite number"],
    "reproduce demo --no-runs --width nan": ["--width", "nan is not a finite number"],
    "check taken --margin nan": ["--margin", "nan is not a finite number"],
    "run --seed -1": ["--seed", "-1", "0<=x"],
    "run --devices 0": ["machine.devices = 0", "greater than or equal to 1"],
    "run --device gpu": ["--device", "'gpu'", "'cuda'"],
    "run --pruner imp_long_warm --epochs 2": ["rewind.weights = 2.56 epochs", "leaves nothing"],
    "run --pruner magnitude --schedule iterative": ["'iterative'", "set rewind.clock"],
    "run --pruner imp_long_cold -o rewind.weight=1": ["rewind.weight", "did you mean 'weights'"],
    "run --lean": ["lean searches were removed", "leave out --lean", "the ticket is the same"],
    "run --epochs 2": ["the search has 2 epochs", "train for 3 epochs at least"],
    "report binary.toml": ["binary.toml is no file of records", "give the records.jsonl"],
    "report taken": ["taken has no results to report"],
    "study taken": ["taken is a folder", "gemkit study status taken"],
    "study none.toml": ["none.toml cannot be read: No such file", "give a TOML file"],
    "study binary.toml": ["binary.toml is not valid TOML"],
    "study status binary.toml": ["binary.toml is no study: there is no study.json"],
    "study status taken": ["taken is no study"],
    "study merge binary.toml --out both": ["binary.toml is no study"],
    "check binary.toml": ["binary.toml", "not safetensors"],
    "check taken": ["taken is a folder without ticket.safetensors"],
    "resume binary.toml": ["binary.toml is no run: there is no config.toml"],
    "resume taken": ["taken is no run"],
    "reproduce tabel3": ["unknown table 'tabel3'; did you mean 'table3-ep-to-gm'"],
    "reproduce fig3": ["did you mean 'fig3-mobilenet_v2' or 'fig3-resnet20'"],
    "reproduce zzz": ["unknown table 'zzz'; `gemkit reproduce` lists all"],
    "run --epochs 0": ["needs at least one epoch", "finds no moment to freeze"],
    "run --pruner magnitude --rounding threshold --regularizer l2": [
        "rounding must be 'open', not 'threshold'",
        "regularizer 'l2' acts on learned scores",
    ],
    "run --recipe none.toml": ["recipe none.toml", "No such file", "gemkit show"],
    "run --recipe broken.toml": ["recipe broken.toml", "not valid TOML"],
    "run --recipe binary.toml": ["recipe binary.toml", "not valid TOML"],
    "run --recipe unknown.toml": ["recipe unknown.toml", "rouding does not exist", "'rounding'"],
    "run --recipe nameless.toml": ["recipe nameless.toml", "pruner must be given"],
    "run --recipe unknown.toml --pruner random": ["--recipe and --pruner"],
    "run --out taken": ["taken", "not empty"],
    "run --out binary.toml": ["binary.toml", "not a folder"],
    "run --out binary.toml/sub": ["binary.toml"],
    "run --plugin none.py": ["none.py", "No such file", "or its path"],
    "run --plugin broken.py": ["broken.py", "out of order"],
    "run --prunner random": ["--prunner", "--pruner"],
    "rum": ["'rum'", "'run'"],
    "show gem": ["unknown pruner 'gem'", "'gem_miner'"],
    "show gem_miner -o search.epochs=3": ["no kind 'search'"],
    "parts score": ["unknown kind of part 'score'", "'scores'"],
    "eval none.safetensors": ["none.safetensors does not exist"],
    "eval binary.toml": ["binary.toml", "not safetensors"],
    "eval taken": ["taken is a folder"],
    "finetune none.safetensors": ["none.safetensors does not exist"],
    "finetune binary.toml -o finalize=alive": ["-o finalize=alive", "model.width=8"],
    "finetune binary.toml --epochs -1": ["finetune.epochs = -1"],
    "ticket show binary.toml": ["binary.toml", "not safetensors"],
    "ticket verify none.safetensors": ["none.safetensors does not exist"],
}


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def mistaken_files(gemkit):
    """Put files into the folder of the test that no command should accept."""
    Path("broken.toml").write_text("pruner = [")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00\x01" * 10)
    Path("unknown.toml").write_text('pruner = "mine"\nscores = "uniform"\nrouding = "threshold"')
    Path("nameless.toml").write_text('scores = "uniform"')
    Path("broken.py").write_text("raise RuntimeError('out of order')")
    Path("taken").mkdir()
    Path("taken/precious").write_text("do not touch")


def everything() -> dict[Path, bytes | None]:
    """Return every path below here, with the contents of files."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in Path().rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("command", ERRORS)
@pytest.mark.usefixtures("mistaken_files")
def test_a_user_error_is_one_message_exit_code_2_and_leaves_no_files(gemkit, command):
    before = everything()
    shown = gemkit(*command.split())
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert shown.stderr.startswith("gemkit: ")
    assert len(re.findall("^gemkit: ", shown.stderr, re.MULTILINE)) == 1
    assert "Traceback" not in shown.stderr
    for words in ERRORS[command]:
        assert words in shown.stderr
    assert everything() == before


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", ""),
        ("run", "--plugin", ""),
        ("run", "--recipe", ""),
        ("finetune", "taken", "--out", ""),
        ("check", "taken", "--out", ""),
        ("report", ""),
        ("resume", ""),
        ("study", "merge", "taken", "--out", ""),
        ("reproduce", "demo", "--no-runs", "--figures", ""),
        ("eval", "taken", "--data-dir", ""),
    ],
)
@pytest.mark.usefixtures("mistaken_files")
def test_an_empty_path_is_not_the_current_folder(gemkit, words):
    before = everything()
    shown = gemkit(*words)
    assert shown.exit_code == 2
    assert "the path is empty; write a dot for the current folder." in shown.stderr
    assert everything() == before


def test_every_option_that_takes_a_path_refuses_an_empty_one():
    def check(command):
        for one in command.params:
            assert not isinstance(one.type, click.Path) or isinstance(one.type, PathType), one
        for inner in getattr(command, "commands", {}).values():
            check(inner)

    for name in COMMANDS:
        check(main.get_command(click.Context(main), name))


@pytest.mark.usefixtures("mistaken_files")
def test_an_error_with_json_prints_nothing_on_stdout(gemkit):
    shown = gemkit("run", "--pruner", "gem_minor", "--json")
    assert (shown.exit_code, shown.stdout) == (2, "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the device is available")
def test_a_missing_device_is_an_error_before_the_run(gemkit):
    shown = gemkit("run", "--device", "cuda")
    assert shown.exit_code == 2
    assert "device 'cuda' is not available here" in shown.stderr
    assert everything() == {}


def test_a_network_too_large_for_the_images_is_an_error_before_the_run(gemkit):
    shown = gemkit("run", *TINY, "-o", "dataset.size=2")
    assert shown.exit_code == 2
    assert "4 × 4 or larger" in shown.stderr
    assert everything() == {}


def test_a_collapse_keeps_config_and_metrics_and_no_ticket(gemkit):
    shown = gemkit("run", *TINY, "-o", "regularizer.weight=0.5", "--json")
    assert shown.exit_code == 3
    assert shown.stdout == ""
    assert "gemkit: collapse at step" in shown.stderr
    assert shown.stderr.count("collapse at step") == 1
    assert "lower regularizer.weight" in shown.stderr
    left = ["checkpoints", "config.toml", "environment.json", "log.txt", "metrics.jsonl"]
    assert f"keeps {', '.join(left)}; there is no ticket" in shown.stderr
    [folder] = Path("runs").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == [".lock", *left]
    assert "error: collapse at step" in (folder / "log.txt").read_text()
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "error"
    assert last["message"].startswith("collapse at step")
    without = gemkit("eval", str(folder))
    assert without.exit_code == 2
    assert f"its search failed (see {folder / 'log.txt'})" in without.stderr


def test_a_warning_of_collapse_goes_to_stderr_and_metrics(gemkit):
    tiny = [word if word != "0.3" else "0.004" for word in TINY]
    words = ("run", "--pruner", "magnitude", "--allocation", "uniform", *tiny)
    assert gemkit(*words).exit_code == 3
    shown = gemkit(*words, "--on-collapse", "warn", "--json")
    assert "warning: collapse at step 0" in shown.stderr
    metrics = Path(answer(shown)["run_dir"], "metrics.jsonl").read_text()
    assert '"event": "collapse"' in metrics


def test_a_failure_of_fine_tuning_keeps_the_ticket(gemkit, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise TrainingError("training diverged")

    monkeypatch.setattr("gemkit.runs.setup.finetune", fail)
    shown = gemkit("run", "--pruner", "random", *TINY)
    assert shown.exit_code == 2
    assert "gemkit: training diverged" in shown.stderr
    assert "metrics.jsonl, ticket.safetensors; for other options give another --out" in shown.stderr


def test_an_interruption_ends_with_130(gemkit, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "search", interrupt)
    shown = gemkit("run", *TINY)
    assert shown.exit_code == 130
    assert shown.stderr.endswith("\n\ngemkit: interrupted\n"), "after the summary"


def test_an_unknown_exception_keeps_its_traceback(gemkit, monkeypatch):
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(runner, "search", break_down)
    shown = gemkit("run", *TINY)
    assert isinstance(shown.exception, ZeroDivisionError)
    assert "gemkit:" not in shown.stderr


def test_a_ticket_without_model_or_data_asks_for_them(gemkit):
    run = answer(gemkit("run", "--pruner", "random", *TINY, "--json"))
    ticket = Ticket.load(run["ticket"])
    anonymous = {"model": {"custom": "package.module:function"}, "dataset": None}
    bare = Ticket(ticket.mask, ticket.state, ticket.info.model_copy(update=anonymous))
    bare.save("bare.safetensors")
    for words, missing in ((), "--model"), (("--model", "conv4"), "--dataset"):
        shown = gemkit("eval", "bare.safetensors", *words)
        assert shown.exit_code == 2
        assert f"give {missing}" in shown.stderr
    model = ("--model", "conv4", "-o", "model.width=4")
    data = ("--dataset", "fake", "-o", "dataset.samples=60")
    assert answer(gemkit("eval", "bare.safetensors", *model, *data, "--json"))["images"] == 12


def test_a_ticket_for_another_network_is_refused_without_a_file(gemkit):
    run = answer(gemkit("run", "--pruner", "random", *TINY, "--json"))
    shown = gemkit("finetune", run["ticket"], "--model", "lenet300", "--out", "other")
    assert shown.exit_code == 2
    assert "the ticket does not fit this" in shown.stderr
    assert not Path("other").exists()
    shown = gemkit("finetune", run["ticket"], "--out", "no/such/folder")
    assert shown.exit_code == 2
    assert "there is no folder no/such" in shown.stderr


def test_a_plugin_asked_for_but_not_installed_is_an_error(gemkit, monkeypatch):
    monkeypatch.setenv("GEMKIT_PLUGINS", "absent")
    shown = gemkit("plugins")
    assert shown.exit_code == 2
    assert "plugin 'absent' is requested (GEMKIT_PLUGINS), but not installed" in shown.stderr


def test_a_plugin_file_that_takes_a_built_in_name_is_refused(gemkit):
    Path("thief.py").write_text(PLUGIN.replace('name = "steady"', 'name = "uniform"'))
    shown = gemkit("parts", "--plugin", "thief.py")
    assert shown.exit_code == 2
    assert "'uniform'" in shown.stderr


@pytest.mark.parametrize("first", [True, False])
def test_of_several_processes_only_the_first_speaks(capsys, first):
    def work() -> None:
        with only_first_prints(SimpleNamespace(is_global_zero=first)) as nowhere:
            assert (nowhere is None) == first
            print("result")

    if first:
        work()
    else:
        with pytest.raises(SystemExit, match="0"):
            work()
    assert capsys.readouterr().out == ("result\n" if first else "")


def test_the_other_processes_leave_errors_to_the_first(capfd):
    with (
        pytest.raises(SystemExit, match="2"),
        only_first_prints(SimpleNamespace(is_global_zero=False)) as nowhere,
    ):
        raise TrainingError("training diverged")
    assert not nowhere.exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TooLittleMemoryError("no room\n/its/own/folder keeps nothing"), "no room"),
        (StorageError("the disk is full"), "the disk is full"),
        (MemoryError("can't allocate"), "there is not enough memory (can't allocate); lower"),
    ],
)
def test_an_error_that_another_process_has_alone_is_reported(error, words, monkeypatch, capfd):
    monkeypatch.setenv("RANK", "1")
    with (
        pytest.raises(SystemExit, match="2"),
        only_first_prints(SimpleNamespace(is_global_zero=False)),
    ):
        raise error
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gemkit: process 1: {words}")


def test_a_fault_that_another_process_has_alone_is_reported(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("gemkit.cli.progress.fault_of", lambda error: f"scores 'x' failed: {error}")
    with (
        pytest.raises(SystemExit, match=str(FAULT)),
        only_first_prints(SimpleNamespace(is_global_zero=False)),
    ):
        raise ValueError("no depth")
    assert capfd.readouterr().err == "gemkit: process 1: scores 'x' failed: no depth\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3", 3),
        ("true", True),
        ("[0.5, 0.75]", [0.5, 0.75]),
        ('"32"', "32"),
        ("alive", "alive"),
        ("fan_in", "fan_in"),
        ("True", "True"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_values_are_toml_or_else_text(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)
