"""The `gemkit` program: its commands, and how mistakes and interruptions end."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import click

from gemkit.cli.authoring import check_plugin, new_plugin
from gemkit.cli.check import check
from gemkit.cli.faults import FAULT, fault_of
from gemkit.cli.listing import parts, plugins, presets, show
from gemkit.cli.ratios import ratios
from gemkit.cli.reproduce import reproduce
from gemkit.cli.run import run
from gemkit.cli.runs import resume, runs
from gemkit.cli.screen import echo
from gemkit.cli.speed import bench, compact
from gemkit.cli.tickets import evaluate, finetune, ticket
from gemkit.errors import GemkitError, Stopped


class Program(click.Group):
    """A group that lists commands as they were added and explains mistakes in one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Keep the order in which a newcomer needs them, not the alphabet's."""
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401 - click's own signature
    ) -> Any:  # noqa: ANN401
        """Run a command; what users or plugins cause ends in a message, the rest in a traceback."""
        inner = partial(super().main, args, prog_name, complete_var, False, **extra)
        if not standalone_mode:
            return inner()
        # Before torch is loaded: threads that spin while they wait make a run ten times slower
        # wherever another program wants the same cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal without ≤ shows ? and goes on
                stream.reconfigure(errors="replace")
        try:
            code: Any = inner()
        except GemkitError as error:
            _leave(str(error), 2)
        except Stopped as stop:
            _leave(str(stop), 128 + stop.signal)
        except click.Abort:
            _leave("interrupted", 130)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.UsageError as error:
            _leave(_with_hint(error), error.exit_code)
        except click.ClickException as error:
            _leave(error.format_message(), error.exit_code)
        except Exception as error:
            if (fault := fault_of(error)) is None:
                raise
            _leave(fault, FAULT)
        sys.exit(code if isinstance(code, int) else 0)


def _leave(message: str, code: int) -> NoReturn:
    """Say why on stderr and exit."""
    echo(f"gemkit: {message}", err=True)
    sys.exit(code)


def _with_hint(error: click.UsageError) -> str:
    """Add where the right usage is explained."""
    if error.ctx is None:
        return error.format_message()
    return f"{error.format_message()}\nTry '{error.ctx.command_path} --help'."


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


for _command in (
    *(run, resume, runs, check, finetune, evaluate, compact, bench, ticket, ratios, reproduce),
    *(parts, show, presets, plugins, new_plugin, check_plugin),
):
    main.add_command(_command)
