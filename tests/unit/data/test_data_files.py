"""CIFAR, MNIST, Fashion-MNIST and SVHN: files in their real formats, valid and damaged."""

import gzip
import io
import pickle
import struct
import sys
import tarfile
import tracemalloc
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from data_files import (
    CIFAR10_FILES,
    array,
    cifar_batch,
    element,
    idx,
    integers,
    matlab,
    matrix,
    pickled,
    random_bytes,
    string,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_svhn,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemkit.core.errors import DataError
from gemkit.data import pickles
from gemkit.data.binary import read_bytes, read_idx
from gemkit.data.cifar import Cifar10, Cifar100
from gemkit.data.matlab import read_matrices
from gemkit.data.mnist import FashionMnist, Mnist
from gemkit.data.pickles import read_pickled_dict, uint8_array
from gemkit.data.svhn import Svhn

few = settings(deadline=None, max_examples=150)


def everything(data):
    """Raw images and labels of all splits, as sorted rows."""
    sources = (data.train, data.validation, data.test)
    return sorted(
        (int(label), image.numpy().tobytes())
        for source in sources
        for image, label in zip(source.images, source.labels, strict=True)
    )


def rows_of(images, labels):
    return sorted((int(k), image.tobytes()) for image, k in zip(images, labels, strict=True))


# --- valid files ---------------------------------------------------------------------------------


def test_cifar10_has_every_image_once_and_holds_out_a_tenth_for_validation(tmp_path):
    written = write_cifar10(tmp_path)
    data = Cifar10().load(tmp_path)
    assert (data.name, data.classes, data.shape) == ("cifar10", 10, (3, 32, 32))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [90, 10, 20]
    test_rows, test_labels = written["test_batch"]
    assert torch.equal(data.test.images, torch.from_numpy(test_rows).view(-1, 3, 32, 32))
    assert data.test.labels.tolist() == test_labels
    rows = np.concatenate([rows for rows, _ in written.values()])
    labels = [label for _, labels in written.values() for label in labels]
    assert everything(data) == rows_of(rows, labels)
    assert sorted(data.validation.labels.tolist()) == list(range(10))
    assert (data.train.pad, data.train.flip) == (4, True)


def test_a_pickle_written_by_python_3_reads_the_same(tmp_path):
    written = write_cifar10(tmp_path)
    before = everything(Cifar10().load(tmp_path))
    for file, (rows, labels) in written.items():
        content = pickle.dumps({b"data": rows, b"labels": labels}, protocol=2)
        (tmp_path / "cifar-10-batches-py" / file).write_bytes(content)
    assert everything(Cifar10().load(tmp_path)) == before


def test_cifar100_has_its_fine_labels(tmp_path):
    written = write_cifar100(tmp_path)
    data = Cifar100().load(tmp_path)
    assert (data.classes, len(data.train), len(data.validation)) == (100, 180, 20)
    assert data.test.labels.tolist() == written["test"][1]
    assert data.test.images.flatten(1).numpy().tobytes() == written["test"][0].tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("part", "home"),
    [(Mnist, "MNIST/raw"), (FashionMnist, "FashionMNIST/raw"), (FashionMnist, "alone")],
)
def test_mnist_is_read_gzipped_or_not_from_torchvisions_folder_or_the_data_folder(
    part, home, packed, tmp_path
):
    written = write_idx(tmp_path / home, packed)
    data = part().load(tmp_path / home if home == "alone" else tmp_path)
    assert (data.classes, data.shape) == (10, (1, 28, 28))
    assert [len(source) for source in (data.train, data.validation, data.test)] == [36, 4, 20]
    assert torch.equal(data.test.images[:, 0], torch.from_numpy(written[1][0]))
    images, labels = (np.concatenate(both) for both in zip(*written, strict=True))
    assert everything(data) == rows_of(images, labels)
    assert (data.train.pad, data.train.flip) == (2, part is FashionMnist)


