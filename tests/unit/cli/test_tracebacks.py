"""What used to end in a traceback: long names, unreadable folders, full and closed streams."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from types import SimpleNamespace

import pytest
from cli_runs import TINY, Gemkit, commands_in
from studies import TINY as CELL
from studies import cells_of

from gemkit import load_plugins
from gemkit.cli import ending, main
from gemkit.core.errors import CollapseError, OptionError, Stopped
from gemkit.plugins.faults import FAULT, ExitedError, _is_theirs
from gemkit.runs.directory import RunDir, check_free, create
from gemkit.runs.former import _named
from gemkit.runs.found import runs_in
from gemkit.runs.run import resume
from gemkit.runs.runner import Runner
from gemkit.study.stage_store import StageStore
from gemkit.study.work import carry_out

LONG = "n" * 300
NAMES = {
    f"run --pruner random --out {LONG}": "File name too long",
    f"run --model {LONG}": "unknown model",
    f"run --pruner {LONG}": "unknown pruner",
    f"run --dataset {LONG}": "unknown dataset",
    f"run --preset {LONG}": "unknown preset",
    f"run --plugin {LONG}.py": "File name too long",
    f"run --recipe {LONG}.toml": "File name too long",
    f"run --observer {LONG}": "unknown observer",
    f"run --data-dir {LONG} --dataset mnist": LONG,
    f"runs {LONG}": "there is no folder",
    f"resume {LONG}": "File name too long",
    f"report {LONG}": LONG,
    f"check {LONG}": LONG,
    f"eval {LONG}": LONG,
    f"finetune {LONG}": LONG,
    f"compact {LONG}": LONG,
    f"bench {LONG}": LONG,
    f"ticket show {LONG}": LONG,
    f"study --out {LONG} --pruner random --density 0.5 --dataset fake": LONG,
    f"run --dataset imagefolder:{LONG}": LONG,
    f"ratios {LONG}": LONG,
    f"reproduce {LONG}": LONG,
    f"reproduce demo --no-runs --ledger {LONG}": LONG,
    f"study status {LONG}": LONG,
    f"study {LONG}.toml": LONG,
    f"new-plugin {LONG}": LONG,
    f"check-plugin {LONG}.py": LONG,
}


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", NAMES, ids=lambda text: text.replace(LONG, "LONG"))
def test_a_name_of_300_letters_is_one_message(gemkit, command):
    small = (*TINY, "--model", "lenet300") if command.startswith("run --pruner random") else ()
    small = tuple(
        word for word in small if word not in ("-o", "model.width=4", "dataset.samples=60")
    )
    shown = gemkit(*command.split(), *small)
    assert shown.exit_code == 2, shown.output
    assert isinstance(shown.exception, SystemExit)
    assert "gemkit: " in shown.stderr
    assert NAMES[command] in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.usefixtures("gemkit")
def test_a_run_whose_own_name_is_too_long_says_so():
    assert _named(LONG) == []
    with pytest.raises(OptionError, match="File name too long; choose another with --out"):
        create(None, LONG)
    check_free(Path(LONG))  # the folder is made later, with that message


def test_a_folder_that_cannot_be_entered_is_listed_as_unreadable(gemkit, monkeypatch):
    for name in ("good", "locked", "no-run"):
        Path("runs", name).mkdir(parents=True)
    Path("runs/good/config.toml").write_text('seed = 3\n[recipe]\npruner = "snip"\n')
    looking, opening = os.lstat, os.open

    def lstat(path, **how):
        if Path(path).parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return looking(path, **how)

    def open_(path, *flags, **how):
        if isinstance(path, str | Path) and Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *flags, **how)

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "open", open_)
    assert [path.name for path in runs_in(Path("runs"))] == ["good", "locked"]
    shown = gemkit("runs", "--json")
    assert shown.exit_code == 0, shown.output
    good, locked = json.loads(shown.stdout)["runs"]
    assert (good["state"], good["pruner"]) == ("interrupted", "snip")
    assert locked["state"] == "unreadable"
    assert "Permission denied" in locked["problem"]
    assert "unreadable" in gemkit("runs").stdout
    monkeypatch.setattr(RunDir, "check_plain", lambda self: os.open("locked", os.O_RDONLY))
    assert json.loads(gemkit("runs", "--json").stdout)["runs"][0]["state"] == "unreadable"


def python(code: str, redirect: str = "", **settings) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose streams a shell redirects; stdout is buffered, as usual."""
    usual = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = ["sh", "-c", f'exec "$0" -c "$1" {redirect}', sys.executable, code]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=usual, **settings)


