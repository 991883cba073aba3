"""The generated table and sequences, and the digits as signals: the same bits, and what they say.

Another implementation, row by row in plain Python, computes the labels again.
"""

import hashlib
from statistics import correlation

import pytest
import torch

from gemkit.core.errors import OptionError
from gemkit.data.embedded import DigitRows, Digits
from gemkit.data.fingerprint import tensor_digest
from gemkit.data.generated import LETTERS, MARK, Sequences, Table
from gemkit.plugins.loader import load_plugins

SPLITS = ("train", "validation", "test")
DATA = {
    "table": Table().load(None),
    "values": Table(target="value").load(None),
    "sequences": Sequences().load(None),
    "digit_rows": DigitRows().load(None),
}
GENERATED = ("table", "values", "sequences")


def everything(data):
    """All inputs and targets, in order."""
    sources = [getattr(data, split) for split in SPLITS]
    pairs = [(source.images, source.labels) for source in sources]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


DIGESTS = {
    "table": ("76f2a128743afcac", "3800f0bda5b71339"),
    "values": ("76f2a128743afcac", "7e217bb79be97dca"),
    "sequences": ("d3fa204807349768", "c85596523fafd060"),
}


@pytest.mark.parametrize("name", GENERATED)
def test_the_bits_are_known(name):
    inputs, targets = everything(DATA[name])
    assert (tensor_digest(inputs)[:16], tensor_digest(targets)[:16]) == DIGESTS[name]


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "classes"),
    [
        ("table", (20,), torch.float32, 5),
        ("values", (20,), torch.float32, None),
        ("sequences", (17,), torch.int64, 4),
    ],
)
def test_shapes_and_sizes(name, shape, dtype, classes):
    data = DATA[name]
    inputs, targets = next(data.train.batches(7))
    assert (inputs.shape, inputs.dtype) == ((7, *shape), dtype)
    assert (data.shape, data.classes, targets.shape) == (shape, classes, (7,))
    assert [len(getattr(data, split)) for split in SPLITS] == [6000, 1000, 2000]
    assert data.indices == (name == "sequences")


@pytest.mark.parametrize("name", GENERATED)
def test_no_two_samples_are_equal_so_splits_are_disjoint(name):
    inputs, _ = everything(DATA[name])
    assert len(inputs.unique(dim=0)) == len(inputs) == 9000


@pytest.mark.parametrize("name", ["table", "sequences"])
@pytest.mark.parametrize("split", SPLITS)
def test_classes_are_about_as_frequent_as_each_other(name, split):
    data = DATA[name]
    counts = getattr(data, split).labels.bincount(minlength=data.classes)
    mean = len(getattr(data, split)) / data.classes
    assert ((counts - mean).abs() < 0.2 * mean).all()


# --- another implementation ----------------------------------------------------------------------


def stream(purpose, limit):
    """Yield integers below a limit, four bytes each."""
    content = hashlib.shake_256(f"gemkit {purpose}".encode()).digest(2_000_000)
    for start in range(0, len(content), 4):
        yield int.from_bytes(content[start : start + 4], "little") * limit >> 32


def class_of_row(row):
    """Return the class with the highest score, and that score."""
    scores = [row[3 * k] * row[3 * k + 1] + 24 * row[3 * k + 2] for k in range(5)]
    return max(range(5), key=lambda k: (scores[k], k)), max(scores)


def test_classes_of_the_table_follow_its_rule_but_for_one_in_twenty():
    inputs, labels = everything(DATA["table"])
    rows = (inputs * 32).long().tolist()
    wanted = [class_of_row(row)[0] for row in rows]
    wrong = sum(one != other for one, other in zip(wanted, labels.tolist(), strict=True))
    assert 0.03 < wrong / len(rows) < 0.05  # a twentieth, of which a fifth is right by chance
    draws = stream("table labels", 100)
    expected = [drawn if (drawn := next(draws)) < 5 else own for own in wanted]
    assert labels.tolist() == expected


def test_values_of_the_table_are_its_highest_scores_and_noise():
    inputs, values = everything(DATA["values"])
    assert torch.equal(inputs, everything(DATA["table"])[0])
    highest = [float(class_of_row(row)[1]) for row in (inputs * 32).long().tolist()]
    assert 0.9 < correlation(highest, values.tolist()) < 0.98
    assert abs(float(values.mean())) < 0.02
    assert 1 < float(values.std()) < 1.5


def class_of_tokens(tokens):
    place = tokens.index(MARK)
    first = [
        [letter < LETTERS // 2 for letter in part] for part in (tokens[:place], tokens[place + 1 :])
    ]
    assert [len(part) % 2 for part in first] == [1, 1]
    before, after = (2 * sum(part) > len(part) for part in first)
    return 2 * before + after


def test_classes_of_sequences_follow_their_rule_but_for_one_in_twenty():
    inputs, labels = everything(DATA["sequences"])
    wanted = [class_of_tokens(tokens) for tokens in inputs.tolist()]
    draws = stream("sequence labels", 80)
    expected = [drawn if (drawn := next(draws)) < 4 else own for own in wanted]
    assert labels.tolist() == expected


def test_every_sequence_has_one_mark_among_letters():
    inputs, _ = everything(DATA["sequences"])
    assert inputs.unique().tolist() == list(range(LETTERS + 1))
    places = (inputs == MARK).nonzero()[:, 1]
    assert len(places) == len(inputs)
    assert places.unique().tolist() == [3, 5, 7, 9, 11]


def test_digits_as_signals_are_the_same_digits():
    images, signals = Digits().load(None), DATA["digit_rows"]
    assert (signals.shape, signals.classes) == ((8, 8), 10)
    for split in SPLITS:
        one, other = getattr(images, split), getattr(signals, split)
        assert torch.equal(one.images[:, 0], other.images)
        assert torch.equal(one.labels, other.labels)
    means = torch.cat([x for x, _ in signals.train.batches(100)]).mean((0, 2))
    torch.testing.assert_close(means, torch.zeros(8), atol=1e-4, rtol=0)


def test_another_target_is_refused():
    with pytest.raises(OptionError, match=r"dataset\.target"):
        load_plugins(only=()).build("datasets", "table", {"target": "valu"})
