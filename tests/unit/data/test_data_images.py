"""Folders of image files: finding, decoding, streaming, caching, and errors."""

import os
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_files import (
    check_ranks_share_each_batch,
    random_bytes,
    write_caltech,
    write_classes,
    write_images,
    write_tiny_imagenet,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from gemkit.core.errors import DataError
from gemkit.data import cache, decode, images
from gemkit.data.decode import decode_batches, dimensions
from gemkit.data.file_source import FileSource
from gemkit.data.folders import Caltech101, ImageFolder, TinyImageNet
from gemkit.data.source import TensorSource

few = settings(deadline=None, max_examples=30)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keep the caches of tests out of the user's home."""
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))


def load(folder, **fields):
    return ImageFolder(path=str(folder), **fields).load(None)


def rows_in(source):
    return {image.numpy().tobytes() for image in source.images}


def sizes(data):
    return [len(source) for source in (data.train, data.validation, data.test)]


# --- splits and labels ---------------------------------------------------------------------------


def test_without_split_folders_the_split_is_60_20_20(tmp_path):
    pictures = write_classes(tmp_path / "pets", {"dog": 20, "cat": 10, "bird": 10})
    data = ImageFolder(path=str(tmp_path / "pets")).load(None)
    assert (sizes(data), data.classes, data.shape) == ([24, 8, 8], 3, (3, 8, 8))
    assert data.test.labels.tolist() == [0] * 2 + [1] * 2 + [2] * 4
    for label, name in enumerate(["bird", "cat", "dog"]):
        expected = {picture.numpy().tobytes() for picture in pictures[name]}
        found = [
            image.numpy().tobytes()
            for source in (data.train, data.validation, data.test)
            for image, own in zip(source.images, source.labels, strict=True)
            if own == label
        ]
        assert len(found) == len(expected)
        assert set(found) == expected


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_split_folders_are_the_splits(validation, tmp_path):
    for seed, (split, count) in enumerate({"train": 6, validation: 3, "test": 2}.items()):
        write_classes(tmp_path / split, {"a": count, "b": count}, seed=seed)
    data = ImageFolder(path=str(tmp_path)).load(None)
    assert sizes(data) == [12, 6, 4]
    assert torch.equal(data.test.labels, torch.tensor([0, 0, 1, 1]))
    full = ImageFolder(path=str(tmp_path), train_on="full").load(None)
    assert sizes(full) == [18, 6, 4]
    assert rows_in(full.train) == rows_in(data.train) | rows_in(data.validation)


def test_without_test_val_is_the_test_split_as_with_imagenet(tmp_path):
    write_classes(tmp_path / "train", {"a": 20, "b": 20})
    pictures = write_classes(tmp_path / "val", {"a": 3, "b": 3}, seed=5)
    data = ImageFolder(path=str(tmp_path)).load(None)
    assert sizes(data) == [36, 4, 6]
    assert torch.equal(data.test.images, torch.cat(list(pictures.values())))


def test_without_val_a_tenth_of_train_is_validation(tmp_path):
    write_classes(tmp_path / "train", {"a": 20, "b": 20})
    write_classes(tmp_path / "test", {"b": 3})
    data = ImageFolder(path=str(tmp_path)).load(None)
    assert sizes(data) == [36, 4, 3]
    assert data.test.labels.tolist() == [1, 1, 1]


def test_a_class_called_train_is_a_class(tmp_path):
    write_classes(tmp_path, {"car": 10, "train": 10})
    assert sizes(ImageFolder(path=str(tmp_path)).load(None)) == [12, 4, 4]


def test_limit_bounds_each_split_and_decodes_no_other_images(tmp_path, decodings):
    write_classes(tmp_path / "train", {"a": 30, "b": 30})
    write_classes(tmp_path / "test", {"a": 10, "b": 10})
    data = ImageFolder(path=str(tmp_path), limit=8).load(None)
    assert sizes(data) == [8, 6, 8]
    assert sum(decodings) == 22
    assert data.train.labels.bincount().tolist() == [4, 4]


