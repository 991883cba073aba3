"""Every promise of docs/runs.md names a test, and the test exists."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runs.md").read_text()
TITLE = "\n## Promises and the tests that attack them\n"


def named_tests(page: str) -> list[tuple[str, str]]:
    """Return the promise and the test of every row of the table."""
    section = page.partition(TITLE)[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(promise, test.strip("`")) for promise, test in rows[1:]]


def missing(tests: list[str]) -> list[str]:
    """Return the tests that are not there: no file, or no function of that name in it."""
    return [test for test in tests if test.partition("::")[2] not in functions(test)]


def functions(test: str) -> set[str]:
    file = ROOT / test.partition("::")[0]
    if not file.is_file():
        return set()
    return {
        node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_promise_names_a_test_that_exists():
    rows = named_tests(PAGE)
    assert len(rows) > 50
    assert missing([test for _, test in rows]) == []
    assert len({promise for promise, _ in rows}) == len(rows)


def test_a_test_that_is_gone_would_be_noticed():
    own = "tests/project/test_promises.py::test_every_promise_names_a_test_that_exists"
    assert missing([own, f"{own}_at_all", "tests/gone.py::test_it"]) == [
        f"{own}_at_all",
        "tests/gone.py::test_it",
    ]