HELP = "from gemkit.cli import main; main(['--help'])"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_full_disk_under_stdout_is_one_message():
    done = python(HELP, "> /dev/full")
    assert done.returncode == 2
    assert done.stderr == ("gemkit: cannot write the answer: No space left on device; make room\n")
    both = python(HELP, "> /dev/full 2> /dev/full")
    assert both.returncode == 2


@pytest.mark.parametrize("words", ["['--help']", "['run', '--help']"])
def test_a_reader_that_is_gone_ends_the_program_without_a_word(words, tmp_path):
    """As in `gemkit --help | head -c 0`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        command = [sys.executable, "-c", HELP.replace("['--help']", words)]
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, cwd=tmp_path, check=False
        )
    assert (done.returncode, done.stderr) == (ending.UNREAD, b"")


def test_a_run_whose_reader_is_gone_ends_without_a_word(gemkit, monkeypatch, capsys):
    words = ("--out", "run", "--checkpoint-minutes", "0", "--pruner", "snip", *TINY)
    former, (reader, writer) = os.dup(1), os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    stdout = os.fdopen(writer, "w")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            with pytest.raises(SystemExit) as ended:
                main(["run", *words])
    finally:
        os.dup2(former, 1)
        os.close(former)
        with suppress(BrokenPipeError):
            stdout.close()
    assert ended.value.code == ending.UNREAD
    assert "roken pipe" not in capsys.readouterr().err
    assert RunDir(Path("run")).state() == "failed"
    assert gemkit("resume", "run").exit_code == 0


def test_a_broken_pipe_of_a_plugin_is_its_fault(gemkit):
    Path("faulty.py").write_text(PLUGIN.replace("return wieghts", "raise BrokenPipeError(32, 'x')"))
    shown = gemkit("run", "--plugin", "faulty.py", "--pruner", "faulty", *TINY)
    assert shown.exit_code == FAULT, shown.output
    assert "which is a fault in the plugin: BrokenPipeError" in shown.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_no_arguments_and_no_stderr_are_no_bug():
    assert python("from gemkit.cli import main; main([])", "2> /dev/full").returncode == 2


@pytest.mark.parametrize("redirect", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(redirect, tmp_path):
    code = (
        "import os, sys\nfrom gemkit.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    code = end.code\n"
        "number = os.open('file', os.O_CREAT | os.O_WRONLY)\n"
        "known = None not in (sys.stdin, sys.stdout, sys.stderr) and not sys.stderr.isatty()\n"
        "os.write(number, f'{code} {number > 2} {known}'.encode())\n"
    )
    done = python(code, redirect, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "file").read_text() == "0 True True"


def test_an_error_of_a_file_is_no_traceback_and_a_bug_is_one():
    text, code = ending.ending_of(PermissionError(13, "Permission denied", "x"))
    assert (text, code) == (
        "cannot use 'x': Permission denied; give another, or check its permissions",
        2,
    )
    assert ending.ending_of(ValueError("a bug")) is None


PLUGIN = """
from torch.utils.data import Dataset, get_worker_info
import torch
from gemkit import Data, DatasetPart, MeasuredScores, hookimpl


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, place):
        if get_worker_info() is not None:
            raise KeyError("no such row")
        return torch.ones(2, 4, 4), place % 2


class Broken(DatasetPart):
    "Fails in a worker."

    name = "broken"

    def load(self, folder):
        return Data.of_datasets(train=Rows(), validation=Rows(), test=Rows(), classes=2, workers=1)


class Faulty(MeasuredScores):
    "Fails."

    name = "faulty"

    def importance(self, probe):
        return wieghts


@hookimpl
def gemkit_datasets():
    return [Broken]


@hookimpl
def gemkit_scores():
    return [Faulty]


@hookimpl
def gemkit_pruners():
    return {"faulty": {"scores": "faulty"}}
