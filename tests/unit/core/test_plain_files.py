"""Untrusted run folders: no link leads out of them, and no pipe blocks.

A watchdog makes a test that blocks on a pipe fail instead of hang.
"""

import os
import shutil
import signal
import socket
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from cli_runs import TINY, Gemkit, answer, commands_in
from data_files import write_every_data_set

from gemkit import load_plugins
from gemkit.cli import checking
from gemkit.core.atomic_io import (
    list_folder,
    open_plain,
    read,
    remove,
    remove_temporary,
    write_atomic,
)
from gemkit.core.errors import GemkitError, OptionError, PluginError, StorageError
from gemkit.data.cache import cache_folder
from gemkit.data.folders import ImageFolder
from gemkit.models.weights import read_weights
from gemkit.report.pages import check_place
from gemkit.report.plots import canvas, save
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import Log, Metrics
from gemkit.study.store import Ledger
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import Checkpoint, CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer

REGISTRY = load_plugins(only=())
PRECIOUS = b"precious\n"
FILES_OF_A_RUN = (
    *(".lock", "config.toml", "environment.json", "metrics.jsonl", "log.txt", "result.json"),
    *("ticket.safetensors", "finetuned.safetensors", "checks.json", "checks.svg", "checks.png"),
)
FILES = (
    *FILES_OF_A_RUN,
    "tensorboard",
    *(".gemkit-0123456789abcdef.tmp", "checkpoints/00000009.safetensors"),
    *("checkpoints/.gemkit-0123456789abcdef.tmp", "ladder/001-d0.5000.safetensors"),
)
FOLDERS = ("checkpoints", "ladder")
KINDS = ("link", "dangling", "pipe", "socket")


class Watchdog(Thread):
    """Unblocks everything that waits for a pipe after some seconds, and records it."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.seconds, self.fired, self.stopped = folder, seconds, False, Event()

    def run(self) -> None:
        while not self.stopped.wait(self.seconds):
            self.fired, self.seconds = True, 0.1
            for path in filter(Path.is_fifo, self.folder.rglob("*")):
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    def __enter__(self) -> "Watchdog":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


@pytest.fixture(autouse=True)
def _not_blocking(tmp_path):
    with Watchdog(tmp_path, 30) as watchdog:
        yield
    assert not watchdog.fired, "it blocked on something that is not a regular file"


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command; the registry, which takes long, is made once."""
    for module in ("plugins.loader", "runs.run"):
        monkeypatch.setattr(f"gemkit.{module}.load_plugins", lambda **_: REGISTRY)
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Make a run that was stopped during its search, with checkpoints and tickets on the way."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        original, calls = DiskCheckpointer.maybe_save, iter(range(1, 1000))

        def maybe_save(self: DiskCheckpointer, *, epoch_ended: bool = False) -> None:
            if next(calls) == 15:
                os.kill(os.getpid(), signal.SIGTERM)
            original(self, epoch_ended=epoch_ended)

        patch.setattr(DiskCheckpointer, "maybe_save", maybe_save)
        shown = commands_in(folder, patch)("run", "--pruner", "imp_long_cold", *TINY, "--out", "r")
    assert shown.exit_code == 143, shown.output
    assert {"checkpoints", "ladder"} <= {path.name for path in (folder / "r").iterdir()}
    return folder / "r"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Make a finished run."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        words = ("run", "--pruner", "random", *TINY, "--finetune-epochs", "1", "--out", "r")
        shown = commands_in(folder, patch)(*words)
    assert shown.exit_code == 0, shown.output
    return folder / "r"


def attack(path: Path, kind: str) -> Path:
    """Replace a file by a link, pipe or socket; return an outside folder that must not change."""
    outside = Path("outside").absolute()
    outside.mkdir()
    (outside / "precious").write_bytes(PRECIOUS)
    (outside / "00000001.safetensors").write_bytes(PRECIOUS)
    (outside / ".gemkit-0123456789abcdef.tmp").write_bytes(PRECIOUS)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "link":
            path.symlink_to(outside / "precious")
        case "folder link":
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(outside / "nothing")
        case "hard link":
            path.hardlink_to(outside / "precious")
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server, as_cwd(path.parent):
                server.bind(path.name)  # a full path may be too long for a socket
    return outside


