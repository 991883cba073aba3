"""Every file that gemkit reads may be hostile: it is read, or refused in one message of gemkit's.

GEMKIT_FUZZ=1000 tries so many inputs on every reader instead of a few. Files that users bring
are in test_fuzz_inputs.py.
"""

import json
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tomli_w
from cli_runs import TINY
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kept import REGISTRY, Killed, Mortal, Recorder, find
from safetensors import safe_open
from safetensors.torch import load, save
from spoiling import accepts, bounded, changed, spoiled, without_none
from studies import TINY as STUDY
from studies import Here, cells_of

from gemkit.cli import main
from gemkit.cli.configure import read_toml
from gemkit.cli.run import next_command
from gemkit.core.tensor_file import sha256
from gemkit.report.groups import group
from gemkit.report.records import records_from
from gemkit.report.results import result_text
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.config import RunSettings
from gemkit.runs.directory import RunDir
from gemkit.runs.listing import runs_data, runs_text
from gemkit.runs.recorded import run_records
from gemkit.runs.resolved import resolve_recorded
from gemkit.study.cell import Cell
from gemkit.study.stage_store import StageStore
from gemkit.study.store import Ledger
from gemkit.study.study import load as study_records
from gemkit.tickets.ticket import Ticket
from gemkit.training import checkpoint

# --- sound files ---------------------------------------------------------------------------------


@cache
def sound() -> dict[str, bytes]:
    """Make one sound file of every kind, by a tiny run that is killed, and another that is not."""
    with TemporaryDirectory() as folder:
        home = Path(folder)
        words = ["run", *TINY, "--out", str(home / "run"), "--check", "shuffle"]
        done = CliRunner().invoke(main, [*words, "--check-seeds", "1"], env={"GEMKIT_PLUGINS": ""})
        assert done.exit_code == 0, done.output
        with pytest.raises(Killed):
            find("learned", Recorder(), Mortal(home / "kept", 9))
        names = ("config.toml", "metrics.jsonl", "environment.json", "result.json", "checks.json")
        files = {name: (home / "run" / name).read_bytes() for name in names}
        return files | {
            "ticket": (home / "run" / "ticket.safetensors").read_bytes(),
            "checkpoint": max((home / "kept").iterdir()).read_bytes(),
            "recipe": REGISTRY.recipe("gem_miner").to_toml().encode(),
            "ratios": tomli_w.dumps(
                {
                    **REGISTRY.recipe("smart_ratio").to_data(),
                    "allocation": {"name": "densities", "densities": [0.5, 0.25]},
                }
            ).encode(),
            **_study_files(),
        }


@cache
def study_cell() -> Cell:
    [cell] = cells_of(STUDY)
    return cell


def _study_files() -> dict[str, bytes]:
    """Return the files of a study with one cell, and its records as a report writes them."""
    with TemporaryDirectory() as folder:
        store, cell = StageStore(Path(folder)), study_cell()
        store.make()
        store.write_cells("spoiled", [cell.info])
        for stage in cell.stages.values():
            Here(store).submit(None, {**stage.task})
        search = Path(folder, "stages", cell.info.search)
        return {
            "study.json": Path(folder, "study.json").read_bytes(),
            "stage.json": (search / "stage.json").read_bytes(),
            "stage result": (search / "result.json").read_bytes(),
            "failed.json": b'{"reason": "it diverged"}',
            "records": json.dumps(study_records(folder).results()[0]).encode() + b"\n",
        }


def in_file(content: bytes, name: str, read: Callable[[Path], object]) -> None:
    """Put content into a file of a run that is otherwise sound, and read it."""
    with TemporaryDirectory() as folder:
        for other in ("config.toml", "result.json", "metrics.jsonl"):
            Path(folder, other).write_bytes(sound()[other])
        file = Path(folder, name)
        file.write_bytes(content)
        accepts(lambda: read(file))


# --- every reader --------------------------------------------------------------------------------


def resume_config(file: Path) -> None:
    accepts(lambda: report_run(file))
    resolve_recorded(REGISTRY, RunDir(file.parent).config(), None, file)


def list_runs(file: Path) -> None:
    json.dumps(listed := runs_data(file.parent))
    runs_text(listed, file.parent)
    accepts(lambda: report_run(file))


def tell_result(file: Path) -> None:
    list_runs(file)
    data = RunDir(file.parent).result()
    if data is not None:
        result_text(data, next_command(data, RunSettings()))
        json.dumps(data, allow_nan=False)


def read_recipe(file: Path) -> None:
    REGISTRY.recipe(read_toml(file))


def read_environment(file: Path) -> None:
    RunDir(file.parent).add_environment({"threads": 1})


def read_checks(file: Path) -> None:
    accepts(lambda: report_run(file))
    made = CheckFile(setting(), {}, (), Path())
    book = made.resumed(file.parent, force=False)
    book.with_checks({}, REGISTRY).write(0.01)


def report_run(file: Path) -> None:
    group(records_from(run_records(file.parent)))


