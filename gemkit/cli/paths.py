"""Paths that users name."""

from pathlib import Path
from typing import Any

import click

from gemkit.core.atomic_io import named_path
from gemkit.core.errors import OptionError


class PathType(click.Path):
    """A path; click's own takes an empty text for the current folder."""

    def __init__(
        self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True
    ) -> None:
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401
        """Return the path; refuse an empty text."""
        try:
            named_path(value)
        except OptionError as error:
            self.fail(f"{error}.", param, ctx)
        return super().convert(value, param, ctx)