def count(read, batches):
    for batch in batches:
        read.append(len(batch))
        yield batch


def test_sub_folders_and_hidden_files_and_other_files_in_a_class(tmp_path):
    write_images(tmp_path / "a" / "deep" / "er", 5)
    write_images(tmp_path / "a", 5, seed=1)
    write_images(tmp_path / "b", 10, kind="BMP", seed=2)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / ".hidden.png").write_text("no image")
    (tmp_path / "readme.md").write_text("no class")
    assert sum(sizes(ImageFolder(path=str(tmp_path)).load(None))) == 20


@pytest.mark.parametrize(("folder", "path"), [(True, "pets"), (False, "pets"), (True, "~/pets")])
def test_a_relative_path_is_in_the_data_folder_or_here(folder, path, tmp_path, monkeypatch):
    write_classes(tmp_path / "pets", {"a": 10, "b": 10})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/" if folder else tmp_path)
    data = ImageFolder(path=path).load(tmp_path if folder else None)
    assert sum(sizes(data)) == 20


# --- sizes and pixels ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "requested", "expected"),
    [
        ([(16, 16)] * 2, None, 16),
        ([(64, 64)] * 2, None, 64),
        ([(65, 65)] * 2, None, 224),
        ([(16, 16), (16, 17)], None, 224),
        ([(16, 12)] * 2, None, 224),
        ([(16, 12)] * 2, 20, 20),
    ],
)
def test_small_equal_squares_keep_their_size_and_others_become_224(
    sizes, requested, expected, tmp_path
):
    for name, size in zip("ab", sizes, strict=True):
        write_images(tmp_path / "x" / name, 5, size)
    data = load(tmp_path / "x", size=requested)
    assert data.shape == (3, expected, expected)
    assert (data.train.pad, data.train.flip) == (expected // 8, True)
    data = load(tmp_path / "x", size=requested, pad=3, flip=False)
    assert (data.train.pad, data.train.flip) == (3, False)


def test_images_of_any_mode_become_rgb_and_stretched(tmp_path):
    tmp_path.mkdir(exist_ok=True)
    grey = np.full((10, 30), 77, np.uint8)
    picture = Image.fromarray(grey)
    for mode in ("L", "1", "P", "LA", "RGBA", "CMYK", "I;16"):
        name = f"{mode.replace(';', '')}.{'tif' if mode in {'CMYK', 'I;16'} else 'png'}"
        picture.convert(mode).save(tmp_path / name)
        assert decode.decode(str(tmp_path / name), 8).shape == (3, 8, 8)
    assert (decode.decode(str(tmp_path / "L.png"), 8) == 77).all()


@pytest.mark.parametrize(
    ("dtype", "kind"), [("<u2", "png"), ("<u2", "tif"), (">u2", "tif"), ("<u2", "pgm")]
)
def test_16_bits_are_scaled_to_8_not_clipped(dtype, kind, tmp_path):
    ramp = np.linspace(0, 65535, 16 * 16).round().astype(dtype).reshape(16, 16)
    ramp[0, :4] = 128, 129, 65406, 65407  # values around a rounding step, at both ends
    file = tmp_path / f"ramp.{kind}"
    Image.fromarray(ramp).save(file)
    expected = torch.from_numpy((ramp / 257).round().astype(np.uint8))
    assert expected[0, :4].tolist() == [0, 1, 254, 255]
    assert torch.equal(decode.decode(str(file), 16), expected.expand(3, -1, -1))


@pytest.mark.parametrize(("dtype", "mode"), [("float32", "F"), ("int32", "I")])
def test_pixels_without_a_known_range_are_refused(dtype, mode, tmp_path):
    file = tmp_path / "ramp.tif"
    Image.fromarray(np.linspace(0, 1, 256).astype(dtype).reshape(16, 16)).save(file)
    with pytest.raises(DataError, match=rf"ramp\.tif has 32-bit pixels of mode {mode}, .*16 bits"):
        decode.decode(str(file), 16)


def test_wide_images_are_stretched_not_cropped(tmp_path):
    half = np.zeros((10, 40, 3), np.uint8)
    half[:, :20] = 255
    Image.fromarray(half).save(tmp_path / "half.png")
    squeezed = decode.decode(str(tmp_path / "half.png"), 20).float().mean((0, 1))
    assert squeezed[:9].min() > 250
    assert squeezed[11:].max() < 5


def test_a_folder_is_normalised_by_its_training_images(tmp_path):
    write_classes(tmp_path, {"a": 20, "b": 20})
    data = ImageFolder(path=str(tmp_path)).load(None)
    batch, _ = next(data.train.batches(100))
    assert batch.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-4)


