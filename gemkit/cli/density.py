"""`--density` and `--sparsity`, two words for the same."""

from collections.abc import Callable
from typing import Any

import click

from gemkit.cli.command import chain, option
from gemkit.core.density import density_from, density_of_sparsity


class Share(click.types.FloatParamType):
    """A fraction or a percentage, as a function reads it."""

    def __init__(self, read: Callable[[str], float]) -> None:
        self.read = read

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Parse text; a default is a number already."""
        if isinstance(value, float):
            return value
        try:
            return self.read(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def _set_density(ctx: click.Context, param: click.Parameter, density: float | None) -> None:
    """Let a sparsity count as if its density were given; refuse both."""
    if density is None:
        return
    if ctx.get_parameter_source("density") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--density and --sparsity both say how much to keep; give one.")
    ctx.params["density"] = density
    ctx.set_parameter_source("density", click.core.ParameterSource.COMMANDLINE)


density_option = chain(
    [
        option(
            "Training",
            "--density",
            type=Share(density_from),
            metavar="X",
            default=0.05,
            is_eager=True,  # known before --sparsity, wherever it stands
            help="Fraction of the prunable weights to keep: 0.05, or 5%.",
        ),
        option(
            "Training",
            "--sparsity",
            type=Share(density_of_sparsity),
            metavar="X",
            expose_value=False,
            callback=_set_density,
            help="Fraction of the prunable weights to prune, instead of --density: 0.95, or 95%.",
        ),
    ]
)
