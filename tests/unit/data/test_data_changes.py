"""Resuming and checking a run refuses data that changed, but not data that only moved."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_runs import Gemkit, commands_in
from data_files import idx, random_bytes, write_classes, write_idx
from kept import Killed, Mortal
from PIL import Image
from tiny import CPU, PLAN, tiny_data, tiny_net

import gemkit as library
from gemkit import Data
from gemkit.core.errors import DataError, GemkitError, SignalError, Stopped
from gemkit.data import file_source
from gemkit.data.folders import ImageFolder
from gemkit.pruning.guard import Guard
from gemkit.runs.setup import together
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import DiskCheckpointer
from gemkit.training.loop import TrainLoop

QUICK = (
    *("--pruner", "random", "-o", "schedule.every=1", "--schedule", "cubic", "-o", "model.width=4"),
    *("--epochs", "2", "--finetune-epochs", "1", "--batch-size", "16", "--density", "0.5"),
    *("--device", "cpu", "--on-collapse", "warn"),
)
CHECK = ("--checks", "shuffle", "--seeds", "1", "--device", "cpu")


# --- two kinds of data, and how they change ------------------------------------------------------


def write_arrays(root: Path, change: str = "") -> None:
    """Write MNIST, which is read into memory completely."""
    shutil.rmtree(root, ignore_errors=True)
    [(images, labels), _] = write_idx(root / "MNIST" / "raw")
    images, labels = images.copy(), labels.copy()
    if change == "pixels":
        images[7, 3, 3] ^= 1
    elif change == "deleted":
        images, labels = images[:-1], labels[:-1]
    elif change == "added":
        images, labels = images[[*range(40), 0]], labels[[*range(40), 0]]
    elif change == "labels":
        labels[[0, 1]] = labels[[1, 0]]
    for name, values in (("train-images-idx3", images), ("train-labels-idx1", labels)):
        (root / "MNIST" / "raw" / f"{name}-ubyte").write_bytes(idx(values))


def write_folder(root: Path, change: str = "") -> None:
    """Write a folder of images with all splits."""
    shutil.rmtree(root, ignore_errors=True)
    for seed, (split, count) in enumerate({"train": 16, "val": 4, "test": 4}.items()):
        write_classes(root / "pets" / split, {"cat": count, "dog": count}, seed=seed)
    train = root / "pets" / "train"
    if change == "pixels":
        other = Image.fromarray(random_bytes(8, 8, 3, seed=5))
        other.save(train / "dog" / "007.png")
    elif change == "deleted":
        (train / "cat" / "003.png").unlink()
    elif change == "added":
        shutil.copy(train / "cat" / "003.png", train / "cat" / "new.png")
    elif change == "renamed":
        for split in ("train", "val", "test"):
            (root / "pets" / split / "cat").rename(root / "pets" / split / "bird")


ARRAY_CHANGES = {
    "pixels": "the training images differ",
    "deleted": "35 training images instead of 36",
    "added": "37 training images instead of 36",
    "labels": "the training images differ, the training labels differ",
}
FOLDER_CHANGES = {
    "pixels": "the training images differ",
    "deleted": "31 training images instead of 32",
    "added": "33 training images instead of 32",
    "renamed": "the class names differ",
}
PETS = ("--dataset", "imagefolder:pets", "-o")
KINDS = {
    "memory": (write_arrays, ARRAY_CHANGES, ("--dataset", "mnist")),
    "held": (write_folder, FOLDER_CHANGES, (*PETS, "dataset.memory=always")),
    "streamed": (write_folder, FOLDER_CHANGES, (*PETS, "dataset.memory=never")),
}


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMKIT_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # no pictures of checks: they take time
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def stop_in(monkeypatch):
    """Return a function that runs a command and stops it in a phase, after its first step."""

    def stopped(phase: str, run, *words) -> None:
        def maybe_save(self, *, epoch_ended=False):
            if self._phase == phase:
                raise Stopped(15)

        with monkeypatch.context() as patch:
            patch.setattr(DiskCheckpointer, "maybe_save", maybe_save)
            assert run(*words).exit_code == 143

    return stopped


def contents(folder: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def refused(result, sentence: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("gemkit: the data are not those ")
    assert f": {sentence}" in result.stderr
    assert result.stderr.count("\n") == 1, "one sentence"


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "phase"),
    [("memory", "search"), ("memory", "finetune"), ("held", "search"), ("streamed", "finetune")],
)
def test_a_run_is_resumed_on_the_data_it_began_with(kind, phase, gemkit, stop_in):
    write, changes, words = KINDS[kind]
    write(Path("data"))
    words = ("run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    stop_in(phase, gemkit, *words)
    before = contents("run")
    for change, sentence in changes.items():
        write(Path("data"), change)
        refused(gemkit("resume", "run"), sentence)
    refused(gemkit(*words), sentence)
    shown = gemkit(*words, "--seed", "7")
    assert shown.exit_code == 2
    first, *_ = sentence.split(", ")
    assert f"  - data: {first}\n" in shown.stderr, "listed with other changed settings"
    assert contents("run") == before
    shutil.rmtree("data")
    write(Path("moved"))
    os.utime(next(path for path in Path("moved").rglob("*") if path.is_file()), (1, 1))
    assert gemkit("resume", "run", "--data-dir", "moved").exit_code == 0


@pytest.mark.parametrize("kind", ["memory", "held"])
def test_a_run_is_checked_on_the_data_it_began_with(kind, gemkit):
    write, changes, words = KINDS[kind]
    write(Path("data"))
    words = ("run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    assert gemkit(*words).exit_code == 0
    before = contents("run")
    for change, sentence in changes.items():
        write(Path("data"), change)
        refused(gemkit("check", "run", "--data-dir", "data", *CHECK), sentence)
    refused(gemkit(*words, "--check", "shuffle", "--check-seeds", "1"), sentence)
    assert contents("run") == before
    for command in ("eval", "finetune"):
        more = ("--epochs", "1") if command == "finetune" else ()
        other = gemkit(command, "run", "--data-dir", "data", "--device", "cpu", *more)
        assert other.exit_code == 0, "other data may be intended here"
    write(Path("moved"))
    assert gemkit("check", "run", "--data-dir", "moved", *CHECK).exit_code == 0


def test_checks_are_resumed_on_the_data_they_began_with(gemkit):
    """Also if the ticket has no fingerprint, as one made in Python."""
    write, changes, words = KINDS["streamed"]
    write(Path("data"))
    gemkit("run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    Ticket.load("run/ticket.safetensors").with_info(data=None).save("ticket.safetensors")
    words = ("check", "ticket.safetensors", *CHECK, "--finetune-epochs", "1", "--data-dir")
    assert gemkit(*words, "data").exit_code == 0
    before = Path("checks.json").read_bytes()
    for change, sentence in changes.items():
        write(Path("data"), change)
        refused(gemkit(*words, "data"), sentence)
    assert Path("checks.json").read_bytes() == before
    assert gemkit(*words, "data", "--force").exit_code == 0
    assert Path("checks.json").read_bytes() != before


def test_data_in_memory_may_be_streamed_by_a_check(gemkit):
    write, _, words = KINDS["held"]
    write(Path("data"))
    gemkit("run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    streamed = ("--data-dir", "data", "-o", "dataset.memory=never")
    assert gemkit("check", "run", *streamed, *CHECK).exit_code == 0


def test_a_run_that_saved_nothing_may_have_other_data(gemkit, monkeypatch):
    def no_signal(self, freezes):
        raise SignalError("no signal at all")

    write, _, words = KINDS["memory"]
    write(Path("data"))
    words = ("run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "check_start", no_signal)
        assert gemkit(*words).exit_code == 2
        write(Path("data"), "deleted")
        shown = gemkit(*words)
    assert "note: run held another run, which had saved nothing" in shown.stderr
    assert gemkit(*words).exit_code == 0


def test_files_from_before_fingerprints_are_read(gemkit, stop_in, monkeypatch):
    write, _, words = KINDS["memory"]
    write(Path("data"))
    with monkeypatch.context() as patch:
        state = TrainLoop.state_dict
        patch.setattr(TrainLoop, "state_dict", lambda self: without_data(state(self)))
        stop_in("finetune", gemkit, "run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    config = Path("run/config.toml")
    text = config.read_text()
    start, end = text.index("[data]"), text.index("[run]")
    config.write_text(text[:start] + text[end:])
    ticket = Ticket.load("run/ticket.safetensors").with_info(data=None)
    assert "data" not in ticket.info.model_dump(), "its digest does not change"
    ticket.save("run/ticket.safetensors")
    write(Path("data"), "pixels")
    assert gemkit("resume", "run").exit_code == 0
    assert "[data]" in config.read_text()
    assert gemkit("check", "run", "--data-dir", "data", *CHECK).exit_code == 0
    checks = Path("run/checks.json")
    checks.write_text(json.dumps(without_data(json.loads(checks.read_text()))))
    write(Path("data"))
    assert gemkit("check", "run", "--data-dir", "data", *CHECK).exit_code == 0


def without_data(known: dict) -> dict:
    return {name: value for name, value in known.items() if name not in ("data", "ticket")}


def test_a_broken_record_of_the_data_is_reported(gemkit, stop_in):
    write, _, words = KINDS["memory"]
    write(Path("data"))
    words = ("run", *words, *QUICK, "--data-dir", "data", "--out", "run")
    stop_in("finetune", gemkit, *words)
    config = Path("run/config.toml")
    text = config.read_text()
    start, end = text.index("[data]"), text.index("[run]")
    for data in ("3", '"x"', "{classes = 0, names = 1}"):
        config.write_text(f"data = {data}\n" + text[:start] + text[end:])
        for again in (("resume", "run"), words):
            shown = gemkit(*again)
            assert shown.exit_code == 2, shown.output
            assert "config.data" in shown.stderr


class SecondProcess:
    """A fabric whose first process has an error or not."""

    def __init__(self, failed: bool) -> None:
        self.failed = failed

    def broadcast(self, own: bool) -> bool:
        return self.failed


def test_all_processes_stop_where_the_first_one_refuses():
    with (
        pytest.raises(GemkitError, match="the first process has an error"),
        together(SecondProcess(failed=True)),
    ):
        pass
    with together(SecondProcess(failed=False)):
        pass
    with pytest.raises(DataError, match="own"), together(None):
        raise DataError("own")


# --- from Python ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["search", "finetune"])
def test_a_checkpointer_refuses_other_data(phase, tmp_path):
    ticket = library.search("random", tiny_net(), tiny_data(), density=0.5, runtime=CPU)

    def run(data, lives=None):
        how = {"plan": PLAN, "runtime": CPU, "checkpointer": Mortal(tmp_path, lives)}
        if phase == "finetune":
            return library.finetune(ticket, tiny_net(), data, **how)
        return library.search("gem_miner", tiny_net(), data, on_collapse="warn", **how)

    with pytest.raises(Killed):
        run(tiny_data(), 2)
    before = contents(str(tmp_path))
    with pytest.raises(
        DataError, match=r"the run began with: the training images differ, .*folder"
    ):
        run(tiny_data(seed=1))
    with pytest.raises(DataError, match="the run began with: 31 training images instead of 32"):
        run(tiny_data(samples=31))
    assert contents(str(tmp_path)) == before
    run(tiny_data())


# --- fingerprints --------------------------------------------------------------------------------


def arrays(**changes) -> Data:
    """Make data of tensors, with some of them changed."""
    known = {"images": torch.arange(96).view(12, 2, 2, 2).byte(), "labels": torch.arange(12) % 3}
    known |= changes
    pair = (known.pop("images"), known.pop("labels"))
    same = (torch.zeros(3, *pair[0].shape[1:], dtype=pair[0].dtype), torch.arange(3))
    return Data.of_tensors(train=pair, **{"validation": same, "test": same, **known})


IMAGES = arrays().train.images


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": IMAGES + (IMAGES == 95)}, ["the training images differ"]),
        ({"images": IMAGES.flip(0)}, ["the training images differ"]),
        ({"images": IMAGES.transpose(2, 3)}, ["the training images differ"]),
        ({"labels": torch.arange(12) // 4}, ["the training labels differ"]),
        ({"classes": 4}, ["4 classes instead of 3"]),
        ({"class_names": ("a", "b", "d")}, ["the class names differ"]),
        (
            {"images": IMAGES[:11], "labels": torch.arange(11) % 3},
            ["11 training images instead of 12"],
        ),
        (
            {"test": (torch.ones(3, 2, 2, 2).byte(), torch.tensor([0, 2, 1]))},
            ["the test images differ", "the test labels differ"],
        ),
    ],
)
def test_any_change_in_memory_changes_the_fingerprint(changes, sentence):
    names = {"class_names": ("a", "b", "c")}
    then, now = arrays(**names).fingerprint, arrays(**{**names, **changes}).fingerprint
    assert then == arrays(**names).fingerprint
    assert then.differences(now) == sentence


def test_the_dtype_of_images_matters_and_their_memory_format_does_not():
    then = arrays(images=IMAGES.float()).fingerprint
    assert then != arrays(images=IMAGES.double()).fingerprint
    other = IMAGES.float().contiguous(memory_format=torch.channels_last)
    assert then == arrays(images=other).fingerprint
    assert then == arrays(images=IMAGES.float()).to(torch.device("cpu")).fingerprint


def test_of_many_files_a_sample_is_read_that_includes_the_first_and_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(file_source, "_SAMPLE", 5)
    files = [tmp_path / f"{number:03}.png" for number in range(41)]
    for file in files:
        file.write_bytes(b"abc")
    names = [str(file) for file in files]
    then, noticed = file_source.files_digest(names), []
    for number, file in enumerate(files):
        file.write_bytes(b"abd")
        if file_source.files_digest(names) != then:
            noticed.append(number)
        file.write_bytes(b"abcd")
        assert file_source.files_digest(names) != then, "all sizes are hashed"
        file.write_bytes(b"abc")
    assert noticed == [0, 10, 20, 30, 40]
    assert file_source.files_digest(names[:1]) != file_source.files_digest(names[1:2])


def test_what_is_not_a_regular_file_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("pipe.png", "gone.png"):
        with pytest.raises(DataError, match=f"cannot read .*{name}"):
            file_source.files_digest([str(tmp_path / name)])


def test_a_folder_has_one_fingerprint_in_memory_and_streamed(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    write_folder(tmp_path / "one")
    write_folder(tmp_path / "two")
    known = [
        ImageFolder(path=str(tmp_path / place / "pets"), memory=memory).load(None).fingerprint
        for place in ("one", "two")
        for memory in ("always", "never")
    ]
    assert known == known[:1] * 4


class Plain:
    """A third-party source without a digest."""

    def __init__(self, source):
        self.source = source

    def __getattr__(self, name):
        if name in {"digest", "images", "mark"}:
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self):
        return len(self.source)


def test_of_a_third_party_source_labels_and_the_first_images_are_hashed():
    def plain(**changes):
        data = arrays(**changes)
        return replace(data, train=Plain(data.train)).fingerprint

    assert plain() == plain()
    assert plain().differences(plain(images=IMAGES.flip(0))) == ["the training images differ"]
    changed = {"labels": torch.arange(12) // 4}
    assert plain().differences(plain(**changed)) == ["the training labels differ"]