# --- streaming -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """The same data in memory and as a stream."""
    folder = tmp_path_factory.mktemp("twins")
    write_classes(folder, {"a": 21, "b": 20}, size=(10, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return [
            ImageFolder(path=str(folder), memory=memory).load(None)
            for memory in ("always", "never")
        ]


def check_same_batches(held, streamed, size, **how):
    pairs = zip(held.batches(size, **how), streamed.batches(size, **how), strict=True)
    for (images_a, labels_a), (images_b, labels_b) in pairs:
        assert torch.equal(images_a, images_b)
        assert torch.equal(labels_a, labels_b)


@few
@given(
    size=st.integers(1, 30),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
    augment=st.booleans(),
    world=st.integers(1, 3),
)
def test_a_stream_yields_the_same_batches_as_memory(twins, size, seed, epoch, augment, world):
    held, streamed = twins
    assert isinstance(held.train, TensorSource)
    assert isinstance(streamed.train, FileSource)
    for rank in range(world):
        how = {"seed": seed, "epoch": epoch, "augment": augment, "rank": rank, "world": world}
        check_same_batches(held.train, streamed.train, size, **how)
    check_same_batches(held.test, streamed.test, size)
    assert torch.equal(held.train.targets(), streamed.train.targets())
    assert (held.shape, held.train.steps(size)) == (streamed.shape, streamed.train.steps(size))


def test_the_check_catches_a_stream_that_ignores_the_epoch(twins):
    held, streamed = twins

    def without_epoch(size, seed, epoch):
        return streamed.train.batches(size, seed=seed)

    broken = SimpleNamespace(batches=without_epoch)
    with pytest.raises(AssertionError):
        check_same_batches(held.train, broken, 5, seed=0, epoch=1)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_number_of_workers_does_not_change_the_batches(twins, workers, monkeypatch):
    monkeypatch.setattr(decode, "_WORKERS", workers)
    held, streamed = twins
    check_same_batches(held.train, streamed.train, 4, seed=3, augment=True)


def test_ranks_of_a_stream_share_each_batch(twins):
    check_ranks_share_each_batch(twins[1].train, 7, 3)


def test_streamed_batches_are_on_the_device(twins, device):
    there = twins[1].to(device)
    batch, labels = next(there.train.batches(5, seed=1, augment=True))
    assert batch.device.type == labels.device.type == device.type
    expected, _ = next(twins[0].train.batches(5, seed=1, augment=True))
    torch.testing.assert_close(batch.cpu(), expected)


def test_invalid_batches_of_a_stream_are_refused_immediately(twins):
    with pytest.raises(DataError, match="no batches of 0 samples"):
        twins[1].train.batches(0)


def test_a_closed_stream_stops_decoding(tmp_path, monkeypatch):
    write_images(tmp_path, 60)
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    seen = []
    monkeypatch.setattr(decode, "decode", lambda file, size: seen.append(file) or torch.zeros(1))
    batches = decode_batches(([file] for file in files), 8)
    next(batches)
    batches.close()
    assert len(seen) <= 4


def test_a_stream_prints_as_one_short_line(twins):
    assert repr(twins[1].train) == "FileSource(25 image files as 3×10×10, cpu)"


@pytest.mark.parametrize(("most", "kind"), [(10**6, TensorSource), (10**3, FileSource)])
def test_auto_streams_what_does_not_fit(most, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MOST_MEMORY", most)
    write_classes(tmp_path / "x", {"a": 10, "b": 10})
    data = ImageFolder(path=str(tmp_path / "x")).load(None)
    assert isinstance(data.train, kind)
    always = ImageFolder(path=str(tmp_path / "x"), memory="always").load(None)
    check_same_batches(always.train, data.train, 5, seed=0, augment=True)


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path):
    write_classes(tmp_path / "pets", {"a": 10, "b": 10})
    return tmp_path / "pets"


@pytest.fixture
def decodings(monkeypatch):
    """The sizes of the batches decoded so far."""
    read = []

    def counting(files, size):
        return count(read, decode_batches(files, size))

    monkeypatch.setattr(images, "decode_batches", counting)
    return read


def cached(tmp_path):
    [file] = (tmp_path / "cache").glob("*.safetensors")
    return file


def test_loading_again_decodes_nothing(pets, decodings):
    first = load(pets)
    assert sum(decodings) == 20
    again = load(pets)
    assert sum(decodings) == 20
    check_same_batches(first.train, again.train, 5, seed=0, augment=True)
    check_same_batches(first.test, again.test, 5)


def test_the_cache_is_not_in_the_data_folder(pets, tmp_path, monkeypatch):
    monkeypatch.delenv("GEMKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    before = sorted(pets.rglob("*"))
    load(pets)
    assert sorted(pets.rglob("*")) == before
    assert len(list((tmp_path / "xdg" / "gemkit").glob("*.safetensors"))) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_folder() == tmp_path / "home" / ".cache" / "gemkit"


def touch(pets):
    file = pets / "a" / "000.png"
    write_images(pets / "a", 1, seed=77)
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def add(pets):
    write_images(pets / "b", 11, seed=100)


def rename(pets):
    (pets / "a" / "003.png").rename(pets / "a" / "0031.png")


def remove(pets):
    (pets / "a" / "003.png").unlink()


@pytest.mark.parametrize("change", [touch, add, rename, remove])
def test_a_changed_folder_is_decoded_again_and_its_cache_replaced(
    change, pets, decodings, tmp_path, monkeypatch
):
    load(pets)
    change(pets)
    decodings.clear()
    data = load(pets)
    assert sum(decodings) == sum(sizes(data))
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "fresh"))
    check_same_batches(load(pets).train, data.train, 5)
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    cached(tmp_path)  # still just one


def flip_a_bit(file, data):
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)


