"""`gemkit new-plugin` and `check-plugin`: for people who write parts of their own."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemkit.cli.options import Answer, SectionedCommand, answers_json, option

if TYPE_CHECKING:
    from gemkit.testing import Verdict

DOES_NOT_CONFORM = 1


@click.command("new-plugin", cls=SectionedCommand, short_help="Start a plugin of your own.")
@click.argument("name")
@option(
    "Output",
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    default=Path(),
    show_default="here",
    help="Where to make the new folder.",
)
def new_plugin(name: str, folder: Path) -> None:
    """Make a complete package gemkit-NAME: scores, a pruner, tests, ready to install.

    It works as it is; replace its importance by your own idea.
    """
    from gemkit.plugins import load_plugins
    from gemkit.scaffold import new_plugin

    made = new_plugin(name, folder, load_plugins())
    click.echo(
        f"made {made}\n\n"
        f"  pip install -e {shlex.quote(str(made))}\n"
        f"  gemkit run --pruner {made.name.removeprefix('gemkit-').replace('-', '_')}\n"
        f"  gemkit check-plugin {made.name}"
    )


@click.command("check-plugin", cls=SectionedCommand, short_help="Hold a plugin to its contracts.")
@click.argument("plugin", metavar="DISTRIBUTION_OR_FILE")
@answers_json
def check_plugin(plugin: str) -> Answer:
    """Try everything gemkit expects of the parts and pruners of a plugin.

    The plugin is an installed distribution (or the name of its entry point), or a Python file.
    What does not hold is shown with the smallest example that shows it. The exit code is 0 when
    all of it holds, 1 when something does not, and 2 when there is no such plugin. Needs
    `pip install 'gemkit[test]'`.
    """
    from gemkit.testing import find_plugin, verdicts

    things, refused = find_plugin(plugin)
    found: list[Verdict] = []
    for verdict in verdicts(things):
        if not found or found[-1].thing != verdict.thing:
            click.echo(f"checking {verdict.thing}", err=True)
        found.append(verdict)
    conforms = not refused and not any(verdict.problem for verdict in found)
    data = {
        "plugin": plugin,
        "conforms": conforms,
        "refused": refused,
        "clauses": [verdict._asdict() for verdict in found],
    }
    return Answer(data, _text(found, refused, conforms), 0 if conforms else DOES_NOT_CONFORM)


def _text(found: Iterable["Verdict"], refused: Iterable[str], conforms: bool) -> str:
    """List the clauses under the things they are about."""
    lines: list[str] = []
    shown = ""
    for verdict in found:
        if verdict.thing != shown:
            lines.append(shown := verdict.thing)
        lines.append(_line(verdict))
    lines += [f"refused: {reason}" for reason in refused]
    return "\n".join([*lines, "", "It conforms." if conforms else "It does not conform."])


def _line(verdict: "Verdict") -> str:
    on = "" if verdict.device == "cpu" else f" (on {verdict.device})"
    if verdict.problem:
        return f"  BROKEN  {verdict.promise}{on}\n          {verdict.problem}"
    if verdict.skipped:
        return f"  not checked  {verdict.promise}{on} {verdict.skipped}"
    return f"  holds   {verdict.promise}{on}"
