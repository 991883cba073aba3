"""Find the runs in a folder."""

import os
from pathlib import Path

from gemkit.core.errors import OptionError


def runs_in(folder: Path) -> list[Path]:
    """Return the subfolders that hold a run, sorted, and those that cannot be looked into."""
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir may raise
        raise OptionError(f"there is no folder {folder}; `gemkit run` and `gemkit study` make one")
    try:
        inner = sorted(folder.iterdir())
    except OSError as error:
        raise OptionError(
            f"cannot list {folder}: {error.strerror}; check its permissions, or name another"
        ) from error
    return [path for path in inner if _may_hold_a_run(path)]


def _may_hold_a_run(folder: Path) -> bool:
    try:
        os.lstat(folder / "config.toml")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it cannot be entered, which `gemkit runs` should show
        return True
    return True
