"""Numbers in messages agree with their nouns."""

import re
from pathlib import Path

import pytest

import gemkit
from gemkit.core.text import number_of

ROOT = Path(gemkit.__file__).parent
NOUNS = "classes|epochs|labels|layers|outputs|runs|seeds|steps|threads|tickets|turns"
BARE = re.compile(rf"\{{[^{{}}]*\}} (?:{NOUNS})\b")
"""A formatted number before a fixed plural."""


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 epochs"), (1, "1 epoch"), (2, "2 epochs"), (1200, "1,200 epochs"), (2.5, "2.5 epochs")],
)
def test_one_is_singular_and_large_numbers_can_be_read(count, words):
    assert number_of(count, "epoch") == words


def test_a_plural_may_be_irregular():
    assert [number_of(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]


def test_no_message_puts_a_number_before_a_fixed_plural():
    """A fixed plural would give "1 epochs"; use number_of."""
    files = [file for file in ROOT.rglob("*.py") if "testing" not in file.parts]
    found = {file.name: BARE.findall(file.read_text()) for file in files}
    assert {name: places for name, places in found.items() if places} == {}


def test_a_number_before_a_fixed_plural_is_detected():
    assert BARE.findall('f"{plan.epochs} epochs of {len(layers):,} layers"')
    assert not BARE.findall("f\"{number_of(plan.epochs, 'epoch')} in all\"")