"""


def line_of(text: str) -> int:
    return 1 + next(n for n, line in enumerate(PLUGIN.splitlines()) if text in line)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_in_a_data_set_names_its_line(gemkit, workers):
    """In a worker of a data loader, and in the process itself."""
    text = PLUGIN.replace("workers=1", f"workers={workers}")
    Path("broken.py").write_text(
        text if workers else text.replace("get_worker_info()", "place > 5 or None")
    )
    words = ("--dataset", "broken", "--model", "mlp", "--density", "0.5", "--epochs", "1")
    shown = gemkit("run", "--plugin", "broken.py", "--pruner", "snip", *words, "--device", "cpu")
    assert shown.exit_code == 2, shown.output
    place = f"{Path.cwd()}/broken.py:{line_of('raise KeyError')}, in __getitem__"
    assert f"batch 0 cannot be read (KeyError: 'no such row', at {place}); correct" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_sample_that_exits_is_an_error_of_the_data(gemkit):
    text = PLUGIN.replace("workers=1", "workers=0").replace("get_worker_info()", "place or None")
    Path("broken.py").write_text(text.replace('KeyError("no such row")', "SystemExit(0)"))
    words = ("--dataset", "broken", "--model", "mlp", "--density", "0.5", "--epochs", "1")
    shown = gemkit("run", "--plugin", "broken.py", "--pruner", "snip", *words, "--device", "cpu")
    assert shown.exit_code == 2, shown.output
    assert "batch 0 cannot be read (SystemExit: 0, at " in shown.stderr


LOADING = """
    def load(self, folder):
        return list(torch.utils.data.DataLoader(Rows(), num_workers=1))
"""


def test_an_exception_in_a_plugin_s_own_loader_names_its_line(gemkit):
    start = PLUGIN.index("\n    def load")
    text = PLUGIN[:start] + LOADING + PLUGIN[PLUGIN.index("\n\nclass Faulty") :]
    Path("broken.py").write_text(text)
    shown = gemkit("run", "--plugin", "broken.py", "--dataset", "broken", "--device", "cpu")
    assert shown.exit_code == 1, shown.output
    assert "a plugin (given as a file) failed, which is a fault in the plugin: KeyE" in shown.stderr
    assert f":{line_of('raise KeyError')}, in __getitem__, in a worker of a d" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_exception_in_a_worker_of_a_study_names_the_line_of_the_plugin(tmp_path):
    file = tmp_path / "faulty.py"
    file.write_text(PLUGIN)
    registry = load_plugins(files=[file], only=())
    [cell] = cells_of(CELL | {"pruner": "faulty", "density": 0.3}, registry=registry)
    stage, *_ = cell.stages.values()
    store = StageStore(tmp_path / "study")
    ended = carry_out({**stage.task, "store": str(store.path), "cwd": str(tmp_path)})
    assert ended["state"] == "failed"
    assert "scores 'faulty' (plugin given as a file) failed" in ended["reason"]
    assert f"at {file}:{line_of('return wieghts')}, in importance" in ended["reason"]


EXITS = ["raise SystemExit(0)", "raise SystemExit", "import sys; sys.exit('bye')"]


@pytest.mark.parametrize("words", EXITS)
def test_a_plugin_that_exits_is_a_fault_with_its_line(gemkit, words, monkeypatch):
    text = PLUGIN.replace("return wieghts", words)
    Path("faulty.py").write_text(text)
    run = ("run", "--plugin", "faulty.py", "--pruner", "faulty", *TINY)
    shown = gemkit(*run)
    assert shown.exit_code == FAULT, shown.output
    code = {EXITS[0]: "0", EXITS[1]: "None", EXITS[2]: "bye"}[words]
    who = "gemkit: scores 'faulty' (plugin given as a file) failed, which is a fault in the plugin"
    line = 1 + next(n for n, line in enumerate(text.splitlines()) if words in line)
    place = f"  at {Path.cwd()}/faulty.py:{line}, in importance"
    assert f"{who}: SystemExit: {code}\n{place}\n" in shown.stderr
    [folder] = Path("runs").iterdir()
    assert f"{folder} keeps checkpoints, config.toml" in shown.stderr
    assert f"error: ExitedError: SystemExit: {code}" in (folder / "log.txt").read_text()
    assert RunDir(folder).state() == "failed"
    monkeypatch.setenv("GEMKIT_TRACEBACK", "1")
    assert isinstance(gemkit(*run).exception, ExitedError)  # whose traceback Python prints


FORGETFUL = """
from gemkit import hookimpl
from gemkit.parts.observer import Observer

class Forgetful(Observer):
    "Forgets its listener."
    name = "forgetful"
    def listen(self, folder):
        return None

@hookimpl
def gemkit_observers():
    return [Forgetful]
