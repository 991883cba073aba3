"""The store of a study: untrusted files, full disks, merges."""

import json
import os
import shutil
from pathlib import Path

import pytest
from studies import TINY, cells_of, driven, pretended

import gemkit.core.atomic_io as atomic_io
from gemkit import Study
from gemkit.core.errors import GemkitError, OptionError, StorageError
from gemkit.data.fingerprint import Fingerprint, SplitFingerprint
from gemkit.study import load
from gemkit.study.cell import CellInfo
from gemkit.study.merging import merge
from gemkit.study.stage_store import StageStore

CELLS = cells_of(TINY, checks=["shuffle"], seeds=2)
NAME = CELLS[0].info.search


def test_checkpoints_of_a_finished_stage_are_removed(tmp_path):
    store = StageStore(tmp_path)
    for name in ("killed", "at work", "clean"):
        (store.folder(name).path / ("x" if name == "clean" else "checkpoints")).mkdir(parents=True)
    with store.folder("at work").locked():
        store.tidy(["killed", "at work", "clean"])
    left = [path.parent.name for path in tmp_path.glob("stages/*/checkpoints")]
    assert left == ["at work"], "its process is about to remove them"


@pytest.fixture
def study(tmp_path):
    """A study whose stages never ran."""
    folder = tmp_path / "mine"
    driven(CELLS, folder)
    StageStore(folder).write_cells("mine", [cell.info for cell in CELLS])
    return folder


def test_a_study_is_read_back_from_its_folder(study):
    records = load(study).results()
    assert [record["seed"] for record in records] == [0, 1]
    assert [record["state"] for record in records] == ["done", "done"]
    assert load(study).status().to_data()["stages"] == {
        "total": 6,
        "done": 6,
        "running": 0,
        "failed": 0,
    }