class as_cwd:  # noqa: N801 - contextlib.chdir, which 3.11 has, under a name that says so
    def __init__(self, folder):
        self.folder, self.before = folder, Path.cwd()

    def __enter__(self):
        os.chdir(self.folder)

    def __exit__(self, *_):
        os.chdir(self.before)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of all regular files below a folder, and None for everything else."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in folder.rglob("*")
    }


def assert_refused(shown, path: Path) -> None:
    """Expect one message that names the file, exit code 2 and no traceback."""
    assert shown.exit_code == 2, (shown.output, shown.exception)
    assert shown.stderr.count("gemkit: ") == 1, shown.stderr
    assert path.name in shown.stderr
    assert "Traceback" not in shown.stderr
    ways_out = ("instead", "replace it with a copy", "move it away")
    assert any(words in shown.stderr for words in ways_out)


CASES = [
    *((name, kind) for name in FILES for kind in KINDS),
    *((name, kind) for name in FOLDERS for kind in ("folder link", *KINDS)),
    *((name, "hard link") for name in (".lock", "metrics.jsonl", "log.txt")),
]


@pytest.mark.parametrize(
    ("command", "name", "kind"),
    [
        *(("resume", *case) for case in CASES),
        *(("run --out", *case) for case in CASES if case[1].endswith("link")),
    ],
)
def test_a_run_with_anything_but_regular_files_is_refused(command, name, kind, gemkit, stopped):
    """Nothing changes outside or inside the folder."""
    run = Path("run")
    shutil.copytree(stopped, run)
    outside = attack(run / name, kind)
    before = contents(outside), contents(run)
    words = ("run", "--pruner", "imp_long_cold", *TINY, "--out")
    shown = gemkit(*(("resume",) if command == "resume" else words), run)
    assert_refused(shown, run / name)
    assert contents(outside) == before[0]
    assert contents(run) == before[1]


@pytest.mark.parametrize("name", [name for name in FILES_OF_A_RUN if name != "config.toml"])
def test_a_folder_in_place_of_a_file_is_refused_before_the_work(name, gemkit, stopped, monkeypatch):
    run = Path("run")
    shutil.copytree(stopped, run)
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    before = contents(run)
    monkeypatch.setattr("gemkit.runs.run._execute", lambda *_, **__: pytest.fail("it works first"))
    shown = gemkit("resume", run)
    assert_refused(shown, run / name)
    assert f"run/{name} is a folder, not a plain file" in shown.stderr
    assert contents(run) == before


@pytest.mark.parametrize(
    "name", ["ladder/003-d0.5120.safetensors", "checkpoints/99999999.safetensors"]
)
def test_a_folder_in_place_of_a_level_or_checkpoint_is_refused_before_the_work(
    name, gemkit, stopped
):
    shutil.copytree(stopped, "run")
    Path("run", name).mkdir(parents=True)
    before = contents(Path("run"))
    shown = gemkit("resume", "run")
    assert_refused(shown, Path("run", name))
    assert f"run/{name} is a folder, not a plain file; move it away" in shown.stderr
    assert contents(Path("run")) == before


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("kind", ["folder link", "pipe"])
def test_what_must_be_a_folder_is_not_asked_to_be_a_file(
    name, kind, stopped, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stopped, "run")
    attack(Path("run", name), kind)
    words = f"run/{name} is a {kind.split()[-1]}, not a folder; use a folder instead"
    with pytest.raises(StorageError, match=words):
        RunDir(Path("run")).check_plain()


def test_every_file_of_a_run_must_not_be_a_folder(done, tmp_path):
    for name in FILES_OF_A_RUN:
        (tmp_path / name / name).mkdir(parents=True)
        with pytest.raises(StorageError, match=f"{name} is a folder, not a plain file"):
            RunDir(tmp_path / name).check_plain()
    made = {path.name for path in done.iterdir() if path.is_file()}
    assert made <= {*FILES_OF_A_RUN}


