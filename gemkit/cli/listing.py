"""`gemkit parts`, `show`, `presets` and `plugins`: what there is to choose from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.recipe_options import fields_option, plugin_option, role_options
from gemkit.cli.screen import echo
from gemkit.cli.sections import SectionedCommand


@click.command(cls=SectionedCommand, short_help="List parts and their fields.")
@click.argument("kind", required=False)
@answers_json
@plugin_option
def parts(kind: str | None, plugins: Sequence[Path]) -> Answer:
    """List every part, or those of one KIND: help, fields, and where it comes from.

    A field is shown with its default, type and bounds; set it with -o. Kinds: scores, roundings,
    allocations, schedules, regularizers, initializers, checks, models, datasets, observers,
    rewind, search, finetune, pruners.
    """
    from gemkit.plugins import load_plugins
    from gemkit.report.catalogue import catalogue, catalogue_text

    listed = catalogue(load_plugins(files=plugins), kind)
    return Answer(listed, catalogue_text(listed))


@click.command(cls=SectionedCommand, short_help="Print a pruner's recipe as TOML.")
@click.argument("pruner")
@role_options
@fields_option("a role above or rewind; recipe fields have none")
@plugin_option
def show(
    pruner: str,
    roles: Mapping[str, str | None],
    fields: Sequence[str],
    plugins: Sequence[Path],
) -> None:
    """Print the recipe of PRUNER, with changes, as TOML for `gemkit run --recipe`."""
    from gemkit.cli.choices import make_recipe
    from gemkit.cli.fields import sort_fields
    from gemkit.plugins import load_plugins
    from gemkit.recipe import ROLES

    own = sort_fields(fields, (*ROLES, "rewind", ""))
    recipe = make_recipe(load_plugins(files=plugins), pruner, None, roles, own)
    echo(recipe.to_toml(), nl=False)


@click.command(cls=SectionedCommand, short_help="List presets, or print one as TOML.")
@click.argument("name", required=False)
@answers_json
@plugin_option
def presets(name: str | None, plugins: Sequence[Path]) -> Answer:
    """List every preset with the accuracy to expect and its source, or print the one of this NAME.

    The beginning of some names, such as rare_gems/, lists those. Run one with
    `gemkit run --preset NAME`. Where the paper and its authors' configurations disagree there are
    two, NAME@paper and NAME@code; NAME alone is the paper's.
    """
    from gemkit.cli.presets import listing
    from gemkit.plugins import load_plugins

    return listing(load_plugins(files=plugins), name)


@click.command(cls=SectionedCommand, short_help="List plugins and refused ones.")
@answers_json
@plugin_option
def plugins(plugins: Sequence[Path]) -> Answer:
    """List the plugins, what each contributes, and those that were refused."""
    from gemkit.plugins import load_plugins
    from gemkit.report.plugins import plugins_data, plugins_text

    listed = plugins_data(load_plugins(files=plugins))
    return Answer(listed, plugins_text(listed))
