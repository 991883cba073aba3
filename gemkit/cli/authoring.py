"""`gemkit new-plugin` and `gemkit check-plugin`: for authors of plugins."""

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemkit.cli.command import Answer, SectionedCommand, answers_json, echo, option
from gemkit.cli.paths import PathType
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from gemkit.testing import Verdict

DOES_NOT_CONFORM = 1


@click.command("new-plugin", cls=SectionedCommand)
@click.argument("name")
@option(
    "Output",
    "--dir",
    "folder",
    type=PathType(file_okay=False),
    metavar="DIR",
    default=Path(),
    show_default="here",
    help="Where to create the new folder.",
)
def new_plugin(name: str, folder: Path) -> None:
    """Create a complete package gemkit-NAME: scores, a pruner and tests, ready to install.

    It works as it is; replace its importance with your own.
    """
    from gemkit.plugins.loader import load_plugins
    from gemkit.plugins.scaffold import new_plugin

    made = new_plugin(name, folder, load_plugins())
    echo(
        f"made {made}\n\n"
        f"  pip install -e {shlex.quote(str(made))}\n"
        f"  gemkit run --pruner {made.name.removeprefix('gemkit-').replace('-', '_')}\n"
        f"  gemkit check-plugin {made.name}"
    )


@click.command("check-plugin", cls=SectionedCommand)
@click.argument("plugin", metavar="DISTRIBUTION_OR_FILE")
@option(
    "Data",
    "--data-dir",
    "folder",
    type=PathType(exists=True, file_okay=False),
    metavar="DIR",
    help="Where the plugin's data sets find their files; without it they are not tested.",
)
@answers_json
def check_plugin(plugin: str, folder: Path | None) -> Answer:
    """Test the parts, pruners and presets of a plugin against gemkit's contracts.

    The plugin is an installed distribution (or the name of its entry point), or a Python file.
    A broken promise is shown with the smallest example that breaks it, and a promise that could
    not be tried with the reason. The exit code is 0 if all promises that were tried hold, 1 if one
    is broken, and 2 if there is no such plugin. Needs `pip install 'gemkit[test]'`.
    """
    from gemkit.testing import find_plugin, verdicts

    things, refused = find_plugin(plugin)
    found: list[Verdict] = []
    for verdict in verdicts(things, folder):
        if not found or found[-1].thing != verdict.thing:
            echo(f"checking {verdict.thing}", err=True)
        found.append(verdict)
    conforms = not refused and not any(verdict.problem for verdict in found)
    data = {
        "plugin": plugin,
        "conforms": conforms,
        "not_tried": sum(verdict.not_tried is not None for verdict in found),
        "refused": refused,
        "clauses": [verdict._asdict() for verdict in found],
    }
    return Answer(data, _text(found, refused, conforms), 0 if conforms else DOES_NOT_CONFORM)


def _text(found: Sequence["Verdict"], refused: Iterable[str], conforms: bool) -> str:
    """Return the promises of each part, and whether the plugin conforms."""
    lines: list[str] = []
    for thing, own in groupby(found, key=lambda verdict: verdict.thing):
        lines.append(thing)
        for reason, some in groupby(own, key=lambda verdict: verdict.not_tried):
            alike = list(some)
            lines += map(_line, alike) if reason is None else [_untried(len(alike), reason)]
    lines += [f"refused: {reason}" for reason in refused]
    untried = sum(verdict.not_tried is not None for verdict in found)
    end = ("It conforms", ", but") if conforms else ("It does not conform", ", and")
    left_out = f"{end[1]} {_promises(untried)} not tried" if untried else ""
    return "\n".join([*lines, "", f"{end[0]}{left_out}."])


def _line(verdict: "Verdict") -> str:
    on = "" if verdict.device == "cpu" else f" (on {verdict.device})"
    if verdict.problem:
        return f"  BROKEN  {verdict.promise}{on}\n          {verdict.problem}"
    return f"  holds   {verdict.promise}{on}"


def _untried(count: int, reason: str) -> str:
    return f"  not tried  {number_of(count, 'promise')}: {reason}"


def _promises(count: int) -> str:
    return f"{number_of(count, 'promise')} {'was' if count == 1 else 'were'}"