def read_study(place: str) -> Callable[[Path], None]:
    """Return a reader of a study in which one file is the one to read."""

    def read(file: Path) -> None:
        home, cell = file.parent / "study", study_cell()
        search = home / "stages" / cell.info.search
        search.mkdir(parents=True)
        for name, whole in {
            "study.json": home / "study.json",
            "stage.json": search / "stage.json",
            "stage result": search / "result.json",
            "failed.json": search / "failed.json",
        }.items():
            whole.write_bytes(file.read_bytes() if name == place else sound()[name])
        StageStore(home).check_same(cell.stages[cell.info.search])
        found = study_records(home)
        json.dumps(found.status().to_data(), allow_nan=False)
        json.dumps(found.results(), allow_nan=False)
        group(records_from(found.results()))
        StageStore(home).failure(cell.info.search)

    return read


def read_records(file: Path) -> None:
    group(records_from(Ledger(file, ()).rows()))


@cache
def setting() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(sound()["checks.json"])["setting"]
    return known


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "ticket": ("ticket.safetensors", Ticket.load),
    "checkpoint": ("00000001.safetensors", checkpoint.read),
    "recipe": ("recipe.toml", read_recipe),
    "ratios": ("ratios.toml", read_recipe),
    "config.toml": ("config.toml", resume_config),
    "metrics.jsonl": ("metrics.jsonl", list_runs),
    "result.json": ("result.json", tell_result),
    "environment.json": ("environment.json", read_environment),
    "checks.json": ("checks.json", read_checks),
    "study.json": ("any.json", read_study("study.json")),
    "stage.json": ("any.json", read_study("stage.json")),
    "stage result": ("any.json", read_study("stage result")),
    "failed.json": ("any.json", read_study("failed.json")),
    "records": ("records.jsonl", read_records),
}


@pytest.mark.parametrize("kind", READERS)
@bounded
@given(data=st.data())
def test_spoiled_bytes_are_read_or_refused(kind, data):
    name, read = READERS[kind]
    in_file(data.draw(spoiled(sound()[kind])), name, read)


@pytest.mark.parametrize("kind", ["recipe", "ratios", "config.toml"])
@bounded
@given(data=st.data())
def test_toml_that_says_something_else_is_read_or_refused(kind, data):
    name, read = READERS[kind]
    tree = without_none(data.draw(changed(tomllib.loads(sound()[kind].decode()))))
    in_file(tomli_w.dumps(tree).encode("utf-8", "replace"), name, read)


@pytest.mark.parametrize(
    "kind",
    [
        *("result.json", "environment.json", "checks.json"),
        *("study.json", "stage.json", "stage result", "failed.json", "records"),
    ],
)
@bounded
@given(data=st.data())
def test_json_that_says_something_else_is_read_or_refused(kind, data):
    name, read = READERS[kind]
    tree = data.draw(changed(json.loads(sound()[kind])))
    in_file(json.dumps(tree).encode() + b"\n", name, read)


@bounded
@given(data=st.data())
def test_metrics_that_say_something_else_are_read_or_refused(data):
    lines = [json.loads(line) for line in sound()["metrics.jsonl"].splitlines()]
    lines = data.draw(changed(lines))
    in_file(
        b"".join(json.dumps(line).encode() + b"\n" for line in lines), *READERS["metrics.jsonl"]
    )


def resealed(kind: str, document: dict[str, Any]) -> bytes:
    """Put another document beside a file's tensors, with a hash that fits."""
    tensors = load(sound()[kind])
    document = {name: value for name, value in document.items() if name != "sha256"}
    document["sha256"] = sha256(document, tensors)
    return save(tensors, {"gemkit": json.dumps(document)})


@cache
def document_of(kind: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(sound()[kind])
        with safe_open(Path(folder, "file"), framework="pt") as file:
            document: dict[str, Any] = json.loads(file.metadata()["gemkit"])
    return document


@bounded
@given(data=st.data())
def test_a_forged_ticket_is_read_or_refused(data):
    document = data.draw(changed(document_of("ticket")))
    in_file(resealed("ticket", document), *READERS["ticket"])


@bounded
@given(data=st.data())
def test_a_search_resumes_from_a_forged_checkpoint_or_refuses_it(data):
    document = dict(document_of("checkpoint"))
    document["tree"] = data.draw(changed(document["tree"]))
    with TemporaryDirectory() as folder:
        Path(folder, "00000001.safetensors").write_bytes(resealed("checkpoint", document))
        accepts(lambda: find("learned", Recorder(), Mortal(Path(folder), minutes=99)))


def test_a_reader_that_trusts_its_file_would_be_noticed():
    with pytest.raises(KeyError):
        in_file(b"{}", "checks.json", lambda file: json.loads(file.read_bytes())["trials"])


def test_the_sound_files_are_read(monkeypatch):
    """Nothing is refused, not even where a reader accepts that."""
    monkeypatch.setattr(f"{__name__}.accepts", lambda read: read())
    for kind, (name, read) in READERS.items():
        with TemporaryDirectory() as folder:
            for other in ("config.toml", "result.json", "metrics.jsonl", name):
                Path(folder, other).write_bytes(sound()[kind if other == name else other])
            read(Path(folder, name))
