"""Files that users bring may be hostile too: data, weights, studies, tickets of small networks."""

import io
import json
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tomli_w
import torch
from compacting import ticket_of
from data_files import cifar_batch, idx, matlab, matrix, random_bytes
from hypothesis import given
from hypothesis import strategies as st
from kept import REGISTRY
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load, save
from spoiling import accepts, bounded, changed, spoiled, without_none
from torch import nn

from gemkit.builtin.csv_log import CsvLog
from gemkit.compaction import compact, load_compact, save_compact
from gemkit.core.events import EpochEnded
from gemkit.core.tensor_file import sha256
from gemkit.data.binary import file_errors, read_idx
from gemkit.data.cache import load_cached, save_cached
from gemkit.data.decode import decode
from gemkit.data.folders import _read_annotations
from gemkit.data.matlab import read_matrices
from gemkit.data.pickles import read_pickled_dict, uint8_array
from gemkit.models.weights import load_weights
from gemkit.study.cell import make_cells
from gemkit.study.grid import read_grid

STUDY = """
seeds = 2
checks = ["shuffle"]
[base]
model = "conv4"
search.epochs = 4
[grid]
pruner = ["gem_miner", "snip"]
[[zip]]
density = [0.5, 0.2]
"search.batch_size" = [16, 32]
[[exclude]]
pruner = "snip"
density = 0.5
[variant.wide]
model.width = 8
"""


def network() -> nn.Module:
    """Make a network of two convolutions and a classifier."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(64, 10))


@cache
def sound() -> dict[str, bytes]:
    """Make one sound file of every kind."""
    image, pth = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (9, 7), (1, 2, 3)).save(image, "png")
    state = network().state_dict()
    torch.save({"state_dict": state}, pth)
    with TemporaryDirectory() as folder:
        save_cached(Path(folder, "cache"), torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "key")
        save_compact(compact(ticket_of(network(), 0.3), network()), Path(folder, "compact"))
        return {
            "pickle": cifar_batch(random_bytes(2, 12), [0, 1]),
            "idx": idx(random_bytes(2, 3, 4)),
            "matlab": matlab(matrix("X", random_bytes(2, 3)), matrix("y", random_bytes(2, 1))),
            "image": image.getvalue(),
            "annotations": b"val_0.JPEG\tfish\t0\t0\t9\t9\nval_1.JPEG\tbird\t1\t1\t9\t9\n",
            "cache": Path(folder, "cache").read_bytes(),
            "safetensors": save(state),
            "pth": pth.getvalue(),
            "study": STUDY.encode(),
            "epochs.csv": b"phase,epoch,loss,metric,value,density,strength,lr,seconds\n"
            b"search,1,2.3,accuracy,0.1,1.0,,0.1,1.5\nsearch,2,2.1,accuracy,0.2,0.5,,0.1,3.1\n",
            "compact": Path(folder, "compact").read_bytes(),
        }


def plan_study(file: Path) -> None:
    grid = read_grid(file)
    make_cells(REGISTRY, grid.points()[:20], grid.checks, data_dir=None, confirmed=())


def continue_csv(file: Path) -> None:
    CsvLog().listen(file.parent)(
        EpochEnded(
            phase="search",
            epoch=2,
            loss=1.0,
            value=0.5,
            density=0.5,
            lr=0.1,
            seconds=1.0,
            metric="accuracy",
            higher_is_better=True,
            strength=None,
        )
    )


def of_data(read: Callable[[Path], object]) -> Callable[[Path], None]:
    def named(file: Path) -> None:
        with file_errors(file):
            read(file)

    return named


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "pickle": (
        "data_batch_1",
        of_data(lambda file: uint8_array(read_pickled_dict(file.read_bytes()).get("data"))),
    ),
    "idx": ("images", of_data(lambda file: read_idx(file, 3))),
    "matlab": ("train.mat", of_data(lambda file: read_matrices(file.read_bytes(), ("X", "y")))),
    "image": ("image.png", lambda file: decode(str(file), size=8)),
    "annotations": ("a.txt", lambda file: list(_read_annotations(file, ["bird", "fish"]))),
    "cache": ("images.safetensors", lambda file: load_cached(file, "key", 2)),
    "safetensors": ("w.safetensors", lambda file: load_weights(network(), file)),
    "pth": ("w.pth", lambda file: load_weights(network(), file)),
    "study": ("study.toml", plan_study),
    "epochs.csv": ("epochs.csv", continue_csv),
    "compact": ("compact.safetensors", lambda file: load_compact(file, network())),
}


def in_file(content: bytes, kind: str) -> None:
    name, read = READERS[kind]
    with TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(content)
        accepts(lambda: read(file))


@pytest.mark.parametrize("kind", READERS)
@bounded
@given(data=st.data())
def test_spoiled_bytes_are_read_or_refused(kind, data):
    in_file(data.draw(spoiled(sound()[kind])), kind)


@bounded
@given(data=st.data())
def test_a_study_that_says_something_else_is_planned_or_refused(data):
    tree = without_none(data.draw(changed(tomllib.loads(STUDY))))
    in_file(tomli_w.dumps(tree).encode("utf-8", "replace"), "study")


@cache
def document_of_compact() -> dict[str, object]:
    with TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(sound()["compact"])
        with safe_open(Path(folder, "file"), framework="pt") as file:
            document: dict[str, object] = json.loads(file.metadata()["gemkit"])
    return document


@bounded
@given(data=st.data())
def test_a_forged_compact_network_is_loaded_or_refused(data):
    document = data.draw(changed(document_of_compact()))
    tensors = load(sound()["compact"])
    document = {name: value for name, value in document.items() if name != "sha256"}
    document["sha256"] = sha256(document, tensors)
    in_file(save(tensors, {"gemkit": json.dumps(document)}), "compact")


@pytest.mark.parametrize("kind", READERS)
def test_the_sound_files_are_read(kind, tmp_path):
    name, read = READERS[kind]
    (tmp_path / name).write_bytes(sound()[kind])
    if kind == "cache":
        assert read(tmp_path / name) is not None
    read(tmp_path / name)