def truncate(file, data):
    file.write_bytes(file.read_bytes()[:-50])


def empty(file, data):
    file.write_bytes(b"")


def no_safetensors(file, data):
    file.write_bytes(b"\xff" * 100)


def about(file):
    with safe_open(file, framework="pt") as content:
        return content.metadata(), content.get_tensor("images")


def other_pixels(file, data):
    metadata, pixels = about(file)
    save_file({"images": pixels.flip(0).contiguous()}, file, metadata=metadata)


def too_few(file, data):
    metadata, pixels = about(file)
    less = pixels[1:].contiguous()
    save_file({"images": less}, file, metadata={**metadata, "sha256": cache._hash(less)})


def no_images(file, data):
    metadata, pixels = about(file)
    save_file({"others": pixels}, file, metadata=metadata)


def no_metadata(file, data):
    save_file({"images": about(file)[1]}, file)


DAMAGES = [flip_a_bit, truncate, empty, no_safetensors, other_pixels, too_few, no_images]


@pytest.mark.parametrize("damage", [*DAMAGES, no_metadata])
def test_a_damaged_cache_is_rebuilt_silently(damage, pets, decodings, tmp_path, capsys):
    original = load(pets)
    metadata, pixels = about(cached(tmp_path))
    pixels = pixels.clone()
    damage(cached(tmp_path), original)
    decodings.clear()
    again = load(pets)
    assert sum(decodings) == 20
    check_same_batches(original.train, again.train, 5)
    rebuilt, again = about(cached(tmp_path))
    assert rebuilt == metadata
    assert torch.equal(again, pixels)
    assert capsys.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_skipped(pets, decodings, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "file"))
    assert sizes(load(pets)) == [12, 4, 4]
    assert sizes(load(pets)) == [12, 4, 4]
    assert sum(decodings) == 40