"""


def test_an_observer_that_returns_no_listener_is_named(gemkit):
    Path("forgetful.py").write_text(FORGETFUL)
    shown = gemkit("run", "--plugin", "forgetful.py", "--observer", "forgetful", *TINY)
    assert shown.exit_code == ending.MISTAKE, shown.output
    assert "observer 'forgetful': listen has to return a function that takes" in shown.stderr


AT_WORK = """
from gemkit import Observer, SanityCheck, hookimpl
from gemkit.core.events import EpochEnded

class Leaving(Observer):
    "Fails after an epoch."
    name = "leaving"
    def listen(self, folder):
        def listen(event):
            if isinstance(event, EpochEnded) and event.epoch == 2:
                LEAVE
        return listen

class Left(SanityCheck):
    "Fails."
    name = "leaving"
    def control(self, ticket, context):
        LEAVE

@hookimpl
def gemkit_observers():
    return [Leaving]

@hookimpl
def gemkit_sanity_checks():
    return [Left]
"""


@pytest.mark.parametrize(
    ("part", "leave", "error", "saved"),
    [
        ("--observer", "raise KeyError", KeyError, "is saved up to its last checkpoint: resume it"),
        ("--check", "raise SystemExit(0)", ExitedError, "is saved: resume its checks"),
    ],
)
def test_a_fault_of_a_plugin_says_how_to_resume(gemkit, part, leave, error, saved):
    """From Python, an exit is an error as well."""
    Path("mine.py").write_text(AT_WORK.replace("LEAVE", leave))
    words = ("--out", "run", "--checkpoint-minutes", "0", "--plugin", "mine.py", part, "leaving")
    shown = gemkit("run", "--pruner", "snip", *TINY, *words)
    assert shown.exit_code == FAULT, shown.output
    assert "\nrun keeps checkpoints, config.toml" in shown.stderr
    assert f" {saved} with `gemkit resume run --plugin mine.py`\n" in shown.stderr
    with pytest.raises(error):
        resume("run", plugins=["mine.py"])
    Path("mine.py").write_text(AT_WORK.replace("LEAVE", "pass"))
    assert gemkit("resume", "run", "--plugin", "mine.py").exit_code == 0


@pytest.mark.parametrize("first", [True, False])
def test_a_fault_in_another_process_names_no_temporary_folder(tmp_path, monkeypatch, first):
    monkeypatch.setattr(Runner, "_resume_command", lambda self: "gemkit resume run")
    setup = SimpleNamespace(fabric=SimpleNamespace(is_global_zero=first))
    with (
        pytest.raises(KeyError) as raised,
        Runner(None, setup, RunDir(tmp_path), None)._explaining_errors(),
    ):
        raise KeyError
    assert any(str(tmp_path) in note for note in getattr(raised.value, "__notes__", [])) == first


def test_a_library_that_exits_for_a_plugin_is_its_fault(gemkit):
    words = "import argparse; argparse.ArgumentParser().parse_args(['--help'])"
    Path("faulty.py").write_text(PLUGIN.replace("return wieghts", words))
    shown = gemkit("run", "--plugin", "faulty.py", "--pruner", "faulty", *TINY)
    assert shown.exit_code == FAULT, shown.output
    assert "faulty.py" in shown.stderr
    assert ", in importance" in shown.stderr


@pytest.mark.parametrize(
    ("file", "theirs"),
    [
        ("/home/a/mine.py", True),
        ("/usr/lib/python3/dist-packages/torch/nn/modules/module.py", False),
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
    ],
)
def test_code_of_installed_libraries_is_not_the_users(file, theirs):
    frame = SimpleNamespace(f_globals={"__name__": "m"}, f_code=SimpleNamespace(co_filename=file))
    assert _is_theirs(frame) is theirs


@pytest.mark.parametrize("where", ["load", "__len__"])
def test_a_data_set_that_exits_is_a_fault(gemkit, where):
    change = {"load": "return Data.of_datasets", "__len__": "return 8"}[where]
    text = PLUGIN.replace(change, f"raise SystemExit(0)\n        {change}")
    Path("broken.py").write_text(text)
    shown = gemkit("run", "--plugin", "broken.py", "--dataset", "broken", "--device", "cpu")
    assert shown.exit_code == FAULT, shown.output
    assert "SystemExit: 0\n" in shown.stderr
    assert f", in {where}\n" in shown.stderr


NET = """
from torch import nn

class Net(nn.Sequential):
    def forward(self, images):
        pass
        return super().forward(images)

