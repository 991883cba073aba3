"""Options that say which pruner, made of which parts, and whose parts those are."""

from functools import wraps
from pathlib import Path
from typing import Any

import click

from gemkit.cli.sections import Decorator, Function, bundle, given, option

ROLES = {
    "scores": "How important every weight is.",
    "rounding": "How learned scores become a mask.",
    "allocation": "How layers share the budget.",
    "schedule": "When the density falls.",
    "regularizer": "What pulls on learned scores.",
    "init": "Where weights begin.",
}

preset_option = option(
    "Parts",
    "--preset",
    metavar="NAME",
    help="Take everything that is not given here from a preset; see `gemkit presets`.",
)


def recipe_source(pruner: str) -> Decorator:
    """Define `--pruner`, with this default, and `--recipe`; both together are refused."""

    def decorate(command: Function) -> Function:
        @option(
            "Parts",
            "--pruner",
            metavar="NAME",
            default=pruner,
            help="Recipe to follow; see `gemkit parts pruners`.",
        )
        @option(
            "Parts",
            "--recipe",
            "recipe_file",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Follow the recipe in a TOML file instead.",
        )
        @wraps(command)
        def followed(*, recipe_file: Path | None, **values: Any) -> Any:  # noqa: ANN401
            if recipe_file is not None and given("pruner"):
                raise click.UsageError(
                    "--recipe and --pruner both say which recipe to follow; give one."
                )
            return command(recipe_file=recipe_file, **values)

        return followed

    return decorate


def role_option(role: str, what: str) -> Decorator:
    """Define the option that puts a part into a role, instead of the recipe's own."""
    return option("Parts", f"--{role}", metavar="NAME", help=what)


role_options = bundle("roles", {role: role_option(role, what) for role, what in ROLES.items()})


def fields_option(kinds: str) -> Decorator:
    """Define `-o`; `kinds` says whose fields it sets."""
    return option(
        "Parts",
        "-o",
        "--option",
        "fields",
        metavar="KIND.FIELD=VALUE",
        multiple=True,
        help=f"Set one field (repeatable). KIND is {kinds}. VALUE is read as TOML, else as text. "
        "It wins over every other option.",
    )


plugin_option = option(
    "Other",
    "--plugin",
    "plugins",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Load a Python file as a plugin (repeatable).",
)
