"""Generated sections of a page, between markers."""

from pathlib import Path

from gemkit.core.atomic_io import open_plain, read
from gemkit.core.errors import OptionError


def write_results(page: Path, name: str, text: str) -> None:
    """Write the section of this name on a page."""
    page.write_text(with_results(_text(page), name, text), encoding="utf-8")


def check_place(page: Path, name: str) -> None:
    """Refuse a page that cannot be written, or has no section of this name, before it is computed.

    Nothing is written yet.
    """
    with_results(_text(page), name, "")
    try:
        open_plain(page, "r+b").close()
    except OSError as error:
        raise OptionError(
            f"page {page} cannot be written: {error.strerror}; choose another with --page"
        ) from error


def with_results(page: str, name: str, text: str) -> str:
    """Return the page with this text between the markers of a name."""
    begin, end = f"<!-- results: {name} -->", "<!-- end of results -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        what = f"no place for the results '{name}'" if not found else f"no end of '{name}'"
        raise OptionError(f"the page has {what}; write {begin} and {end} where they belong")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def _text(page: Path) -> str:
    try:
        return read(page).decode()
    except (OSError, ValueError) as error:
        raise OptionError(f"page {page} cannot be read: {error}") from error
