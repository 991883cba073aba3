"""Too little memory: one sentence with the phase and what to reduce, wherever it happens."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli_runs import TINY, answer, commands_in

import gemkit
from gemkit.core.errors import (
    CheckpointError,
    DataError,
    ModelError,
    TooLittleMemoryError,
)
from gemkit.core.memory import LESS, during, memory_explained, shortage
from gemkit.runs.directory import RunDir
from gemkit.runs.failures import explained
from gemkit.runs.runner import Runner
from gemkit.training.checkpoint import CheckpointDir

ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)\nC++ stack"
)
LACKS = {
    "device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "allocator": RuntimeError(ALLOCATOR),
    "python": MemoryError(),
}
RUN = ("run", "--pruner", "snip", *TINY, "--finetune-epochs", "1", "--out", "run")
PLACES = {
    "loading the data": (RUN, "gemkit.data.fake.Fake.load"),
    "building the network": (RUN, "gemkit.models.small.Conv4.build"),
    "searching: scoring": (RUN, "gemkit.methods.snip.Snip.importance"),
    "searching: saving a checkpoint": (RUN, "gemkit.training.checkpoint.serialize"),
    "evaluating": (RUN, "gemkit.pruning.finetune.measure"),
    "fine-tuning": (RUN, "gemkit.training.trainer.Trainer.step"),
    "fine-tuning: loading the data": (("finetune", "found"), "gemkit.data.source.Data.to"),
    "checking: fine-tuning": (
        ("check", "found", "--seeds", "1", "--out", "checked"),
        "gemkit.training.trainer.Trainer.step",
    ),
    "compacting": (("compact", "found"), "gemkit.compaction.compact_network.analyze"),
    "timing": (("bench", "found"), "gemkit.compaction.timing.time_interleaved"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        assert commands_in(folder, patch)(*RUN).exit_code == 0
    return folder / "run"


@pytest.fixture
def command(tmp_path, monkeypatch, found):
    (tmp_path / "found").symlink_to(found)
    return commands_in(tmp_path, monkeypatch)


def failing(monkeypatch, place: str, error: BaseException) -> None:
    """Raise an error where a function would be called."""

    def fail(*_: object, **__: object) -> None:
        raise type(error)(*error.args)  # a new one: notes belong to an exception

    monkeypatch.setattr(place, fail)


@pytest.mark.parametrize("phase", PLACES)
@pytest.mark.parametrize("lack", LACKS)
def test_a_command_says_what_it_did_and_what_to_reduce(command, monkeypatch, phase, lack):
    words, place = PLACES[phase]
    with monkeypatch.context() as patch:
        failing(patch, place, LACKS[lack])
        shown = command(*words)
    assert shown.exit_code == 2, shown.output
    assert isinstance(shown.exception, SystemExit), "a traceback"
    [line] = [one for one in shown.stderr.splitlines() if one.startswith("gemkit: ")]
    assert f"there is not enough memory while {phase} (" in line
    reason = str(LACKS[lack]).partition("\n")[0] or "MemoryError"
    assert f"({reason}); " in line
    assert LESS.get(phase.rpartition(": ")[2], "lower --batch-size") in line
    assert "C++ stack" not in shown.stderr
    if words == RUN and lack == "allocator":
        assert command(*words).exit_code == 0, "the same command resumes the run"


def test_a_run_that_ran_out_of_memory_resumes_to_the_same_bits(command, monkeypatch, found):
    with monkeypatch.context() as patch:
        failing(patch, "gemkit.training.trainer.Trainer.step", MemoryError())
        shown = command(*RUN)
    assert "resume it with `gemkit resume run`" in shown.stderr
    assert RunDir(Path("run")).state() == "failed"
    assert command("resume", "run").exit_code == 0
    for name in ("ticket.safetensors", "finetuned.safetensors"):
        assert (Path("run") / name).read_bytes() == (found / name).read_bytes()


def test_a_checkpoint_that_memory_is_too_small_for_is_not_called_damaged(command, monkeypatch):
    """A damaged checkpoint is skipped and removed; this one is sound."""
    with monkeypatch.context() as patch:
        failing(patch, "gemkit.training.trainer.Trainer.step", MemoryError())
        command(*RUN)
    kept = CheckpointDir(Path("run/checkpoints")).files()
    assert len(kept) == 2
    for lack in LACKS.values():
        with monkeypatch.context() as patch:
            failing(patch, "gemkit.core.tensor_file._load", lack)
            shown = command("resume", "run")
        assert "memory while loading a checkpoint" in shown.stderr
        assert CheckpointDir(Path("run/checkpoints")).files() == kept


def test_a_control_without_memory_is_no_result_of_a_check(command, monkeypatch):
    """It would be recorded as a control that cannot be made."""

    def fail(self, *_: object) -> None:
        raise ModelError("cannot take these inputs") from RuntimeError(ALLOCATOR)

    with monkeypatch.context() as patch:
        patch.setattr("gemkit.sanity.controls.Shuffle.control", fail)
        words = ("check", "found", "--seeds", "1", "--checks", "shuffle", "--out", "checked")
        shown = command(*words, "--finetune-epochs", "0")
    assert shown.exit_code == 2
    assert "there is not enough memory while checking" in shown.stderr
    data = answer(command(*words, "--finetune-epochs", "0", "--json"))
    assert data["unmade"] == []
    assert {one["check"] for one in data["trials"]} == {"ticket", "shuffle"}


@pytest.mark.parametrize("lack", LACKS)
def test_python_gets_an_error_of_gemkit(monkeypatch, tmp_path, found, lack):
    config = gemkit.RunConfig(dataset={"name": "fake", "samples": 60}, density=0.3)
    ticket = gemkit.Ticket.load(found / "ticket.safetensors")
    images, labels = torch.rand(40, 3, 8, 8), torch.arange(40) % 4
    data = gemkit.Data.of_tensors(train=(images, labels), test=(images, labels))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    masks = {"1.weight": torch.arange(768).view(4, 192) % 2 == 0}
    calls = {
        "gemkit.runs.setup.load_data": lambda: gemkit.run(config, tmp_path / "run"),
        "gemkit.pruning.search.check_shares": lambda: gemkit.search("snip", net, data),
        "gemkit.pruning.finetune.own_copy": lambda: gemkit.finetune(ticket, net, data),
        "gemkit.pruning.finetune.place": lambda: gemkit.evaluate(
            gemkit.Ticket.from_masks(net, masks), net, data
        ),
        "gemkit.core.probe.gradients": lambda: gemkit.importance("snip", net, [(images, labels)]),
        "gemkit.compaction.compact_network.own_copy": lambda: gemkit.compact(ticket, net),
    }
    for place, call in calls.items():
        with monkeypatch.context() as patch:
            failing(patch, place, LACKS[lack])
            with pytest.raises(TooLittleMemoryError, match="not enough memory"):
                call()
    assert issubclass(TooLittleMemoryError, gemkit.GemkitError)


# --- the mechanism -------------------------------------------------------------------------------


def raised(error: Exception, cause: BaseException | None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


@pytest.mark.parametrize("lack", LACKS.values())
def test_errors_that_memory_caused_are_found_through_those_that_word_them(lack):
    worded = raised(DataError("a.png is no image"), lack)
    assert shortage(lack) is lack
    assert shortage(raised(CheckpointError("it does not fit"), worded)) is lack


def test_other_errors_are_left_alone():
    for error in (
        RuntimeError("a bug"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        DataError("an epoch is out of memory"),  # our own words say what they mean
        KeyError("x"),
    ):
        assert shortage(error) is None
        with pytest.raises(type(error)) as found, memory_explained(), during("searching"):
            raise error
        assert found.value is error
        assert not hasattr(error, "__notes__")


def test_a_system_call_without_memory_counts():
    assert shortage(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))) is not None


def test_a_library_that_does_not_fit_into_memory_counts():
    with (
        pytest.raises(TooLittleMemoryError, match=r"loading libraries \(libt.*ulimit -v.*noexec"),
        memory_explained(),
        during("searching"),
    ):
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")
    with pytest.raises(ImportError), memory_explained():
        raise ImportError("no module of that name")


def test_the_first_explanation_stays():
    with (
        pytest.raises(TooLittleMemoryError) as found,
        memory_explained("outer"),
        memory_explained("inner"),
        during("searching"),
        during("scoring"),
    ):
        raise MemoryError
    text = str(found.value)
    assert text.startswith("there is not enough memory while searching: scoring (MemoryError); ")
    assert text.endswith("; inner")


def test_only_the_first_process_says_how_to_resume():
    other = SimpleNamespace(setup=SimpleNamespace(fabric=SimpleNamespace(is_global_zero=False)))
    with (
        pytest.raises(TooLittleMemoryError) as found,
        explained(lambda: Runner._saved(other)),
    ):
        raise MemoryError("full")
    assert str(found.value).endswith("or use a device with more memory")