def test_other_sizes_and_limits_have_separate_caches(pets, decodings):
    options = ({}, {"size": 16}, {"limit": 4})
    first = [load(pets, **fields) for fields in options]
    done = sum(decodings)
    again = [load(pets, **fields) for fields in options]
    assert sum(decodings) == done
    for old, new in zip(first, again, strict=True):
        check_same_batches(old.train, new.train, 5)


# --- mistakes and damaged files ------------------------------------------------------------------


def png_header(width, height):
    """A PNG file that claims a size, cut off where its pixels begin."""
    content = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR" + content) + png_chunk(b"IDAT" + bytes(8))


def png_chunk(content):
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def jpeg():
    from io import BytesIO

    stream = BytesIO()
    Image.fromarray(random_bytes(40, 40, 3)).save(stream, "JPEG")
    return stream.getvalue()


BAD_FILES = {
    "empty": (b"", "is not an image"),
    "text": (b"hello", "is not an image"),
    "truncated": (jpeg()[:600], "is not an image"),
    "header alone": (png_header(8, 8), "is not an image"),
    "bomb": (png_header(8000, 8000), "8000×8000 pixels, more than"),
    "larger bomb": (png_header(60000, 60000), "60000|is not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not an image"),
    "pickle": (b"\x80\x04cos\nsystem\n(S'x'\ntR.", "is not an image"),
}


@pytest.mark.parametrize("memory", ["always", "never"])
@pytest.mark.parametrize("damage", BAD_FILES)
def test_a_bad_image_is_named(damage, memory, pets):
    content, reason = BAD_FILES[damage]
    (pets / "a" / "004.png").write_bytes(content)
    with pytest.raises(DataError, match=rf"a/004\.png .*({reason})"):
        read_all(pets, memory=memory, size=8)


def read_all(folder, **fields):
    data = load(folder, **fields)
    for source in (data.train, data.validation, data.test):
        list(source.batches(5))


@few
@given(
    offset=st.integers(0, 700),
    new=st.binary(max_size=20),
    removed=st.integers(0, 40),
    valid=st.sampled_from([jpeg(), png_header(8, 8) + jpeg()]),
)
def test_any_bytes_are_an_image_or_a_clear_error(offset, new, removed, valid, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "any.jpg"
    file.write_bytes(valid[:offset] + new + valid[offset + removed :])
    for read in (lambda: decode.decode(str(file), 8), lambda: dimensions(str(file))):
        problem = problem_of(read)
        assert problem is None or "any.jpg" in str(problem)


def problem_of(read):
    """Return the DataError that reading raises, or None."""
    try:
        read()
    except DataError as problem:
        return problem
    return None


def test_a_file_that_vanished_is_named(pets):
    data = ImageFolder(path=str(pets), memory="never").load(None)
    for file in (pets / "b").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"cannot read .*/b/\d+\.png: No such file"):
        list(data.train.batches(5))


def no_folder(root):
    return root / "nothing", r"cannot list .*nothing: No such file"


def nothing_in_it(root):
    (root / "new").mkdir()
    return root / "new", r"new has no class folders"


def images_without_classes(root):
    write_images(root / "flat", 3)
    return root / "flat", r"flat has no class folders"


def an_empty_class(root):
    write_classes(root / "x", {"a": 5})
    (root / "x" / "b").mkdir()
    return root / "x", r"x/b has no images \(files that end in \.jpg"


def a_class_of_test_alone(root):
    write_classes(root / "x" / "train", {"cat": 5, "dog": 5})
    write_classes(root / "x" / "test", {"cats": 5})
    return root / "x", r"test/cats is a class that the training .*did you mean 'cat'"