@pytest.mark.parametrize(
    "how", [{}, {"packed": False}, {"order": ">"}, {"order": ">", "packed": False}]
)
def test_svhn_images_are_upright_and_label_10_becomes_0(how, tmp_path):
    written = write_svhn(tmp_path, **how)
    data = Svhn().load(tmp_path)
    assert (data.classes, data.shape, len(data.train)) == (10, (3, 32, 32), 36)
    pictures, labels = written[1]
    assert torch.equal(data.test.images, torch.from_numpy(pictures).permute(3, 2, 0, 1))
    assert data.test.labels.tolist() == [int(label) % 10 for label in labels.ravel()]
    assert (data.train.pad, data.train.flip) == (2, False)


# --- what to train on ----------------------------------------------------------------------------


def rows_in(source):
    return {image.numpy().tobytes() for image in source.images}


def check_full_trains_on_validation_but_never_on_test(data):
    assert len(data.train) == 100
    assert rows_in(data.validation) <= rows_in(data.train)
    assert not rows_in(data.test) & rows_in(data.train)


def test_full_trains_on_validation_but_never_on_test(tmp_path):
    write_cifar10(tmp_path)
    tuning, final = Cifar10().load(tmp_path), Cifar10(train_on="full").load(tmp_path)
    check_full_trains_on_validation_but_never_on_test(final)
    assert rows_in(tuning.validation) == rows_in(final.validation)
    assert not rows_in(tuning.validation) & rows_in(tuning.train)
    with pytest.raises(AssertionError):
        check_full_trains_on_validation_but_never_on_test(tuning)


def test_limit_bounds_each_split_and_is_stratified(tmp_path):
    write_cifar10(tmp_path)
    full, limited = Cifar10().load(tmp_path), Cifar10(limit=20).load(tmp_path)
    splits = (limited.train, limited.validation, limited.test)
    assert [len(split) for split in splits] == [20, 10, 20]
    assert limited.train.labels.bincount().tolist() == [2] * 10
    assert rows_in(limited.train) < rows_in(full.train)


def test_images_are_normalised_by_the_training_images(tmp_path):
    write_cifar10(tmp_path)
    data = Cifar10().load(tmp_path)
    images, _ = next(data.train.batches(100))
    assert images.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-4)
    assert images.std((0, 2, 3)).tolist() == pytest.approx([1] * 3, abs=1e-3)


# --- hostile pickles -----------------------------------------------------------------------------


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def attacks(marker):
    """Pickles that would create a file if anything in them were executed."""
    import os

    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    inner = {"data": Attack(os.system, touch)}
    return {
        "os.system": pickle.dumps(Attack(os.system, touch), 2),
        "eval": pickle.dumps(Attack(eval, code), 2),
        "exec inside": pickle.dumps({"data": Attack(exec, code), "labels": [0]}, 2),
        "protocol 4": pickle.dumps(inner, 4),
        "newest protocol": pickle.dumps(inner, 5),
        "oldest protocol": pickle.dumps(inner, 0),
        "instance": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "object": b"(cos\nsystem\nS'" + touch.encode() + b"'\no.",
        "numpy's runstring": b"cnumpy.testing._private.utils\nrunstring\n("
        + string(code.encode()) + b"}tR.",
        "attribute by encode": b"c_codecs\nencode.__globals__\n(tR.",
        "build": b"\x80\x02cnumpy\nndarray\n}U\x0b__reduce__\x94ub.",
        "extension": b"\x82\x01.",
        "persistent": b"Pname\n.",
    }  # fmt: skip


@pytest.mark.parametrize("attack", attacks(Path("x")))
def test_a_hostile_pickle_is_refused_and_runs_nothing(attack, tmp_path):
    write_cifar10(tmp_path)
    marker = tmp_path / "marker"
    file = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(attacks(marker)[attack])
    with pytest.raises(DataError, match="data_batch_3 "):
        Cifar10().load(tmp_path)
    assert not marker.exists()