BAD_RESULTS = {
    "nothing": b"",
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "another stage": json.dumps(
        pretended("search-0000000000000000").model_dump(mode="json", exclude_none=True)
    ).encode(),
    "infinite": b'{"stage":"x","metric":"a","higher_is_better":true,"seconds":1e999}',
    "negative": b'{"stage":"x","metric":"a","higher_is_better":true,"seconds":-1,"cpu_seconds":1}',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("content", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_bad_result_is_one_sentence_and_leaves_the_others(content, study):
    (study / "stages" / NAME / "result.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"result.json .*remove it to measure again"):
        StageStore(study).result(NAME)
    assert [record["state"] for record in load(study).results()] == ["failed", "done"]


@pytest.mark.parametrize("content", [*BAD_RESULTS.values(), b'{"format": 2}'])
def test_a_bad_study_is_one_sentence(content, study):
    (study / "study.json").write_bytes(content)
    words = r"cannot be read as a study \(study.*\); remove it, and repeat the `gemkit study`"
    with pytest.raises(OptionError, match=words) as refused:
        load(study)
    assert "_Study" not in str(refused.value)


def test_a_study_whose_file_was_removed_is_repeated_with_what_is_finished(study):
    (study / "study.json").unlink()
    (study / "report").mkdir()  # of `gemkit report`
    _, _, executor = driven(CELLS, study)
    assert not executor.ran


def test_stages_outside_the_store_are_refused(study):
    data = json.loads((study / "study.json").read_text())
    data["cells"][0]["search"] = "search-../../../etc"
    (study / "study.json").write_text(json.dumps(data))
    with pytest.raises(OptionError, match="cannot be read as a study"):
        load(study)


@pytest.mark.parametrize("what", ["file", "folder", "stages"])
def test_links_are_not_followed(what, study, tmp_path):
    place = {"file": f"stages/{NAME}/result.json", "folder": f"stages/{NAME}", "stages": "stages"}
    there = study / place[what]
    there.rename(tmp_path / "elsewhere")
    there.symlink_to(tmp_path / "elsewhere")
    if what == "file":
        assert load(study).results()[0]["state"] == "failed"
        return
    stored = load(study)
    with pytest.raises(StorageError, match="is a link"):
        stored.results()


def test_a_pipe_is_refused_at_once(study):
    file = study / "stages" / NAME / "result.json"
    file.unlink()
    os.mkfifo(file)
    assert load(study).results()[0]["state"] == "failed"


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="exists and is no study; nothing was overwritten"):
        StageStore(tmp_path).make()
    with pytest.raises(OptionError, match=r"is no study: there is no study\.json"):
        load(tmp_path)


def test_a_full_disk_leaves_no_half_file_and_all_other_results(study, monkeypatch):
    before = {file: file.read_bytes() for file in study.rglob("*") if file.is_file()}
    store = StageStore(study)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_io.os, "fsync", full)
    writes = [
        lambda: store.write_result(pretended(NAME, before=0.5)),
        lambda: store.write_failure(NAME, "why"),
        lambda: store.begin(NAME, {}),
        lambda: store.write_cells("mine", []),
    ]
    for write in writes:
        with pytest.raises(OSError, match="No space left"):
            write()
    monkeypatch.undo()
    assert {file: file.read_bytes() for file in study.rglob("*") if file.is_file()} == before


# --- merging ---


def test_stages_of_two_machines_are_merged(tmp_path):
    for name, seed in (("one", 0), ("two", 1)):
        cells = [cell for cell in CELLS if cell.info.seed == seed]
        driven(cells, tmp_path / name)
        StageStore(tmp_path / name).write_cells(name, [cell.info for cell in cells])
    (tmp_path / "two" / "stages" / CELLS[1].info.search / "ticket.safetensors").write_bytes(b"x")
    found = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert (found["cells"], found["stages"]) == (2, 6)
    both = load(tmp_path / "both")
    assert [record["state"] for record in both.results()] == ["done", "done"]
    assert [record["study"] for record in both.results()] == ["one", "two"]
    merge([tmp_path / "both"], tmp_path / "all")
    assert [one["study"] for one in load(tmp_path / "all").results()] == ["one", "two"]
    copied = tmp_path / "both" / "stages" / CELLS[1].info.search
    assert (copied / "ticket.safetensors").read_bytes() == b"x"
    _, _, executor = driven(CELLS, tmp_path / "both")
    assert not executor.ran, "nothing is measured again"


def test_copying_folders_is_merging(tmp_path, study):
    shutil.copytree(study / "stages", tmp_path / "copy" / "stages")
    _, _, executor = driven(CELLS, tmp_path / "copy")
    assert not executor.ran


def test_studies_that_disagree_are_not_merged(tmp_path, study):
    shutil.copytree(study, tmp_path / "other")
    StageStore(tmp_path / "other").write_result(pretended(NAME, before=0.5, seconds=9.0))
    with pytest.raises(
        OptionError, match=rf"disagree on {NAME}(.|\n)*before is 0.25 there and 0.5"
    ):
        merge([study, tmp_path / "other"], tmp_path / "both")


def test_studies_of_other_data_are_not_merged(tmp_path, study):
    """Even where they have no stage in common."""
    split = {"count": 5, "images": "a", "labels": "b"}
    data = Fingerprint(names="", train=split, validation=split, test=split)
    StageStore(study).write_result(pretended(NAME, data=data))
    theirs = data.model_copy(update={"test": SplitFingerprint(count=6, images="a", labels="b")})
    more = cells_of({**TINY, "seed": 2})
    driven(more, tmp_path / "theirs")
    other = StageStore(tmp_path / "theirs")
    other.write_cells("theirs", [cell.info for cell in more])
    other.write_result(pretended(more[0].info.search, data=theirs))
    words = rf"{study} and {other.path} were measured on .* 'fake', .* 6 test images instead of 5"
    with pytest.raises(OptionError, match=words):
        merge([study, other.path], tmp_path / "both")
    assert not StageStore(tmp_path / "both").present(), "nothing was copied"
    with pytest.raises(OptionError, match=rf"and {study} were measured on"):
        merge([other.path], study)
    other.write_result(pretended(more[0].info.search, data=data))
    assert merge([study, other.path], tmp_path / "both")["cells"] == 3


def test_times_and_machines_may_differ(tmp_path, study):
    shutil.copytree(study, tmp_path / "other")
    StageStore(tmp_path / "other").write_result(pretended(NAME, seconds=9.0, device="cuda:0"))
    assert merge([study, tmp_path / "other"], tmp_path / "both")["stages"] == 6


def test_merging_into_one_of_them_adds_its_cells(tmp_path, study):
    more = cells_of(TINY, checks=["reinit"], seeds=3)
    driven(more, tmp_path / "more")
    StageStore(tmp_path / "more").write_cells("more", [cell.info for cell in more])
    merge([study, tmp_path / "more"], study)
    records = load(study).results()
    assert [sorted(record["controls"]) for record in records] == [
        ["reinit", "shuffle"],
        ["reinit", "shuffle"],
        ["reinit"],
    ]


# --- Study ---


def test_a_study_takes_configurations_or_a_base(tmp_path):
    from gemkit import Plan, RunConfig, Runtime

    config = RunConfig(pruner="snip", search=Plan(epochs=4), runtime=Runtime(device="cpu"))
    listed = Study([config.replace(seed=seed) for seed in (0, 1)], tmp_path)
    grown = Study(None, tmp_path, base=config, seeds=2)
    assert [cell.info.stages() for cell in listed.cells] == [
        cell.info.stages() for cell in grown.cells
    ]
    with pytest.raises(OptionError, match="give one of them"):
        Study([config], tmp_path, base=config)


def test_functions_cannot_be_sent_to_processes(tmp_path):
    with pytest.raises(OptionError, match="is a function, and the runs of a study"):
        Study([{"objective": print}], tmp_path)


def test_a_cell_that_does_not_fit_is_named_before_anything_runs(tmp_path):
    with pytest.raises(
        GemkitError, match=r"cell seed 0, density 0.05, pruner nonsense: unknown pruner"
    ):
        Study(None, tmp_path / "new", grid={"density": [0.05], "pruner": ["nonsense"]}, seeds=1)
    assert not (tmp_path / "new").exists()


def test_cells_are_plain_data(study):
    data = json.loads((study / "study.json").read_text())
    assert CellInfo.model_validate_json(json.dumps(data["cells"][0])) == CELLS[0].info
    assert str(Path.cwd()) not in json.dumps(data)
