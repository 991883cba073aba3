"""The mark `one_in` leaves out parameter sets of slow tests, and of no others."""

from pathlib import Path

import pytest
from conftest import one_in


class Item:
    """A test as pytest collects it, as far as it matters here."""

    def __init__(self, test, marks=()):
        self.path, self.originalname, self.marks = Path("test_it.py"), test, marks

    def get_closest_marker(self, name):
        assert name == "one_in"
        return next(iter(self.marks), None)


def test_the_first_of_n_parameter_sets_is_chosen_of_each_marked_test():
    mark = pytest.mark.one_in(3).mark
    slow, other = ([Item(name, [mark]) for _ in range(4)] for name in ("slow", "other"))
    chosen = one_in([*slow[:2], Item("quick"), *other, *slow[2:], Item("quick")])
    assert chosen == [True, False, True, True, False, False, True, False, True, True]