def test_the_attacks_are_real(tmp_path):
    marker = tmp_path / "marker"
    pickle.loads(attacks(marker)["os.system"])
    assert marker.exists()


def test_the_error_names_what_a_hostile_pickle_asks_for():
    with pytest.raises(DataError, match="asks for 'posix system', which gemkit does not run"):
        read_pickled_dict(attacks("x")["os.system"])


# --- damaged files -------------------------------------------------------------------------------

ROWS = random_bytes(3, 3072)
BATCHES = {
    "empty": (b"", "damaged"),
    "truncated": (cifar_batch(ROWS, [1, 2, 3])[:5000], "damaged"),
    "not a dictionary": (b"\x80\x02]q\x01.", "no dictionary"),
    "no labels": (pickled({"data": array(ROWS)}), "lacks data or labels"),
    "too few labels": (cifar_batch(ROWS, [1, 2]), "2 labels for 3 images"),
    "label of no class": (cifar_batch(ROWS, [1, 2, 10]), "labels from 1 to 10"),
    "no images": (cifar_batch(ROWS[:0], []), "0 labels for 0 images"),
    "wrong width": (cifar_batch(ROWS[:, :3000], [1, 2, 3]), r"shape \[3, 3000\]"),
    "one dimension": (pickled({"data": array(ROWS[0]), "labels": integers([1])}), r"\[3072\]"),
    "text for data": (pickled({"data": string(b"x"), "labels": integers([1])}), "something else"),
    "text for labels": (pickled({"data": array(ROWS), "labels": string(b"123")}), "not a list of"),
    "shape too large": (
        cifar_batch(ROWS, [1, 2, 3]).replace(b"M\x03\x00M\x00\x0c", b"M\xff\xffM\x00\x0c"),
        "does not match its shape",
    ),
    "floats": (cifar_batch(ROWS, [1, 2, 3]).replace(b"U\x02u1", b"U\x02f4"), "of type 'f4'"),
}  # fmt: skip


@pytest.mark.parametrize("damage", BATCHES)
def test_a_damaged_batch_is_named_with_the_reason(damage, tmp_path):
    write_cifar10(tmp_path)
    content, reason = BATCHES[damage]
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=f"(?s)data_batch_2 .*{reason}.*get it again"):
        Cifar10().load(tmp_path)


def array_of_shape(shape):
    """An array of 3,072 bytes that claims a shape, already pickled."""
    return array(ROWS[0]).replace(b"(M\x00\x0ct", shape)


