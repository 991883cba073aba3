"""Every file that gemkit reads may be hostile: it is read, or refused in one message of gemkit's.

GEMKIT_FUZZ=1000 tries so many inputs on every reader instead of a few.
"""

import copy
import io
import json
import os
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
from data_files import cifar_batch, idx, matlab, matrix, random_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept import REGISTRY, Killed, Mortal, Recorder, find
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load, save
from studies import TINY as STUDY
from studies import Here, cells_of

from gemkit.cli import main
from gemkit.cli.configure import read_toml
from gemkit.cli.run import next_command
from gemkit.core.errors import GemkitError
from gemkit.core.tensor_file import sha256
from gemkit.data.binary import file_errors, read_idx
from gemkit.data.decode import decode
from gemkit.data.matlab import read_matrices
from gemkit.data.pickles import read_pickled_dict, uint8_array
from gemkit.report.groups import group
from gemkit.report.records import records_from
from gemkit.report.results import result_text
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.config import RunSettings
from gemkit.runs.directory import RunDir
from gemkit.runs.listing import runs_data, runs_text
from gemkit.runs.resolved import resolve_recorded
from gemkit.study.cell import Cell
from gemkit.study.stage_store import StageStore
from gemkit.study.store import Ledger
from gemkit.study.study import load as study_records
from gemkit.tickets.ticket import Ticket
from gemkit.training import checkpoint

CASES = int(os.environ.get("GEMKIT_FUZZ", "12"))
bounded = settings(
    max_examples=CASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

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
        image = io.BytesIO()
        Image.new("RGB", (9, 7), (1, 2, 3)).save(image, "png")
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
            "pickle": cifar_batch(random_bytes(2, 12), [0, 1]),
            "idx": idx(random_bytes(2, 3, 4)),
            "matlab": matlab(matrix("X", random_bytes(2, 3)), matrix("y", random_bytes(2, 1))),
            "image": image.getvalue(),
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
            "records": json.dumps(study_records(folder).results()[0]).encode() + b"\n",
        }


# --- hostile ones --------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["../../etc/passwd", "name", "os:system", "\x00", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)


@st.composite
def spoiled(draw: st.DrawFn, whole: bytes) -> bytes:
    """Cut, flip, insert, repeat, or make something else altogether."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["cut", "flip", "insert", "repeat", "other"])):
            case "cut":
                del content[at : at + draw(st.integers(1, 1 + len(content)))]
            case "flip" if at < len(content):
                content[at] = draw(st.integers(0, 255))
            case "insert":
                content[at:at] = draw(st.binary(max_size=20))
            case "repeat":
                content[at:at] = content[at : at + 40] * draw(st.integers(1, 50))
            case "other":
                content = bytearray(draw(st.binary(max_size=60)))
    return bytes(content)


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """Put something else into a few places of nested data, or take them away."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        owner: Any = tree
        while True:
            keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = owner[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
                owner = inner
                continue
            if draw(st.booleans()):
                owner[key] = draw(JSON)
            else:
                del owner[key]
            break
    return tree


def without_none(data: Any) -> Any:
    """TOML has no null, and its integers have an end."""
    if isinstance(data, dict):
        return {name: without_none(value) for name, value in data.items() if value is not None}
    if isinstance(data, list):
        return [without_none(value) for value in data if value is not None]
    return data


def accepts(read: Callable[[], object]) -> None:
    """Read; only gemkit's own errors may come of it, in words that are not endless."""
    said = "nothing"
    try:
        read()
    except GemkitError as error:
        said = str(error)
    assert 0 < len(said) < 20_000


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
    resolve_recorded(REGISTRY, RunDir(file.parent).config(), None)


def list_runs(file: Path) -> None:
    json.dumps(listed := runs_data(file.parent))
    runs_text(listed, file.parent)


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
    made = CheckFile(setting(), {}, (), Path())
    book = made.resumed(file.parent, force=False)
    book.with_checks({}, REGISTRY).write(0.01)


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
        }.items():
            whole.write_bytes(file.read_bytes() if name == place else sound()[name])
        StageStore(home).check_same(cell.stages[cell.info.search])
        found = study_records(home)
        json.dumps(found.status().to_data(), allow_nan=False)
        json.dumps(found.results(), allow_nan=False)
        group(records_from(found.results()))

    return read


def read_records(file: Path) -> None:
    group(records_from(Ledger(file, ()).rows()))


@cache
def setting() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(sound()["checks.json"])["setting"]
    return known


def read_data(read: Callable[[Path], object]) -> Callable[[Path], None]:
    def named(file: Path) -> None:
        with file_errors(file):
            read(file)

    return named


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
    "pickle": (
        "data_batch_1",
        read_data(lambda file: uint8_array(read_pickled_dict(file.read_bytes()).get("data"))),
    ),
    "idx": ("images", read_data(lambda file: read_idx(file, 3))),
    "matlab": ("train.mat", read_data(lambda file: read_matrices(file.read_bytes(), ("X", "y")))),
    "image": ("image.png", lambda file: decode(str(file), size=8)),
    "study.json": ("any.json", read_study("study.json")),
    "stage.json": ("any.json", read_study("stage.json")),
    "stage result": ("any.json", read_study("stage result")),
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
        *("study.json", "stage.json", "stage result", "records"),
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


def test_the_sound_files_are_read():
    for kind, (name, read) in READERS.items():
        with TemporaryDirectory() as folder:
            for other in ("config.toml", "result.json", "metrics.jsonl", name):
                Path(folder, other).write_bytes(sound()[kind if other == name else other])
            read(Path(folder, name))