def too_few_images(root):
    write_classes(root / "x", {"a": 1, "b": 1})
    return root / "x", r"too few images \(2\) to hold some out for validation"


def a_nul(root):
    return "a\0b", "cannot list"


def a_file(root):
    (root / "file").write_text("x")
    return root / "file", "cannot list .*file: Not a directory"


MISTAKES = [no_folder, nothing_in_it, images_without_classes, an_empty_class, a_nul, a_file]


@pytest.mark.parametrize("mistake", [*MISTAKES, a_class_of_test_alone, too_few_images])
def test_an_unusable_folder_is_explained(mistake, tmp_path):
    path, reason = mistake(tmp_path)
    with pytest.raises(DataError, match=reason):
        ImageFolder(path=str(path)).load(None)


# --- links ---------------------------------------------------------------------------------------


def test_links_within_the_folder_are_followed(pets):
    (pets / "a" / "again.png").symlink_to(pets / "b" / "000.png")
    (pets / "c").symlink_to(pets / "b")
    assert sum(sizes(load(pets))) == 31


@pytest.mark.parametrize("what", ["a/one.png", "a/folder", "c"])
def test_links_to_the_outside_are_refused_unless_allowed(what, pets, tmp_path):
    write_images(tmp_path / "outside", 10)
    target = tmp_path / "outside" / ("000.png" if what.endswith("png") else "")
    (pets / what).symlink_to(target)
    with pytest.raises(DataError, match=rf"{what} is a link that points outside .*links=any"):
        load(pets)
    assert sum(sizes(load(pets, links="any"))) == 20 + (1 if what.endswith("png") else 10)


def moved_out(place, outside):
    """Move a file or folder and leave a link to it."""
    place.rename(outside)
    place.symlink_to(outside)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_that_is_a_link_to_the_outside_is_refused_unless_allowed(split, tmp_path):
    for seed, name in enumerate(["train", "val", "test"]):
        write_classes(tmp_path / "set" / name, {"a": 5, "b": 5}, seed=seed)
    moved_out(tmp_path / "set" / split, tmp_path / "elsewhere")
    with pytest.raises(DataError, match=rf"set/{split} is a link that points outside .*links=any"):
        load(tmp_path / "set")
    assert sizes(load(tmp_path / "set", links="any")) == [10, 10, 10]


def test_a_split_may_be_a_link_to_a_folder_inside(tmp_path):
    write_classes(tmp_path / "parts" / "one", {"a": 5, "b": 5})
    write_classes(tmp_path / "test", {"a": 5, "b": 5}, seed=1)
    (tmp_path / "train").symlink_to(tmp_path / "parts" / "one")
    assert sum(sizes(load(tmp_path))) == 20


def test_a_link_to_the_outside_that_leads_back_is_refused(pets, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "back").symlink_to(pets / "b")
    (pets / "c").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="c is a link that points outside"):
        load(pets)


def test_a_link_to_itself_is_named(pets):
    (pets / "a" / "self.png").symlink_to(pets / "a" / "self.png")
    with pytest.raises(DataError, match=r"self\.png is a link that points outside"):
        load(pets)


def test_the_folder_itself_may_be_a_link(pets, tmp_path):
    (tmp_path / "link").symlink_to(pets)
    assert sum(sizes(load(tmp_path / "link"))) == 20


def test_links_in_a_circle_are_named(pets):
    (pets / "a" / "loop").symlink_to(pets / "a")
    with pytest.raises(DataError, match="check for links in a circle"):
        load(pets)


# --- TinyImageNet and Caltech-101 ----------------------------------------------------------------


@pytest.fixture
def tiny_imagenet(tmp_path):
    return write_tiny_imagenet(tmp_path)


