"""Batches, augmentation, splits and the embedded and synthetic data sets."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pluggy
import pytest
import torch
from data_files import check_ranks_share_each_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn.functional import pad as pad_with_zeros

from gemkit.core.errors import DataError
from gemkit.data import (
    Data,
    TensorSource,
    channel_statistics,
    embedded,
    fake,
    sampler,
    split_stratified,
)
from gemkit.data.augment import crop_and_flip, draw
from gemkit.data.embedded import DIGITS, DIGITS_SHA256, Digits, read_verified
from gemkit.data.fake import Fake
from gemkit.plugins import hookspecs

few = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**31)


def numbered(samples, **options):
    """A source whose sample k is the constant image k, with label k % 3."""
    images = torch.arange(samples, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 4, 5)
    return TensorSource(images.clone(), torch.arange(samples) % 3, **options)


def random_source(samples=12, **options):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 6, 5), generator=rng).byte()
    return TensorSource(
        images, torch.arange(samples) % 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.1), **options
    )


def visited(source, size, **how):
    """The sample indices of a `numbered` source, in the order of an epoch."""
    return [int(k) for images, _ in source.batches(size, **how) for k in images[:, 0, 0, 0]]


# --- order ---------------------------------------------------------------------------------------


def check_visits_each_once(source, size, **how):
    assert sorted(visited(source, size, **how)) == list(range(len(source)))


def with_replacement(samples, seed, epoch):
    """Broken on purpose: draws samples instead of permuting them."""
    return torch.randint(samples, (samples,), generator=torch.Generator().manual_seed(seed))


@few
@given(samples=st.integers(1, 40), size=st.integers(1, 50), seed=seeds, epoch=st.integers(0, 300))
def test_an_epoch_visits_every_sample_once_in_full_batches_but_the_last(samples, size, seed, epoch):
    source = numbered(samples)
    check_visits_each_once(source, size, seed=seed, epoch=epoch)
    lengths = [len(labels) for _, labels in source.batches(size, seed=seed, epoch=epoch)]
    assert len(lengths) == source.steps(size)
    assert set(lengths[:-1]) <= {size}
    assert 1 <= lengths[-1] <= size


def test_the_check_catches_sampling_with_replacement(monkeypatch):
    monkeypatch.setattr(sampler, "shuffled", with_replacement)
    with pytest.raises(AssertionError):
        check_visits_each_once(numbered(40), 8, seed=0)


def test_without_a_seed_samples_come_in_order():
    assert visited(numbered(10), 4) == list(range(10))


def test_order_changes_with_the_epoch_and_with_the_seed():
    source = numbered(50)
    orders = [tuple(visited(source, 8, seed=s, epoch=e)) for s in (0, 1) for e in (0, 1, 2)]
    assert len(set(orders)) == 6


def test_labels_stay_with_their_images():
    for images, labels in numbered(20).batches(6, seed=3):
        assert torch.equal(images[:, 0, 0, 0].long() % 3, labels)


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generator_alone():
    source = random_source(pad=2, flip=True)
    state = torch.get_rng_state()
    runs = [
        torch.cat([images for images, _ in source.batches(5, seed=7, epoch=2, augment=True)])
        for _ in range(2)
    ]
    assert torch.equal(*runs)
    assert torch.equal(state, torch.get_rng_state())


def test_batches_are_on_the_device_and_equal_those_of_the_cpu(device):
    sources = [random_source(samples, pad=2, flip=True) for samples in (12, 9, 7)]
    data = Data("x", *sources, classes=3, shape=(3, 6, 5))
    there = data.to(device)
    for part in ("train", "validation", "test"):
        here, moved = (
            getattr(place, part).batches(5, seed=1, augment=True) for place in (data, there)
        )
        for (x, y), (moved_x, moved_y) in zip(here, moved, strict=True):
            assert moved_x.device.type == moved_y.device.type == device.type
            torch.testing.assert_close(moved_x.cpu(), x)
            assert torch.equal(moved_y.cpu(), y)


# --- several processes ---------------------------------------------------------------------------


class SameForAllRanks(TensorSource):
    """Broken on purpose: every process reads everything."""

    def batches(self, size, *, rank=0, world=1, **how):
        return super().batches(size, **how)


@few
@given(samples=st.integers(1, 30), size=st.integers(1, 12), world=st.integers(1, 5))
def test_ranks_together_see_what_one_process_sees(samples, size, world):
    check_ranks_share_each_batch(random_source(samples, pad=1, flip=True), size, world)


def test_the_check_catches_ranks_that_all_read_everything():
    broken = SameForAllRanks(random_source().images, random_source().labels)
    with pytest.raises(AssertionError):
        check_ranks_share_each_batch(broken, 6, 2)


# --- augmentation --------------------------------------------------------------------------------

PAD = 2
ONE_IMAGE = torch.arange(1, 2 * 4 * 5 + 1, dtype=torch.uint8).view(1, 2, 4, 5)


def all_crops(image, pad):
    """Every crop of one image, unflipped and flipped, cut one by one."""
    _, height, width = image.shape
    return [
        pad_with_zeros(side, (pad,) * 4)[:, top : top + height, left : left + width]
        for side in (image, image.flip(-1))
        for top in range(2 * pad + 1)
        for left in range(2 * pad + 1)
    ]


def crop_counts(augmented, pad=PAD):
    """How often each possible crop of ONE_IMAGE occurs; anything else is an error."""
    crops = torch.stack(all_crops(ONE_IMAGE[0], pad))
    same = (augmented[:, None] == crops).flatten(2).all(2)
    assert same.any(1).all(), "an image is no crop of the original"
    return same.sum(0)


def check_each_sample_has_its_own_crop(crop):
    draws = draw(1000, PAD, flip=True, seed=0, epoch=0)
    counts = crop_counts(crop(ONE_IMAGE.expand(1000, -1, -1, -1), draws, PAD))
    assert (counts > 0).all(), "some crops never occur"
    assert counts.max() < 60, "one crop occurs far more often than the 20 times expected"


def test_each_sample_of_a_batch_has_its_own_crop_and_flip():
    check_each_sample_has_its_own_crop(crop_and_flip)


def test_the_check_catches_one_crop_for_the_whole_batch():
    def one_for_all(images, draws, pad):
        return crop_and_flip(images, draws[:, :1].expand_as(draws), pad)

    with pytest.raises(AssertionError, match="never occur"):
        check_each_sample_has_its_own_crop(one_for_all)


def test_the_check_catches_vertical_flips():
    def upside_down(images, draws, pad):
        return crop_and_flip(images.flip(-2), draws, pad)

    with pytest.raises(AssertionError, match="no crop of the original"):
        check_each_sample_has_its_own_crop(upside_down)


@few
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 2, *[st.integers(1, 6)] * 2),
    pad=st.integers(0, 3),
    seed=seeds,
    kind=st.sampled_from([torch.uint8, torch.float32]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_the_batched_crop_equals_cutting_one_by_one(shape, pad, seed, kind, layout):
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, shape, generator=rng).to(kind).contiguous(memory_format=layout)
    draws = draw(len(images), pad, flip=True, seed=seed, epoch=0)
    side = 2 * pad + 1
    one_by_one = [
        all_crops(image, pad)[(flipped * side + top) * side + left]
        for image, (top, left, flipped) in zip(images, draws.T.tolist(), strict=True)
    ]
    assert torch.equal(crop_and_flip(images, draws, pad), torch.stack(one_by_one))


def test_a_source_without_flip_only_crops_and_without_pad_only_flips():
    images, labels = ONE_IMAGE.expand(200, -1, -1, -1).float(), torch.zeros(200).long()
    how = {"size": 200, "seed": 0, "augment": True}
    cropped, _ = next(TensorSource(images, labels, pad=PAD).batches(**how))
    assert crop_counts(cropped).view(2, -1)[1].sum() == 0
    flipped, _ = next(TensorSource(images, labels, flip=True).batches(**how))
    plain, mirrored = crop_counts(flipped, pad=0).tolist()
    assert plain + mirrored == 200
    assert 70 < mirrored < 130


def test_augmentation_changes_from_epoch_to_epoch():
    draws = [draw(30, PAD, flip=True, seed=0, epoch=epoch) for epoch in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert all(
        not torch.equal(first, later) for first, later in zip(draws[0], draws[2], strict=True)
    )


def test_only_augmented_batches_are_augmented():
    source = random_source(pad=2, flip=True)
    plain = torch.cat([images for images, _ in source.batches(5)])
    assert torch.equal(plain, torch.cat([x for x, _ in replace(source, pad=0).batches(5)]))
    augmented = torch.cat([images for images, _ in source.batches(5, seed=0, augment=True)])
    assert not torch.equal(augmented.sum((1, 2, 3)).sort()[0], plain.sum((1, 2, 3)).sort()[0])


# --- values --------------------------------------------------------------------------------------


def test_uint8_images_are_scaled_and_normalised_by_channel():
    source = random_source(peak=200.0)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (source.mean, source.std))
    images, _ = next(source.batches(12))
    torch.testing.assert_close(images, (source.images / 200.0 - mean) / std)
    assert images.dtype == torch.float32


def test_padding_is_black_before_normalisation():
    white = TensorSource(
        torch.full((50, 1, 4, 4), 255).byte(), torch.zeros(50).long(), (0.3,), (0.5,), pad=3
    )
    images, _ = next(white.batches(50, seed=0, augment=True))
    torch.testing.assert_close(images.unique(), torch.tensor([-0.3 / 0.5, 0.7 / 0.5]))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_float_images_are_not_normalised(kind):
    raw = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0)).to(kind)
    images, _ = next(TensorSource(raw, torch.arange(4)).batches(4))
    assert images.dtype == torch.float32
    assert torch.equal(images, raw.float())


def test_changing_a_batch_does_not_change_the_data_set():
    source = numbered(6)
    for images, _ in source.batches(6):
        images.zero_()
    assert visited(source, 6) == list(range(6))


def test_statistics_agree_with_torch_and_constant_channels_get_std_1():
    images = random_source(50).images.clone()
    images[:, 2] = 9
    mean, std = channel_statistics(images, peak=100.0)
    scaled = images.double() / 100
    assert mean == pytest.approx(scaled.mean((0, 2, 3)).tolist())
    assert std[:2] == pytest.approx(scaled.std((0, 2, 3), correction=0)[:2].tolist())
    assert std[2] == 1.0


# --- mistakes ------------------------------------------------------------------------------------

IMAGES, LABELS = torch.zeros(4, 3, 5, 5).byte(), torch.zeros(4).long()
MISTAKES = {
    "one image": ((IMAGES[0], LABELS), {}, r"for 3 images give 3 labels.*\[4\]"),
    "no samples": ((IMAGES[:0], LABELS[:0]), {}, r"non-empty .*not \[0, 3, 5, 5\]"),
    "integer images": ((IMAGES.long(), LABELS), {}, "uint8 or float, not torch.int64"),
    "short labels": ((IMAGES, LABELS.int()), {}, "labels must be int64.* not torch.int32"),
    "too few values": ((IMAGES, LABELS[:3].float()), {}, r"for 4 images give 4 labels.*\[3\]"),
    "no values": ((IMAGES, torch.zeros(4, 0)), {}, r"not labels of shape \[4, 0\]"),
    "values without end": ((IMAGES, LABELS / 0), {}, "some targets are not finite"),
    "a row of numbers": ((torch.zeros(4), LABELS), {}, "must be non-empty"),
    "a padded table": ((torch.zeros(4, 3), LABELS), {"pad": 1}, "only images are cropped"),
    "too few labels": ((IMAGES, LABELS[:3]), {}, r"for 4 images give 4 labels.*\[3\]"),
    "one-hot labels": ((IMAGES, LABELS.view(4, 1)), {}, r"shape \[4, 1\]"),
    "negative labels": ((IMAGES, LABELS - 1), {}, "some are negative"),
    "mean of one channel": ((IMAGES, LABELS), {"mean": (0.5,), "std": (0.5,)}, "need 3 values"),
    "mean without std": ((IMAGES, LABELS), {"mean": (0.5,) * 3}, "need 3 values"),
    "mean for floats": (
        (IMAGES.float(), LABELS), {"mean": (0.5,) * 3, "std": (0.5,) * 3}, "none for float images",
    ),
    "zero std": ((IMAGES, LABELS), {"mean": (0.5,) * 3, "std": (0.5, 0, 1)}, "must be above 0"),
    "zero peak": ((IMAGES, LABELS), {"peak": 0.0}, "must be above 0"),
    "negative pad": ((IMAGES, LABELS), {"pad": -1}, "0 or more, not -1"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_unusable_tensors_are_refused_with_the_reason(mistake):
    tensors, options, reason = MISTAKES[mistake]
    with pytest.raises(DataError, match=reason):
        TensorSource(*tensors, **options)


def test_several_mistakes_are_reported_at_once():
    with pytest.raises(DataError, match=r"uint8 or float.*labels must be int64.*pad must be"):
        TensorSource(IMAGES.long(), LABELS.int(), pad=-2)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"size": 0}, "no batches of 0 samples"),
        ({"size": 4, "rank": 2, "world": 2}, "rank 2 of 2"),
        ({"size": 4, "rank": -1}, "rank -1 of 1"),
        ({"size": 4, "augment": True}, "give batches"),
    ],
)
def test_invalid_batches_are_refused_immediately(how, reason):
    with pytest.raises(DataError, match=reason):
        numbered(4).batches(**how)


# --- splits --------------------------------------------------------------------------------------


def check_fair(labels, sizes, parts):
    """Disjoint, covering, the right sizes, and the right share of every class."""
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    for size, part in zip(sizes, parts, strict=True):
        share = size / sum(sizes)
        assert abs(len(part) - share * len(labels)) <= len(sizes) / 2
        off = labels[part].bincount(minlength=9) - share * labels.bincount(minlength=9)
        assert off.abs().max() <= len(sizes) - 0.5


@few
@given(
    labels=st.lists(st.integers(0, 8), min_size=1, max_size=60),
    sizes=st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.9, 1.0, 3.0]), min_size=1, max_size=4),
    seed=seeds,
)
def test_stratified_splits_are_fair_and_repeatable(labels, sizes, seed):
    labels = torch.tensor(labels)
    parts = split_stratified(labels, sizes, seed)
    check_fair(labels, sizes, parts)
    again = split_stratified(labels, sizes, seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


@few
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=4), seed=seeds)
def test_sizes_that_sum_to_the_samples_are_met_exactly(counts, seed):
    counts[0] += 1
    labels = torch.arange(sum(counts)) % 3
    assert [len(part) for part in split_stratified(labels, counts, seed)] == counts


def test_parts_of_size_0_are_empty():
    parts = split_stratified(torch.zeros(1, dtype=torch.int64), [1, 0, 0], 0)
    assert [len(part) for part in parts] == [1, 0, 0]


def test_the_check_catches_a_split_that_ignores_classes():
    labels = torch.arange(90) // 10
    blind = list(torch.randperm(90, generator=torch.Generator().manual_seed(0)).split([45, 45]))
    with pytest.raises(AssertionError):
        check_fair(labels, (1, 1), blind)


def test_another_seed_splits_differently():
    labels = torch.arange(60) % 3
    assert not torch.equal(*(split_stratified(labels, (1, 1), seed)[0] for seed in (0, 1)))


# --- Data ----------------------------------------------------------------------------------------


def pair(samples=40, classes=4, shape=(1, 4, 4), kind=torch.uint8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (samples, *shape), generator=rng).to(kind)
    return images, torch.arange(samples) % classes


def test_without_a_validation_split_a_tenth_of_train_is_held_out():
    data = Data.of_tensors(train=pair(), test=pair(8), name="mine")
    assert [len(source) for source in (data.train, data.validation, data.test)] == [36, 4, 8]
    assert sorted(data.validation.targets().tolist()) == [0, 1, 2, 3]
    assert (data.name, data.classes, data.shape) == ("mine", 4, (1, 4, 4))
    rows = torch.cat([data.train.images, data.validation.images]).flatten(1).tolist()
    assert sorted(rows) == sorted(pair()[0].flatten(1).tolist())


def test_given_splits_are_kept_and_normalised_by_train():
    data = Data.of_tensors(train=pair(), validation=pair(12, seed=1), test=pair(8, seed=2))
    assert torch.equal(data.validation.images, pair(12, seed=1)[0])
    images, _ = next(data.train.batches(40))
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert data.test.mean == data.train.mean == channel_statistics(pair()[0])[0]


def test_a_data_set_of_floats_is_not_normalised():
    data = Data.of_tensors(train=pair(kind=torch.float32), test=pair(8, kind=torch.float32))
    images, _ = next(data.test.batches(8))
    assert torch.equal(images, pair(8)[0].float())


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"test": pair(shape=(1, 5, 4))}, "differ in image shape"),
        (
            {"test": (IMAGES, LABELS[:1])},
            "data set 'custom', test split: .*for 4 images give 4 labels",
        ),
        ({"train": (IMAGES, LABELS[:1])}, "train split: .*for 4 images give 4 labels"),
        ({"train": pair(3)}, "validation split: .*non-empty"),
        ({"classes": 3}, "has 3 classes, labels 0 to 2, but its train split holds label 3"),
    ],
)
def test_a_data_set_says_which_split_is_wrong(pairs, reason):
    with pytest.raises(DataError, match=reason):
        Data.of_tensors(**{"train": pair(), "test": pair(8), **pairs})


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_numpy_arrays_are_accepted(kind):
    arrays = tuple(tensor.numpy() for tensor in pair(kind=kind))
    reversed_arrays = tuple(array[::-1] for array in arrays)
    for array in arrays:
        array.flags.writeable = False
    data = Data.of_tensors(train=arrays, test=reversed_arrays)
    expected = Data.of_tensors(train=pair(kind=kind), test=pair(kind=kind))
    assert torch.equal(data.train.images, expected.train.images)
    assert torch.equal(data.test.images, expected.test.images.flip(0))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (([[0]], [0]), "not list and list"),
        (IMAGES, "not Tensor"),
        (None, "not NoneType"),
        ((IMAGES,), "not Tensor"),
        ((IMAGES, LABELS, LABELS), "not Tensor and Tensor and Tensor"),
        ((np.array(["a"]), LABELS), "not ndarray and Tensor"),
        ((IMAGES, 3), "not Tensor and int"),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_anything_but_pairs_of_tensors_is_refused(given, named, split):
    pairs = {"train": pair(), "validation": pair(), "test": pair(), split: given}
    if (split, given) == ("validation", None):
        return  # None means: hold out a part of train
    with pytest.raises(DataError, match=f"data set 'custom', {split} split: .*{named}"):
        Data.of_tensors(**pairs)


def test_data_print_as_one_short_line():
    data = Data.of_tensors(train=pair(2000), test=pair(8), name="mine")
    expected = "Data('mine': 1,800 train, 200 validation, 8 test; 4 classes, images of 1×4×4)"
    assert repr(data) == expected
    assert repr(data.test) == "TensorSource(8 uint8 images of 1×4×4, cpu)"


# --- digits --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    return Digits().load(None)


def check_no_image_in_two_splits(data):
    splits = [
        {tuple(image) for image in source.images.flatten(1).tolist()}
        for source in (data.train, data.validation, data.test)
    ]
    assert len(set.union(*splits)) == sum(len(split) for split in splits)


def test_digits_are_the_uci_images_split_by_class(digits):
    sources = (digits.train, digits.validation, digits.test)
    assert [len(source) for source in sources] == [1257, 180, 360]
    assert (digits.name, digits.classes, digits.shape) == ("digits", 10, (1, 8, 8))
    images = torch.cat([source.images for source in sources])
    assert (int(images.min()), int(images.max())) == (0, 16)
    counts = torch.cat([source.labels for source in sources]).bincount().tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    for source in sources:
        share = source.labels.bincount() / torch.tensor(counts)
        assert share.max() - share.min() < 0.02


def test_no_digit_is_in_two_splits(digits):
    check_no_image_in_two_splits(digits)


def test_the_check_catches_a_test_image_in_train(digits):
    images = digits.train.images.clone()
    images[17] = digits.test.images[5]
    with pytest.raises(AssertionError):
        check_no_image_in_two_splits(replace(digits, train=replace(digits.train, images=images)))


def test_digits_are_normalised_by_the_training_images_alone(digits):
    images = torch.cat([images for images, _ in digits.train.batches(500)])
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert digits.test.mean == digits.validation.mean == digits.train.mean
    assert digits.train.mean == pytest.approx([digits.train.images.double().mean().item() / 16])


def test_the_digits_split_is_that_of_the_published_results(digits):
    content = digits.test.images.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == "17cc67e0e49ff2df"


def test_digits_are_cropped_by_one_pixel_and_never_flipped(digits):
    assert (digits.train.pad, digits.train.flip) == (1, False)


def test_digits_do_not_depend_on_the_global_generator(digits):
    torch.manual_seed(123)
    again = Digits().load(Path("no such folder"))
    assert torch.equal(again.test.images, digits.test.images)


def test_a_damaged_or_missing_digits_file_is_explained(tmp_path):
    content = bytearray(DIGITS.read_bytes())
    content[-1] ^= 1
    damaged = tmp_path / "digits.safetensors"
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged: .*reinstall gemkit"):
        read_verified(damaged, DIGITS_SHA256)
    with pytest.raises(DataError, match=r"cannot read .*reinstall gemkit"):
        read_verified(tmp_path / "absent", DIGITS_SHA256)


def test_the_attribution_names_authors_licence_and_hash_of_the_file():
    text = DIGITS.with_name("DIGITS.md").read_text(encoding="utf-8")
    for fact in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", DIGITS_SHA256):
        assert fact in text
    assert hashlib.sha256(DIGITS.read_bytes()).hexdigest() == DIGITS_SHA256


# --- fake ----------------------------------------------------------------------------------------


def nearest_class_accuracy(data):
    """Classify test images by the nearest class mean of the training images."""
    train, labels = next(data.train.batches(len(data.train)))
    test, truth = next(data.test.batches(len(data.test)))
    means = torch.stack([train[labels == k].mean(0) for k in range(data.classes)])
    guess = torch.cdist(test.flatten(1), means.flatten(1)).argmin(1)
    return (guess == truth).float().mean().item()


def test_fake_data_can_be_learned_unless_the_noise_is_large():
    assert nearest_class_accuracy(Fake().load(None)) == 1.0
    assert nearest_class_accuracy(Fake(noise=100.0, samples=2000).load(None)) < 0.5


def test_fake_data_has_the_given_shape_and_is_split_60_20_20():
    data = Fake(samples=100, size=5, channels=2, classes=7).load(None)
    assert (data.shape, data.classes) == ((2, 5, 5), 7)
    assert [len(source) for source in (data.train, data.validation, data.test)] == [60, 20, 20]
    check_no_image_in_two_splits(data)


def test_fake_data_depends_on_its_seed_alone():
    first, again, other = (Fake(seed=seed).load(None).train.images for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("field", ["samples", "size", "channels", "classes"])
def test_fake_data_fields_of_0_are_refused(field):
    with pytest.raises(ValidationError, match=field):
        Fake(**{field: 0})


def test_the_data_sets_are_registered_by_the_public_hook():
    manager = pluggy.PluginManager("gemkit")
    manager.add_hookspecs(hookspecs)
    for module in (embedded, fake):
        manager.register(module)
    manager.check_pending()
    registered = [part for parts in manager.hook.gemkit_datasets() for part in parts]
    assert {part.name for part in registered} == {"digits", "digit_rows", "fake"}
