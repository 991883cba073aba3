"""Numbers on the command line: within bounds, and finite."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number within bounds; click's own lets `nan` pass them all."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Turn text into a number, and refuse what is none."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
