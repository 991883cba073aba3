"""Data sets from the command line: folders, downloads, and what to train on."""

import shutil

import pytest
from cli_runs import TINY, answer, commands_in
from data_files import write_cifar10, write_classes

from gemkit.cli.options import TRAIN_ON
from gemkit.core.tensors import budget
from gemkit.data.cifar import Cifar10
from gemkit.data.standard import SplitDataset

QUICK = (
    *("-o", "model.width=4", "--epochs", "3", "--batch-size", "16", "--density", "0.3"),
    *("--device", "cpu", "--on-collapse", "warn"),
)


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMKIT_DATA", raising=False)
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def pets(tmp_path):
    write_classes(tmp_path / "pets", {"cat": 20, "dog": 20})
    return tmp_path / "pets"


def test_a_folder_of_images_is_searched_and_its_ticket_finds_it_again(gemkit, pets):
    run = answer(
        gemkit("run", "--model", "conv4", "--dataset", f"imagefolder:{pets}", *QUICK, "--json")
    )
    assert run["dataset"]["name"] == "imagefolder"
    assert run["dataset"]["path"] == str(pets)
    assert run["run_dir"] == "runs/gem_miner-conv4-imagefolder_pets-d0.3-s0"
    measured = answer(gemkit("eval", run["finetuned"], "--device", "cpu", "--json"))
    assert measured["accuracy"] == run["accuracy_after"]
    assert measured["images"] == 8


def test_a_timm_network_on_a_folder_of_images(gemkit, pets):
    choice = ("--model", "timm:mobilenetv3_small_050", "--dataset", f"imagefolder:{pets}")
    quick = ("--pruner", "random", "--finetune-epochs", "1", *QUICK[2:])
    run = answer(gemkit("run", *choice, *quick, "-o", "dataset.size=32", "--json"))
    assert run["model"]["name"] == "timm"
    assert run["kept"] == budget(run["prunable"], 0.3)
    measured = answer(gemkit("eval", run["finetuned"], "--device", "cpu", "--json"))
    assert measured["accuracy"] == run["accuracy_after"]


def test_a_folder_that_moved_is_given_with_dataset(gemkit, pets, tmp_path):
    shutil.move(pets, tmp_path / "sub" / "pets")
    run = answer(
        gemkit("run", "--dataset", "imagefolder:pets", "--data-dir", "sub", *QUICK, "--json")
    )
    assert run["dataset"]["path"] == "pets"
    found = answer(gemkit("eval", run["finetuned"], "--data-dir", "sub", "--json"))
    shutil.move(tmp_path / "sub" / "pets", tmp_path / "moved")
    lost = gemkit("eval", run["finetuned"], "--data-dir", "sub")
    assert (lost.exit_code, "cannot list" in lost.stderr) == (2, True)
    elsewhere = gemkit("eval", run["finetuned"], "--dataset", "imagefolder:moved", "--json")
    assert answer(elsewhere)["accuracy"] == found["accuracy"]


def test_a_streamed_folder_gives_the_ticket_of_one_in_memory(gemkit, pets):
    runs = [
        answer(
            gemkit(
                *("run", "--dataset", f"imagefolder:{pets}", *QUICK, "--json", "--out", memory),
                *("-o", f"dataset.memory={memory}"),
            )
        )
        for memory in ("always", "never")
    ]
    held, streamed = ({**run["layers"][0], "after": run["accuracy_after"]} for run in runs)
    assert held == streamed


def test_a_long_path_does_not_make_a_long_name(gemkit, tmp_path):
    deep = tmp_path / ("x" * 120) / ("y" * 120)
    write_classes(deep, {"cat": 20, "dog": 20})
    result = gemkit("run", "--dataset", f"imagefolder:{deep}/", *QUICK, "--json")
    assert answer(result)["run_dir"] == f"runs/gem_miner-conv4-imagefolder_{'y' * 60}-d0.3-s0"


def test_a_folder_must_be_named(gemkit):
    result = gemkit("run", "--dataset", "imagefolder")
    assert result.exit_code == 2
    assert "dataset.path must be given" in result.stderr


def test_train_on_full_is_recorded_and_can_be_taken_back(gemkit, tmp_path):
    write_cifar10(tmp_path / "data")
    run = answer(gemkit("run", "--dataset", "cifar10", "--train-on", "full", *QUICK, "--json"))
    assert run["dataset"]["train_on"] == "full"
    counted = answer(gemkit("eval", run["ticket"], "--split", "train", "--json"))
    assert counted["images"] == 100
    counted = answer(
        gemkit("eval", run["ticket"], "--split", "train", "--train-on", "train", "--json")
    )
    assert counted["images"] == 90


def test_a_data_set_without_the_option_is_an_error(gemkit):
    result = gemkit("run", *TINY, "--train-on", "full")
    assert result.exit_code == 2
    assert "dataset.train_on does not exist" in result.stderr


def test_the_choices_are_those_of_the_field():
    annotation = SplitDataset.model_fields["train_on"].annotation
    assert annotation.__args__ == TRAIN_ON


def test_a_missing_data_set_is_one_message(gemkit, tmp_path):
    result = gemkit("run", "--dataset", "cifar10", "--data-dir", "where")
    assert result.exit_code == 2
    assert str(tmp_path / "where" / "cifar-10-batches-py" / "test_batch") in result.stderr
    assert "--download" in result.stderr
    assert "Traceback" not in result.stderr


def test_download_happens_when_asked_for_and_not_otherwise(gemkit, tmp_path, monkeypatch):
    def download(self, folder):
        write_cifar10(folder)

    monkeypatch.setattr(Cifar10, "download", download)
    words = ("run", "--dataset", "cifar10", "--data-dir", tmp_path / "new", *QUICK, "--json")
    assert gemkit(*words).exit_code == 2
    assert answer(gemkit(*words, "--download"))["dataset"]["name"] == "cifar10"


def test_a_data_set_that_cannot_be_downloaded_is_an_error(gemkit):
    result = gemkit("run", *TINY, "--download")
    assert result.exit_code == 2
    assert "'fake' cannot be downloaded; leave out --download" in result.stderr
