"""Places on a page that a command fills."""

from pathlib import Path


def write_results(page: Path, name: str, text: str) -> None:
    """Fill the place of this name on a page."""
    page.write_text(with_results(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def with_results(page: str, name: str, text: str) -> str:
    """Return the page with another text between the markers of this name."""
    begin, end = f"<!-- results: {name} -->", "<!-- end of results -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    assert found, f"the page has no place for the results '{name}'"
    assert ended, f"the results '{name}' have no end"
    return f"{head}{begin}\n{text}\n{end}{tail}"