@pytest.fixture
def unchecked(monkeypatch):
    """Skip the check of all files beforehand, as if they were swapped after it."""
    monkeypatch.setattr(RunDir, "check_plain", lambda self: None)
    monkeypatch.setattr("gemkit.runs.directory.remove_temporary", lambda folder, within: None)
    monkeypatch.setattr(
        "gemkit.training.checkpoint.list_folder",
        lambda folder, within: [path.name for path in folder.iterdir()],
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in FILES[:6] for kind in ("link", "pipe")),
        *(("checkpoints/00000009.safetensors", kind) for kind in ("link", "pipe")),
        *((name, "folder link") for name in FOLDERS),
    ],
)
def test_every_file_is_opened_only_if_it_is_regular(name, kind, gemkit, stopped):
    run = Path("run")
    shutil.copytree(stopped, run)
    outside = attack(run / name, kind)
    before = contents(outside)
    assert_refused(gemkit("resume", run), run / name)
    assert contents(outside) == before


@pytest.mark.usefixtures("unchecked")
def test_files_that_are_written_atomically_replace_a_link(gemkit, stopped, monkeypatch):
    run, target = Path("run"), Path("target")
    shutil.copytree(stopped, run)
    target.write_bytes(PRECIOUS)
    links = [run / name for name in ("ticket.safetensors", "finetuned.safetensors")]
    for link in links:
        link.symlink_to(target.absolute())
    original = RunDir.level_file

    def rung(self: RunDir, number: int, density: float) -> Path:
        links.append(original(self, number, density))
        links[-1].symlink_to(target.absolute())
        return links[-1]

    monkeypatch.setattr(RunDir, "level_file", rung)
    assert gemkit("resume", run).exit_code == 0
    assert len(links) > 3
    assert target.read_bytes() == PRECIOUS
    assert not any(link.is_symlink() for link in links)