def leaving(shape, classes):
    pass
    return Net(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


@pytest.mark.parametrize(("where", "code"), [("forward", FAULT), ("leaving", ending.MISTAKE)])
def test_a_network_that_exits_is_an_error_with_its_line(gemkit, where, code, monkeypatch):
    """In the function that builds it, it is reported as other exceptions there are."""
    head, name, body = NET.partition(f"def {where}(")
    name += body.replace("pass", "raise SystemExit(0)", 1)
    module = f"nets_that_exit_in_{where}"
    Path(f"{module}.py").write_text(head + name)
    monkeypatch.syspath_prepend(Path.cwd())
    small = [word for word in TINY if word not in ("-o", "model.width=4", "dataset.samples=60")]
    shown = gemkit("run", "--model", f"{module}:leaving", "--pruner", "snip", *small)
    assert shown.exit_code == code, shown.output
    assert "SystemExit: 0" in shown.stderr
    assert f"{module}.py" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_plugin_that_exits_in_a_worker_of_a_study_is_recorded(tmp_path):
    file = tmp_path / "leaving.py"
    file.write_text(PLUGIN.replace("return wieghts", "raise SystemExit(0)"))
    registry = load_plugins(files=[file], only=())
    [cell] = cells_of(CELL | {"pruner": "faulty", "density": 0.3}, registry=registry)
    stage, *_ = cell.stages.values()
    store = StageStore(tmp_path / "study")
    ended = carry_out({**stage.task, "store": str(store.path), "cwd": str(tmp_path)})
    assert ended["state"] == "failed"
    assert "scores 'faulty' (plugin given as a file) failed" in ended["reason"]
    assert "SystemExit: 0" in ended["reason"]


def test_exits_of_gemkit_and_click_are_no_faults(gemkit, monkeypatch):
    for words, code in ((["--help"], 0), (["run", "--help"], 0), (["run", "--sed"], 2), ([], 2)):
        assert gemkit(*words).exit_code == code
    monkeypatch.setenv("_GEMKIT_COMPLETE", "bash_source")
    assert "complete" in gemkit().stdout


@pytest.mark.parametrize("error", [TimeoutError("slow"), ProcessLookupError(3, "gone")])
def test_an_error_of_neither_file_nor_stream_keeps_its_traceback(error):
    assert ending.ending_of(error) is None
    assert "cannot use 'x'" in ending.ending_of(FileNotFoundError(2, "No such file", "x"))[0]
    assert "cannot write the answer" in ending.ending_of(OSError(28, "No space left on device"))[0]


PLUGIN_CODES = {
    "an exception in importance": ("return wieghts", "return wieghts", FAULT),
    "None": ("return wieghts", "return None", ending.MISTAKE),
    "NaN": (
        "return wieghts",
        "return {n: w / 0 * 0 for n, w in probe.weights.items()}",
        ending.MISTAKE,
    ),
    "a wrong shape": (
        "return wieghts",
        "return {n: w.flatten() for n, w in probe.weights.items()}",
        ending.MISTAKE,
    ),
    "an exception on import": ("class Faulty", "wieghts\n\nclass Faulty", ending.MISTAKE),
    "an exception in a hook": ("return [Faulty]", "return [Fualty]", ending.MISTAKE),
}


@pytest.mark.parametrize("fault", PLUGIN_CODES)
def test_only_an_exception_of_a_plugin_at_work_has_the_exit_code_of_a_fault(gemkit, fault):
    old, new, code = PLUGIN_CODES[fault]
    Path("faulty.py").write_text(PLUGIN.replace(old, new, 1))
    shown = gemkit("run", "--plugin", "faulty.py", "--pruner", "faulty", *TINY)
    assert shown.exit_code == code, shown.output
    assert "Traceback" not in shown.stderr
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    exception = "| 1 | an exception in code of a plugin, "
    mistake = "with code 2: a plugin that cannot be imported, or whose part returns something wrong"
    assert (exception if code == FAULT else mistake) in page


def test_the_table_of_exit_codes_is_that_of_the_program():
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    section = page.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    codes = [int(row.split("|")[1]) for row in rows]
    stopped = [ending.ending_of(Stopped(number))[1] for number in (SIGHUP, SIGINT, SIGTERM)]
    others = [FAULT, ending.MISTAKE, ending.COLLAPSE, ending.UNREAD]
    assert codes == sorted([0, *others, *stopped])
    assert ending.ending_of(CollapseError("lost"))[1] == 3
    assert ending.ending_of(OptionError("wrong"))[1] == 2
