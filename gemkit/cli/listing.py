"""`gemkit parts`, `show`, `presets`, `plugins` and `runs`: list what there is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from gemkit.cli.command import Answer, SectionedCommand, answers_json, echo
from gemkit.cli.options import fields_option, plugin_option, role_options
from gemkit.cli.paths import PathType
from gemkit.core.errors import UnknownNameError


@click.command(cls=SectionedCommand)
@click.argument("kind", required=False)
@answers_json
@plugin_option
def parts(kind: str | None, plugins: Sequence[Path]) -> Answer:
    """List every part, or those of one KIND: help, fields, and origin.

    A field is shown with its default, type and bounds; set it with -o. Kinds: scores, roundings,
    allocations, schedules, regularizers, initializers, structures, objectives, checks,
    measurements, models, datasets, observers, executors, rewind, prunable, search, finetune,
    pruners.
    """
    from gemkit.plugins.loader import load_plugins
    from gemkit.report.catalogue import catalogue, catalogue_text

    listed = catalogue(load_plugins(files=plugins), kind)
    return Answer(listed, catalogue_text(listed))


@click.command(cls=SectionedCommand)
@click.argument("pruner")
@role_options
@fields_option("a role above, rewind or prunable; recipe fields have none")
@plugin_option
def show(
    pruner: str,
    roles: Mapping[str, str | None],
    fields: Sequence[str],
    plugins: Sequence[Path],
) -> None:
    """Print the recipe of PRUNER, with changes, as TOML for `gemkit run --recipe`."""
    from gemkit.cli.configure import make_recipe, sort_fields
    from gemkit.parts.recipe import ROLES, TABLES
    from gemkit.plugins.loader import load_plugins

    own = sort_fields(fields, (*ROLES, *TABLES, ""))
    recipe = make_recipe(load_plugins(files=plugins), pruner, None, roles, own)
    echo(recipe.to_toml(), nl=False)


@click.command(cls=SectionedCommand)
@click.argument("name", required=False)
@answers_json
@plugin_option
def presets(name: str | None, plugins: Sequence[Path]) -> Answer:
    """List all presets with the expected accuracy and its source, or print the preset NAME.

    The beginning of a name, such as rare_gems/, lists the presets that start with it. Run one with
    `gemkit run --preset NAME`. If the paper and its authors' configurations disagree there are two,
    NAME@paper and NAME@code; NAME alone is the paper's.
    """
    from gemkit.plugins.loader import load_plugins
    from gemkit.report.presets import preset_rows, preset_table

    registry = load_plugins(files=plugins)
    try:
        preset = registry.preset(name or "").thing
    except UnknownNameError:
        rows = preset_rows(registry, name)
        if not rows:
            raise
        return Answer({"presets": rows}, preset_table(rows))
    return Answer(preset.to_data(), preset.to_toml().rstrip())


@click.command(cls=SectionedCommand)
@answers_json
@plugin_option
def plugins(plugins: Sequence[Path]) -> Answer:
    """List the plugins, what each contributes, and those that were refused."""
    from gemkit.plugins.loader import load_plugins
    from gemkit.report.plugins import plugins_data, plugins_text

    listed = plugins_data(load_plugins(files=plugins))
    return Answer(listed, plugins_text(listed))


@click.command(cls=SectionedCommand)
@click.argument("folder", metavar="[DIR]", default="runs", type=PathType())
@answers_json
def runs(folder: Path) -> Answer:
    """List the runs in DIR (by default `runs`): state, pruner, network, data, seed, accuracy.

    A run is running, interrupted (`gemkit resume` resumes it), failed, or done. Means of runs that
    differ in their seed alone follow.
    """
    from gemkit.runs.listing import means_of, runs_data, runs_text

    listed = runs_data(folder)
    return Answer({"runs": listed, "means": means_of(listed)}, runs_text(listed, folder))