@pytest.mark.parametrize("name", [".lock", "config.toml", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_continues_past_an_unreadable_run(name, kind, gemkit, stopped, done):
    for folder, whole in (("a", done), ("b", done), ("c", stopped)):
        shutil.copytree(whole, Path("runs", folder))
    attack(Path("runs/b", name), kind)
    listed = answer(gemkit("runs", "--json"))["runs"]
    assert [(run["run"], run["state"]) for run in listed] == [
        ("runs/a", "done"),
        ("runs/b", "unreadable"),
        ("runs/c", "interrupted"),
    ]
    assert f"runs/b/{name} is a" in listed[1]["problem"]
    table, reasons = gemkit("runs").stdout.split("\n\n")[:2]
    assert "unreadable" in table
    [reason] = reasons.splitlines()
    assert reason.startswith(f"b: runs/b/{name} is a")


@pytest.mark.parametrize("kind", ["folder link", "pipe"])
def test_a_listing_does_not_follow_the_folder_of_checkpoints(kind, gemkit, done):
    shutil.copytree(done, "runs/a")
    attack(Path("runs/a/checkpoints"), kind)
    [listed] = answer(gemkit("runs", "--json"))["runs"]
    assert listed["state"] == "unreadable"


def test_a_pipe_in_another_run_does_not_stop_a_new_one(gemkit, stopped):
    shutil.copytree(stopped, "runs/random-conv4-fake-d0.3-s0")
    attack(Path("runs/random-conv4-fake-d0.3-s0/.lock"), "pipe")
    shown = gemkit("run", "--pruner", "random", *TINY, "--finetune-epochs", "0")
    assert shown.exit_code == 0, shown.output


TICKET_COMMANDS = (
    *("eval", "finetune", "compact", "bench", "ticket show", "ticket verify", "ratios copy"),
    "check",
)


@pytest.mark.parametrize("command", TICKET_COMMANDS)
@pytest.mark.parametrize("kind", ["ticket", "dangling", "pipe", "socket"])
def test_the_ticket_of_a_folder_must_not_be_a_link(command, kind, gemkit, done):
    """Not even a link to a valid ticket."""
    run = Path("run")
    shutil.copytree(done, run)
    for name in ("finetuned.safetensors", "result.json"):  # not fine-tuned yet
        (run / name).unlink()
    if kind == "ticket":
        (run / "ticket.safetensors").rename("mine.safetensors")
        (run / "ticket.safetensors").symlink_to(Path("mine.safetensors").absolute())
    else:
        attack(run / "ticket.safetensors", kind)
    assert_refused(gemkit(*command.split(), run), run / "ticket.safetensors")


@pytest.mark.parametrize("command", ["eval", "ticket show", "ticket verify", "ratios copy"])
def test_a_link_given_by_the_user_is_followed(command, gemkit, done):
    Path("mine.safetensors").symlink_to(done / "ticket.safetensors")
    Path("folder").symlink_to(done)
    for given in ("mine.safetensors", "folder"):
        assert gemkit(*command.split(), given).exit_code == 0


def test_a_run_in_a_folder_that_is_a_link_works(gemkit):
    Path("elsewhere").mkdir()
    Path("run").symlink_to(Path("elsewhere").absolute())
    words = ("run", "--pruner", "random", *TINY, "--finetune-epochs", "0", "--out", "run")
    assert gemkit(*words).exit_code == 0
    assert gemkit("resume", "run").exit_code == 0
    assert answer(gemkit("runs", "run", "--json"))["runs"][0]["state"] == "done"
    assert Path("elsewhere/result.json").is_file()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("command", [*TICKET_COMMANDS[:3], "check", "run --recipe"])
def test_a_pipe_given_by_the_user_does_not_block(command, kind, gemkit):
    attack(Path("given"), kind)
    assert_refused(gemkit(*command.split(), "given"), Path("given"))


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket"])
@pytest.mark.parametrize("folder", ["run", "alone"])
def test_checks_are_not_read_from_outside(kind, folder, gemkit, done, monkeypatch):
    """Neither in a run folder nor in one that only holds a ticket."""
    monkeypatch.setattr(checking, "run_checks", lambda *_: pytest.fail("it continued"))
    Path(folder).mkdir()
    for file in ("ticket.safetensors", *(["config.toml"] if folder == "run" else [])):
        shutil.copy(done / file, folder)
    outside = attack(Path(folder, "checks.json"), kind)
    before = contents(outside)
    assert_refused(gemkit("check", folder, "--device", "cpu"), Path("checks.json"))
    assert contents(outside) == before


@pytest.mark.parametrize("name", ["checks.json", "checks.svg", "checks.png"])
@pytest.mark.parametrize("folder", ["run", "alone"])
def test_a_folder_in_place_of_what_checks_write_is_refused_before_them(
    name, folder, gemkit, done, monkeypatch
):
    monkeypatch.setattr(checking, "run_checks", lambda *_: pytest.fail("it continued"))
    Path(folder, name).mkdir(parents=True)
    for file in ("ticket.safetensors", *(["config.toml"] if folder == "run" else [])):
        shutil.copy(done / file, folder)
    before = contents(Path(folder))
    assert_refused(gemkit("check", folder, "--device", "cpu"), Path(name))
    assert {file: contents(Path(folder))[file] for file in before} == before


@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_pictures_replace_a_link_and_do_not_follow_it(kind, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    outside = attack(Path("checks.svg"), kind)
    with canvas() as new_figure:
        save(new_figure(1, 1), tmp_path, "checks")
    assert b"<svg" in read(Path("checks.svg"), within=Path())
    assert (outside / "precious").read_bytes() == PRECIOUS


# --- no race between check and use ---------------------------------------------------------------


@pytest.fixture
def swapped(monkeypatch):
    """Replace a file by a link right before or right after it is opened."""

    def at(moment: str, name: str, swap) -> list[str]:
        original, happened = os.open, []

        def opened(path, *arguments, **settings):
            due = Path(path).name == name and not happened
            if due:
                happened.append(name)
            if due and moment == "before":
                swap()
            handle = original(path, *arguments, **settings)
            if due and moment == "after":
                swap()
            return handle

        monkeypatch.setattr(os, "open", opened)
        return happened

    return at


def link_instead(path: Path, target: Path):
    def swap() -> None:
        path.rename(path.with_name("moved"))
        path.symlink_to(target.absolute())

    return swap


def write_metrics(file: Path) -> None:
    with Metrics(file) as metrics:
        metrics.clear()
        metrics._write("x", {})


USES = {
    "metrics.jsonl": write_metrics,
    "log.txt": lambda file: Log(file).say("x"),
    ".lock": lambda file: RunDir(file.parent).locked().__enter__(),
    "config.toml": lambda file: RunDir(file.parent).config(),
    "ticket.safetensors": lambda file: Ticket.load(file, within=file.parent),
}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", USES)
def test_the_descriptor_that_is_checked_is_the_one_that_is_used(
    moment, name, tmp_path, swapped, done
):
    target, run = tmp_path / "target", tmp_path / "run"
    target.write_bytes(PRECIOUS)
    shutil.copytree(done, run)
    happened = swapped(moment, name, link_instead(run / name, target))
    if moment == "before":
        with pytest.raises(GemkitError, match=f"{name} is a link"):
            USES[name](run / name)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "gemkit.runs.directory.remove_temporary", lambda *_, **__: None
            )  # it would see the link
            USES[name](run / name)
    assert happened
    assert target.read_bytes() == PRECIOUS


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_folder_of_checkpoints_cannot_be_swapped_under_a_write(moment, tmp_path, swapped):
    checkpoints, outside = CheckpointDir(tmp_path / "checkpoints"), tmp_path / "outside"
    outside.mkdir()
    checkpoints.folder.mkdir()
    (outside / "00000001.safetensors").write_bytes(PRECIOUS)
    happened = swapped(moment, "checkpoints", link_instead(checkpoints.folder, outside))
    arguments = {
        "data": b"x",
        "path": checkpoints.folder / "00000001.safetensors",
        "within": tmp_path,
    }
    if moment == "before":
        with pytest.raises(StorageError, match="checkpoints is a link, not a folder"):
            write_atomic(**arguments)
    else:
        write_atomic(**arguments)
        assert (tmp_path / "moved" / "00000001.safetensors").read_bytes() == b"x"
    assert happened
    assert contents(outside) == {"00000001.safetensors": PRECIOUS}


def test_nothing_below_a_link_is_listed_read_written_or_removed(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    inside.mkdir()
    for name in (".gemkit-0123456789abcdef.tmp", "00000001.safetensors"):
        (outside / name).write_bytes(PRECIOUS)
    before = contents(outside)
    folder = inside / "checkpoints"
    folder.symlink_to(outside)
    file = folder / "00000001.safetensors"
    checkpoints = CheckpointDir(folder)
    for use in (
        lambda: list_folder(folder, within=inside),
        lambda: remove_temporary(folder, within=inside),
        lambda: read(file, within=inside),
        lambda: write_atomic(b"x", file, within=inside),
        lambda: remove(file, within=inside),
        checkpoints.files,
        checkpoints.newest,
        lambda: checkpoints.remove(file),
        lambda: checkpoints.add(Checkpoint("r", "search", {"x": torch.ones(1)})),
        lambda: RunDir(inside).has_nothing_saved(),
    ):
        with pytest.raises(StorageError, match="checkpoints is a link, not a folder"):
            use()
    with pytest.raises(OSError, match="symbolic link"):
        RunDir(inside).finish()
    assert contents(outside) == before


def test_a_file_with_another_hard_link_is_read_but_not_written(tmp_path):
    (tmp_path / "mine").write_bytes(PRECIOUS)
    other = tmp_path / "other"
    other.hardlink_to(tmp_path / "mine")
    assert read(other, within=tmp_path) == PRECIOUS
    with pytest.raises(StorageError, match="has another hard link"):
        open_plain(other, "ab", within=tmp_path)
    write_atomic(b"x", other, within=tmp_path)
    assert (tmp_path / "mine").read_bytes() == PRECIOUS


def test_no_mode_truncates_a_file_before_it_is_checked(tmp_path):
    (tmp_path / "mine").write_bytes(PRECIOUS)
    with pytest.raises(AssertionError, match="truncate"):
        open_plain(tmp_path / "mine", "wb")
    assert (tmp_path / "mine").read_bytes() == PRECIOUS


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null"])
def test_devices_are_refused(place):
    with pytest.raises(StorageError, match="is a device, not a plain file"):
        read(Path(place))


def test_a_refusal_leaves_no_descriptor_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    before = len(list(Path("/dev/fd").iterdir()))
    for name, within in (("pipe", None), ("pipe", tmp_path), ("link", None), ("link", tmp_path)):
        with pytest.raises(StorageError):
            open_plain(tmp_path / name, within=within)
    assert len(list(Path("/dev/fd").iterdir())) == before


# --- data, weights, recipes and other files given by the user ------------------------------------

DATA = {
    "MNIST/raw/train-images-idx3-ubyte": "mnist",
    "MNIST/raw/t10k-labels-idx1-ubyte": "mnist",
    "FashionMNIST/raw/train-images-idx3-ubyte.gz": "fashion_mnist",
    "cifar-10-batches-py/data_batch_3": "cifar10",
    "cifar-100-python/train": "cifar100",
    "test_32x32.mat": "svhn",
    "tiny-imagenet-200/val/val_annotations.txt": "tiny_imagenet",
    "tiny-imagenet-200/val/images/000.JPEG": "tiny_imagenet",
    "pictures/cat/003.png": "imagefolder:pictures",
}


@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("name", DATA)
def test_a_data_set_with_a_pipe_is_refused(name, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_every_data_set(tmp_path)
    part = REGISTRY.build("datasets", DATA[name])
    part.load(tmp_path)
    assert Path(name).is_file()
    attack(Path(name), kind)
    with pytest.raises(StorageError, match=f"{Path(name).name} is a {kind}, not a plain file"):
        part.load(tmp_path)


def test_an_image_that_is_read_on_demand_does_not_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_every_data_set(tmp_path)
    data = ImageFolder(path="pictures", memory="never").load(tmp_path)
    for file in Path("pictures").rglob("*.png"):
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(StorageError, match="is a pipe"):
        list(data.train.batches(4))


@pytest.mark.parametrize("kind", ["pipe", "socket", "dangling"])
def test_a_cache_that_is_not_a_regular_file_is_rebuilt(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_every_data_set(tmp_path)
    part = ImageFolder(path="pictures")
    before = part.load(tmp_path)
    [cache] = cache_folder().iterdir()
    outside = attack(cache, kind)
    after = part.load(tmp_path)
    assert torch.equal(next(after.test.batches(9))[0], next(before.test.batches(9))[0])
    assert cache.is_file()
    assert not cache.is_symlink()
    assert not (outside / "nothing").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_other_files_given_by_the_user_do_not_block(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use, name in (
        (read_weights, "w.safetensors"),
        (read_weights, "w.pth"),
        (lambda path: Ledger(path, ("seed",)).rows(), "ledger.jsonl"),
        (lambda path: Ledger(path, ("seed",)).append({"seed": 1}), "ledger.jsonl"),
        (lambda path: check_place(path, "x"), "page.md"),
        (lambda path: load_plugins(files=[path], only=()), "plugin.py"),
    ):
        attack(Path(name), kind)
        with pytest.raises((StorageError, OptionError, PluginError), match="not a plain file"):
            use(Path(name))
        shutil.rmtree("outside")


def test_blocking_on_a_pipe_is_detected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with Watchdog(tmp_path, 0.05) as watchdog:
        assert (tmp_path / "pipe").read_bytes() == b""
    assert watchdog.fired