def test_tiny_imagenet_tests_on_val_and_holds_out_a_tenth_of_train(tiny_imagenet, tmp_path):
    data = TinyImageNet().load(tmp_path)
    assert (sizes(data), data.classes, data.shape) == ([36, 4, 6], 2, (3, 64, 64))
    assert data.test.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert (data.train.pad, data.train.flip) == (4, True)
    first = np.array(Image.open(tiny_imagenet / "val" / "images" / "000.JPEG"))
    assert torch.equal(data.test.images[0], torch.from_numpy(first).permute(2, 0, 1))


@pytest.mark.parametrize(
    "line", ["000.JPEG\tn99999999\t0", "000.JPEG", "", "../000.JPEG\tn01443537\t0", "\tn01443537"]
)
def test_a_wrong_annotation_is_named_with_its_line(line, tiny_imagenet, tmp_path):
    file = tiny_imagenet / "val" / "val_annotations.txt"
    file.write_text(f"001.JPEG\tn01443537\t0\n{line}\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt .* in line 2"):
        TinyImageNet().load(tmp_path)


def test_an_annotated_image_that_is_not_there_is_named(tiny_imagenet, tmp_path):
    (tiny_imagenet / "val" / "images" / "003.JPEG").unlink()
    with pytest.raises(DataError, match=r"cannot read .*003\.JPEG"):
        TinyImageNet().load(tmp_path)


@pytest.mark.parametrize(
    "place", ["train", "val", "val/images", "val/images/000.JPEG", "val/val_annotations.txt"]
)
def test_links_out_of_tiny_imagenet_are_refused_at_every_level(place, tiny_imagenet, tmp_path):
    moved_out(tiny_imagenet / place, tmp_path / "elsewhere")
    with pytest.raises(DataError, match=rf"^\S*{place} is a link that points outside"):
        TinyImageNet().load(tmp_path)


def test_a_missing_tiny_imagenet_lists_its_files(tmp_path):
    with pytest.raises(DataError) as caught:
        TinyImageNet().load(tmp_path)
    for place in ("train", "val/images", "val/val_annotations.txt"):
        assert str(tmp_path / "tiny-imagenet-200" / place) in str(caught.value)
    assert "--download" in str(caught.value)


@pytest.fixture
def caltech(tmp_path):
    return write_caltech(tmp_path)


def test_caltech_is_split_60_20_20_at_224_without_background(caltech, tmp_path):
    data = Caltech101().load(tmp_path)
    assert (sizes(data), data.classes, data.shape) == ([18, 6, 6], 2, (3, 224, 224))
    assert data.test.labels.tolist() == [0] * 4 + [1] * 2  # "Faces" sorts before "accordion"
    assert (data.train.pad, data.train.flip) == (0, False)
    assert sizes(Caltech101(train_on="full", memory="never").load(tmp_path)) == [24, 6, 6]


def test_a_missing_caltech_lists_its_folder(tmp_path):
    with pytest.raises(DataError, match="--download") as caught:
        Caltech101().load(tmp_path)
    assert str(tmp_path / "caltech101" / "101_ObjectCategories") in str(caught.value)


def test_both_are_downloaded_by_torchvision_unless_they_exist(tmp_path, monkeypatch):
    from torchvision import datasets

    fetched = []

    def archive(url, where, md5):
        fetched.append((url, len(md5)))
        (Path(where) / "tiny-imagenet-200").mkdir()

    def caltech101(where, download):
        assert download
        fetched.append(where)
        (Path(where) / "caltech101" / "101_ObjectCategories").mkdir(parents=True)

    monkeypatch.setattr(datasets.utils, "download_and_extract_archive", archive)
    monkeypatch.setattr(datasets, "Caltech101", caltech101)
    for _ in range(2):
        TinyImageNet().download(tmp_path)
        Caltech101().download(tmp_path)
    assert fetched == [("http://cs231n.stanford.edu/tiny-imagenet-200.zip", 32), str(tmp_path)]


def test_a_folder_cannot_be_downloaded():
    with pytest.raises(DataError, match="'imagefolder' cannot be downloaded; leave out --download"):
        ImageFolder(path="x").download(None)
