"""The `gemkit` program: its commands, error messages and exit codes."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import click

from gemkit.cli.allocator import keep_memory
from gemkit.cli.command import echo
from gemkit.cli.ending import MISTAKE, UNREAD, ending_of, flush_streams, is_unread, open_streams
from gemkit.core.memory import memory_explained
from gemkit.plugins.faults import exits_are_faults

# In the order in which a newcomer needs them: name -> module, attribute, line of help.
COMMANDS = {
    "run": ("run", "run", "Search, measure, fine-tune, measure."),
    "resume": ("run", "resume", "Resume an interrupted run."),
    "runs": ("listing", "runs", "List runs and their states."),
    "report": ("report", "report", "Write a page, tables and figures of a study or a run."),
    "check": ("check", "check", "Compare a ticket with controls."),
    "finetune": ("finetune", "finetune", "Train a ticket from its initial weights."),
    "eval": ("finetune", "evaluate", "Measure a ticket without training."),
    "compact": ("compact", "compact", "Remove the channels that a ticket does not use."),
    "bench": ("bench", "bench", "Time a ticket: dense, masked, compact, sparse."),
    "ticket": ("tickets", "ticket", "Show and verify ticket files."),
    "ratios": ("ratios", "ratios", "Find densities for the layers of random tickets."),
    "study": ("study", "study", "Run pruners × densities × seeds × checks."),
    "reproduce": ("reproduce", "reproduce", "Run a figure or table of the paper."),
    "parts": ("listing", "parts", "List parts and their fields."),
    "show": ("listing", "show", "Print a pruner's recipe as TOML."),
    "presets": ("listing", "presets", "List presets, or print one as TOML."),
    "plugins": ("listing", "plugins", "List loaded and refused plugins."),
    "new-plugin": ("authoring", "new_plugin", "Start a plugin of your own."),
    "check-plugin": ("authoring", "check_plugin", "Test a plugin against gemkit's contracts."),
}


class Program(click.Group):
    """A group that imports a command when it is used, and reports errors in one message.

    `commands` holds a stand-in for each command, which has its name and nothing else.
    """

    _pipe: BrokenPipeError | None = None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, text = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"gemkit.cli.{module}"), attribute)
        command.short_help = text
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run a command, and keep its broken pipe, of which click tells nothing."""
        self._pipe = None
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            self._pipe = error
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401 - click's own signature
    ) -> Any:  # noqa: ANN401
        """Run a command; errors of users and plugins end in one message, others in a traceback."""
        inner = partial(super().main, args, prog_name, complete_var, False, **extra)
        if not standalone_mode:
            return inner()
        # Set before torch is loaded. Threads that spin while they wait make a run ten times slower
        # if another program uses the same cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        open_streams()
        keep_memory()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that cannot encode ≤ shows ?
                stream.reconfigure(errors="replace")
        stdout = sys.stdout
        try:
            with exits_are_faults(), memory_explained():
                code: Any = inner()
        except click.exceptions.NoArgsIsHelpError as error:
            with suppress(OSError):
                error.show()
            flush_streams()
            sys.exit(error.exit_code)
        except SystemExit:
            if sys.stdout is stdout:
                raise
            # click replaces it at any broken pipe, also one of a plugin, and exits
            if self._pipe is None or is_unread():
                sys.exit(UNREAD)
            _end(self._pipe)
        except Exception as error:
            _end(error)
        if (problem := flush_streams()) is not None:
            _leave(*(ending_of(problem) or ("", MISTAKE)))
        sys.exit(code if isinstance(code, int) else 0)


def _end(error: Exception) -> NoReturn:
    """End with the message of an exception; a bug is raised again."""
    flush_streams()
    if (ending := ending_of(error)) is None:
        raise error
    _leave(*ending)


def _leave(message: str, code: int) -> NoReturn:
    """Print a message on stderr, if that is possible, and exit."""
    with suppress(OSError):
        echo(f"gemkit: {message}", err=True)
    flush_streams()
    sys.exit(code)


@click.group(
    "gemkit",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Shell completion: eval "$(_GEMKIT_COMPLETE=bash_source gemkit)" (or zsh, fish).',
)
@click.version_option(package_name="gemkit", message="%(prog)s %(version)s")
def main() -> None:
    """Find sparse subnetworks at initialization, with pruners made of interchangeable parts.

    `gemkit run` searches for a ticket, measures it, trains it and measures it again.
    """


for _name in COMMANDS:  # click takes suggestions for a mistyped name from here
    main.add_command(click.Command(_name))