SIDE = b"J\xff\xff\xff\x7f"
SHAPES = {
    "thousands of dimensions": b"(" + SIDE * 5000 + b"t",
    "five dimensions": b"(M\x00\x0c" + b"K\x01" * 4 + b"t",
    "a tuple in tuples": b")" + b"\x85" * 5000,
    "a tuple of tuples": b"(M\x00\x0c)\x85t",
    "a long string": b"(T" + struct.pack("<i", 5000) + b"x" * 5000 + b"t",
    "a list": b"](M\x00\x0ce",
    "a boolean": b"(M\x00\x0c\x88t",
    "a list in itself": b"]q\x50h\x50a",
    "empty with huge dimensions": b"(K\x00" + SIDE * 3 + b"t",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_checked_before_it_is_used_or_printed(shape, monkeypatch):
    content = pickled({"data": array_of_shape(SHAPES[shape])})
    recorded = read_pickled_dict(content)["data"]
    monkeypatch.setattr(pickles.math, "prod", lambda sides: pytest.fail("they were multiplied"))
    with pytest.raises(DataError, match="something else where an array should be") as caught:
        uint8_array(recorded)
    assert len(str(caught.value)) < 200


def test_escape_sequences_in_a_dtype_are_escaped_in_the_error():
    content = pickled({"data": array(ROWS).replace(b"U\x02u1", b"U\x02\x1b[")})
    with pytest.raises(DataError, match=r"of type '\\x1b\['"):
        uint8_array(read_pickled_dict(content)["data"])


LABELS = np.arange(40, dtype=np.uint8) % 10
IDX = {
    "empty": ("images-idx3", b"", "not an idx file"),
    "other dimensions": ("images-idx3", idx(random_bytes(40, 28)), "not an idx file"),
    "floats": ("images-idx3", b"\0\0\x0d\x03" + bytes(12), "not an idx file"),
    "truncated": ("images-idx3", idx(random_bytes(40, 28, 28))[:-1], "bytes; 40×28×28 values need"),
    "trailing": ("images-idx3", idx(random_bytes(40, 28, 28)) + b"\0", "bytes; 40×28×28 values"),
    "enormous": ("images-idx3", b"\0\0\x08\x03" + b"\xff" * 12, "values need"),
    "no images": ("images-idx3", idx(random_bytes(0, 28, 28)), "no images"),
    "too few labels": ("labels-idx1", idx(LABELS[:39]), "39 labels for 40 images"),
    "label of no class": ("labels-idx1", idx(LABELS + 1), "labels from 1 to 10"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", IDX)
def test_a_damaged_idx_file_is_named_with_the_reason(damage, packed, tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", packed)
    what, content, reason = IDX[damage]
    file = tmp_path / "MNIST" / "raw" / f"train-{what}-ubyte{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=f"train-{what}-ubyte.*{reason}"):
        Mnist().load(tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: b"x" + raw, lambda raw: b""])
def test_a_damaged_gzip_file_is_named(damage, tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", packed=True)
    file = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz"):
        Mnist().load(tmp_path)


def test_test_images_of_another_size_are_refused(tmp_path):
    home = tmp_path / "MNIST" / "raw"
    write_idx(home)
    (home / "t10k-images-idx3-ubyte").write_bytes(idx(random_bytes(20, 14, 14)))
    with pytest.raises(DataError, match="do not belong together"):
        Mnist().load(tmp_path)


PICTURES = random_bytes(32, 32, 3, 4)
DIGITS = np.array([[1], [2], [3], [10]], dtype=np.uint8)
X, Y = matrix("X", PICTURES), matrix("y", DIGITS)
MATS = {
    "empty": (b"", "not a MATLAB file"),
    "HDF5": (matlab().replace(b"MATLAB 5.0", b"MATLAB 7.3"), "not a MATLAB file"),
    "truncated": (matlab(X, Y)[:2000], "cut off"),
    "no labels": (matlab(X), "lacks X or y"),
    "label of no class": (matlab(X, matrix("y", DIGITS * 0)), "not 1 to 10"),
    "too few labels": (matlab(X, matrix("y", DIGITS[:3])), "3 labels for 4 images"),
    "wrong shape": (matlab(matrix("X", PICTURES[:16]), Y), r"\(16, 32, 3, 4\), not uint8"),
    "damaged zlib": (matlab(X[:50] + b"\xff" * 9 + X[59:], Y), "damaged|cut off"),
    "bomb": (
        matlab(struct.pack("<II", 15, 12) + __import__("zlib").compress(
            struct.pack("<II", 14, 2**32 - 1))[:12]), "more than the limit|damaged",
    ),
    "negative size": (
        matlab(matrix("X", PICTURES, packed=False).replace(
            struct.pack("<4i", 32, 32, 3, 4), struct.pack("<4i", -32, -32, 3, 4))),
        "does not match its shape",
    ),
    "text": (
        matlab(matrix("X", PICTURES, packed=False).replace(
            struct.pack("<II", 2, PICTURES.size), struct.pack("<II", 16, PICTURES.size))),
        "not an array of numbers",
    ),
    "30 axes": (matlab(matrix("X", PICTURES.reshape(-1, *[1] * 30)), Y), "damaged dimensions"),
    "empty with huge dimensions": (
        matlab(matrix("X", PICTURES[:0], packed=False).replace(
            struct.pack("<4i", 0, 32, 3, 4), struct.pack("<4i", 0, *[2**31 - 1] * 3))),
        "an empty array",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", MATS)
def test_a_damaged_matlab_file_is_named_with_the_reason(damage, tmp_path):
    write_svhn(tmp_path)
    content, reason = MATS[damage]
    (tmp_path / "train_32x32.mat").write_bytes(content)
    with pytest.raises(DataError, match=f"train_32x32.mat .*({reason})"):
        Svhn().load(tmp_path)


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    write_svhn(tmp_path)
    (tmp_path / "test_32x32.mat").unlink()
    (tmp_path / "test_32x32.mat").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*test_32x32\.mat"):
        Svhn().load(tmp_path)


def test_a_file_is_not_read_beyond_its_limit(tmp_path):
    file = tmp_path / "zeros.gz"
    file.write_bytes(gzip.compress(bytes(10**6)))
    assert len(read_bytes(file, 10**6)) == 10**6
    with pytest.raises(DataError, match="larger than the limit of 999,999 bytes"):
        read_bytes(file, 999_999)


# --- arbitrary bytes -----------------------------------------------------------------------------


def corrupted(valid):
    """Valid content with a few bytes changed, removed or inserted; or arbitrary bytes."""
    edits = st.lists(
        st.tuples(st.integers(0, len(valid)), st.binary(max_size=9), st.integers(0, 9)), max_size=4
    )

    def edit(changes):
        content = valid
        for offset, new, removed in changes:
            content = content[:offset] + new + content[offset + removed :]
        return content

    return st.one_of(edits.map(edit), st.binary(max_size=200))


def peak_of(read):
    """Run a reader that may raise nothing but DataError; return its peak memory."""
    tracemalloc.start()
    try:
        read()
    except DataError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


SMALL = cifar_batch(random_bytes(1, 30), [1])


@few
@given(content=corrupted(SMALL))
@example(b"\x80\x02r\xff\xff\xff\x7f.")
@example(b"\x80\x02Nr\xff\xff\xff\x7f.")
@example(b"\x80\x02T\xff\xff\xff\x7fabc.")
@example(b"\x80\x05\x8e" + b"\xff" * 7 + b"\x7f.")
def test_any_bytes_are_a_dictionary_or_a_clear_error(content):
    def read():
        found = read_pickled_dict(content)
        uint8_array(found.get("data"))

    assert peak_of(read) < 2**20


@few
@given(content=corrupted(idx(random_bytes(2, 3, 4))), dimensions=st.integers(1, 3))
@example(content=b"\0\0\x08\x03" + b"\xff" * 12, dimensions=3)
def test_any_bytes_are_an_idx_array_or_a_clear_error(content, dimensions, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "any-idx"
    file.write_bytes(content)
    assert peak_of(lambda: read_idx(file, dimensions)) < 2**20


SMALL_X = random_bytes(2, 3, 4)


@few
@given(
    content=st.one_of(
        corrupted(matlab(matrix("X", SMALL_X))),
        corrupted(matlab(matrix("X", SMALL_X, packed=False))),
        corrupted(matrix("X", SMALL_X, packed=False)).map(matlab),
    )
)
@example(matlab(element(14, b"")))
@example(matlab(element(15, b"")))
def test_any_bytes_are_matlab_arrays_or_a_clear_error(content):
    assert peak_of(lambda: read_matrices(content, {"X"})) < 2**20


def test_only_requested_arrays_are_decompressed():
    others = [matrix(f"other{n}", np.zeros((2**21, 1), np.uint8)) for n in range(4)]
    content = matlab(*others, X, Y, *others)
    assert peak_of(lambda: read_matrices(content, {"X", "y"})) < 2**20
    assert read_matrices(content, {"X", "y"}).keys() == {"X", "y"}


def test_compressed_arrays_share_one_limit(monkeypatch):
    compressed = matrix("X", np.zeros((600, 1), np.uint8))
    monkeypatch.setattr("gemkit.data.matlab.LARGEST_FILE", 1000)
    assert read_matrices(matlab(compressed), {"X"})["X"].size == 600
    with pytest.raises(DataError, match="more than the limit"):
        read_matrices(matlab(compressed, compressed), {"X"})


# --- missing files, and downloads ----------------------------------------------------------------


@pytest.mark.parametrize("part", [Cifar10, Cifar100, Mnist, FashionMnist, Svhn])
def test_a_missing_data_set_lists_its_files_and_how_to_get_them(part, tmp_path):
    with pytest.raises(DataError) as caught:
        part().load(tmp_path)
    for file in part().files(tmp_path):
        assert str(file) in str(caught.value)
    assert "--download" in str(caught.value)
    assert "--data-dir" in str(caught.value)


def test_only_what_is_missing_is_listed(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4") as caught:
        Cifar10().load(tmp_path)
    assert "data_batch_3" not in str(caught.value)


def test_the_default_folder_is_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=str(tmp_path / "data" / "train_32x32.mat")):
        Svhn().load(None)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def web(tmp_path):
    """The URL of a server for the files of a folder `web`."""
    (tmp_path / "web").mkdir()
    handler = partial(Quiet, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_cifar_is_downloaded_and_unpacked_but_never_unpickled_by_torchvision(
    tmp_path, monkeypatch, web
):
    from torchvision import datasets

    write_cifar10(tmp_path / "there")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(tmp_path / "there" / "cifar-10-batches-py", "cifar-10-batches-py")
    (tmp_path / "web" / "cifar.tar.gz").write_bytes(packed.getvalue())
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{web}/cifar.tar.gz")
    monkeypatch.setattr(
        datasets.CIFAR10, "tgz_md5", md5(packed.getvalue(), usedforsecurity=False).hexdigest()
    )
    monkeypatch.setattr(pickle, "load", None)
    Cifar10().download(tmp_path / "here" / "new")
    assert len(Cifar10().load(tmp_path / "here" / "new").train) == 90
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{web}/nothing")
    Cifar10().download(tmp_path / "here" / "new")  # all there: no download
    with pytest.raises(DataError, match=r"'cifar10' could not be downloaded .*by hand"):
        Cifar10().download(tmp_path / "elsewhere")


def test_svhn_is_downloaded_file_by_file(tmp_path, monkeypatch, web):
    from torchvision import datasets

    write_svhn(tmp_path / "web")
    addresses = {}
    for split in ("train", "test"):
        file = tmp_path / "web" / f"{split}_32x32.mat"
        digest = md5(file.read_bytes(), usedforsecurity=False).hexdigest()
        addresses[split] = [f"{web}/{file.name}", file.name, digest]
    monkeypatch.setattr(datasets.SVHN, "split_list", addresses)
    Svhn().download(tmp_path / "here")
    assert len(Svhn().load(tmp_path / "here").test) == 20


@pytest.mark.parametrize(("part", "home"), [(Mnist, "MNIST"), (FashionMnist, "FashionMNIST")])
def test_mnist_is_downloaded_by_torchvisions_class(part, home, tmp_path, monkeypatch):
    from torchvision import datasets

    def fetched(root, download):
        assert download
        write_idx(Path(root) / home / "raw")

    monkeypatch.setattr(datasets, home, fetched)
    part().download(tmp_path)
    assert len(part().load(tmp_path).test) == 20


def test_cifar_files_are_those_of_torchvision():
    from torchvision import datasets

    for part, known in ((Cifar10(), datasets.CIFAR10), (Cifar100(), datasets.CIFAR100)):
        names = [file for file, _ in (*known.train_list, *known.test_list)]
        assert part.files(Path()) == [Path(known.base_folder, name) for name in names]
    assert len(CIFAR10_FILES) == 6


def test_registering_data_sets_imports_neither_torchvision_nor_pillow():
    import subprocess

    code = (
        "import sys; from gemkit.plugins.loader import load_plugins; load_plugins(only=());"
        "print(sorted({'torchvision', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]
