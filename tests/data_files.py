"""Writers of small data sets in the true formats of the well-known ones."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image

CIFAR10_FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# --- CIFAR: pickles as Python 2 wrote them, byte by byte -----------------------------------------


def string(raw):
    """A Python 2 string, which is bytes."""
    short = len(raw) < 256
    return b"U" + bytes([len(raw)]) + raw if short else b"T" + struct.pack("<i", len(raw)) + raw


def array(values):
    """A NumPy array of bytes, as NumPy asked Python 2 to pickle it."""
    sides = b"".join(b"M" + struct.pack("<H", side) for side in values.shape)
    shape = b"(" + sides + b"t"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + string(values.tobytes()) + b"tb"
    )  # fmt: skip


def integers(values):
    items = b"".join(b"K" + bytes([value]) for value in values)
    return b"]q\x04(" + items + b"e"


def pickled(entries):
    """A dictionary with text keys, and values already pickled."""
    return b"\x80\x02}q\x01(" + b"".join(string(k.encode()) + v for k, v in entries.items()) + b"u."


def cifar_batch(rows, labels, key="labels"):
    names = b"](" + b"".join(string(b"picture_%d.png" % n) for n in range(len(labels))) + b"e"
    return pickled(
        {
            "batch_label": string(b"training batch 1 of 5"),
            key: integers(labels),
            "data": array(rows),
            "filenames": names,
        }
    )


def write_cifar10(folder: Path, images=20):
    """Six batches, batch k with labels counting up from k; returns rows and labels by file."""
    home = folder / "cifar-10-batches-py"
    home.mkdir(parents=True)
    written = {}
    for seed, file in enumerate(CIFAR10_FILES):
        rows = random_bytes(images, 3072, seed=seed)
        labels = [(seed + number) % 10 for number in range(images)]
        (home / file).write_bytes(cifar_batch(rows, labels))
        written[file] = rows, labels
    return written


def write_cifar100(folder: Path, images=200):
    home = folder / "cifar-100-python"
    home.mkdir(parents=True)
    written = {}
    for seed, file in enumerate(["train", "test"]):
        rows = random_bytes(images, 3072, seed=seed)
        labels = [number % 100 for number in range(images)]
        (home / file).write_bytes(cifar_batch(rows, labels, "fine_labels"))
        written[file] = rows, labels
    return written


# --- MNIST: idx ----------------------------------------------------------------------------------


def idx(values):
    """A type (8 for bytes), the number of dimensions, their sizes, the values."""
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def write_idx(folder: Path, packed=False, images=(40, 20)):
    """Four files; returns images and labels for training and test."""
    folder.mkdir(parents=True)
    written = []
    for seed, (split, count) in enumerate(zip(("train", "t10k"), images, strict=True)):
        pictures = random_bytes(count, 28, 28, seed=seed)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for what, values in (("images-idx3", pictures), ("labels-idx1", labels)):
            content, file = idx(values), folder / f"{split}-{what}-ubyte"
            if packed:
                content, file = gzip.compress(content), file.with_name(file.name + ".gz")
            file.write_bytes(content)
        written.append((pictures, labels))
    return written


# --- SVHN: MATLAB version 5 ----------------------------------------------------------------------


def element(kind, content, order="<"):
    """Type, length and bytes, filled up to eight; up to four have a short form."""
    if 0 < len(content) <= 4:
        return struct.pack(f"{order}I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    padded = content + bytes(-len(content) % 8)
    return struct.pack(f"{order}II", kind, len(content)) + padded


def matrix(name, values, order="<", packed=True):
    """An array of bytes; `values` as MATLAB sees them, its first index running fastest."""
    content = (
        element(6, struct.pack(f"{order}II", 9, 0), order)
        + element(5, struct.pack(f"{order}{values.ndim}i", *values.shape), order)
        + element(1, name.encode(), order)
        + element(2, values.tobytes(order="F"), order)
    )
    whole = struct.pack(f"{order}II", 14, len(content)) + content
    if not packed:
        return whole
    squeezed = zlib.compress(whole)
    return struct.pack(f"{order}II", 15, len(squeezed)) + squeezed


def matlab(*matrices, order="<"):
    text = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124)
    mark = b"\x00\x01IM" if order == "<" else b"\x01\x00MI"
    return text + mark + b"".join(matrices)


def write_svhn(folder: Path, images=(40, 20), **how):
    """Two files; returns X [32, 32, 3, N] and y [N, 1] of each, y from 1 to 10."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for seed, (split, count) in enumerate(zip(("train", "test"), images, strict=True)):
        pictures = random_bytes(32, 32, 3, count, seed=seed)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8).reshape(-1, 1)
        order = how.get("order", "<")
        content = matlab(matrix("X", pictures, **how), matrix("y", labels, **how), order=order)
        (folder / f"{split}_32x32.mat").write_bytes(content)
        written.append((pictures, labels))
    return written


# --- folders of image files ----------------------------------------------------------------------

WORDNET = ["n01443537", "n01629819"]


def write_images(folder: Path, count, size=(8, 8), seed=0, kind="png"):
    """Write random pictures, which PNG keeps exactly; returns them as [N, 3, H, W]."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = random_bytes(count, size[1], size[0], 3, seed=seed)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number:03}.{kind}")
    return torch.from_numpy(pictures).permute(0, 3, 1, 2)


def write_classes(folder: Path, counts, seed=0, **how):
    """One folder for each class; returns the pictures by class."""
    return {
        name: write_images(folder / name, count, seed=seed + 100 * place, **how)
        for place, (name, count) in enumerate(counts.items())
    }


def write_tiny_imagenet(folder: Path):
    """Two classes, and validation images whose classes a table tells; returns its own folder."""
    root = folder / "tiny-imagenet-200"
    for seed, name in enumerate(WORDNET):
        write_images(root / "train" / name / "images", 20, (64, 64), seed, "JPEG")
        (root / "train" / name / f"{name}_boxes.txt").write_text("x_0.JPEG\t0\t0\t62\t62\n")
    write_images(root / "val" / "images", 6, (64, 64), 9, "JPEG")
    lines = [f"{number:03}.JPEG\t{WORDNET[number % 2]}\t0\t32\t44\t62\n" for number in range(6)]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    write_images(root / "test" / "images", 3, (64, 64), 10, "JPEG")
    return root


def write_caltech(folder: Path):
    """Two classes and clutter; returns the folder of the classes."""
    root = folder / "caltech101" / "101_ObjectCategories"
    write_classes(root, {"accordion": 10, "BACKGROUND_Google": 30, "Faces": 20}, size=(30, 20))
    return root


# --- all of them ---------------------------------------------------------------------------------


def write_every_data_set(folder: Path):
    """All that gemkit reads, each where it looks for it, and `pictures` of one's own."""
    write_cifar10(folder)
    write_cifar100(folder)
    write_idx(folder / "MNIST" / "raw")
    write_idx(folder / "FashionMNIST" / "raw", packed=True)
    write_svhn(folder)
    write_tiny_imagenet(folder)
    write_caltech(folder)
    write_classes(folder / "pictures", {"cat": 10, "dog": 10})


def check_ranks_share_each_batch(source, size, world):
    how = {"seed": 5, "epoch": 1, "augment": True}
    shares = [list(source.batches(size, **how, rank=r, world=world)) for r in range(world)]
    for step, (images, labels) in enumerate(source.batches(size, **how)):
        together = torch.full_like(images, -1.0)
        for rank in range(world):
            mine, my_labels = shares[rank][step]
            assert torch.equal(my_labels, labels[rank::world])
            together[rank::world] = mine
        assert torch.equal(together, images)
