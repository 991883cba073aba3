"""How commands are defined: options under headings, answers as text or JSON, safe output.

Choices and defaults are written out where an option is defined: reading them from the classes they
belong to would import torch for `--help`. A test compares the two.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gemkit.core.atomic_io import check_writable
from gemkit.core.errors import OptionError
from gemkit.core.text import escaped, number_of

if TYPE_CHECKING:
    from gemkit.plugins.registry import Registry

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

_LONGEST = 20_000
"""Characters of one message on stderr."""


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text with control characters escaped; cut off a message on stderr that is too long."""
    if err and len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} … and {len(text) - _LONGEST:,} characters more"
    click.echo(escaped(text, keep="\n\t"), err=err, nl=nl)


def split_text(count: int | None, split: str) -> str:
    """Return how many images a split has, unless a stream does not know."""
    return f"the {split} images" if count is None else number_of(count, f"{split} image")


class SectionedOption(click.Option):
    """An option listed under a heading in the help of its command."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help groups its options under headings, in the order of their definition."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for each heading."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in options:
            record = one.get_help_record(ctx)
            if record:
                sections.setdefault(getattr(one, "section", "Other"), []).append(record)
        sections["Other"] = sections.pop("Other")  # last; --help is always there
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option(section: str, *names: str, **settings: Any) -> Decorator:  # noqa: ANN401
    """Define an option under a heading; its default is shown."""
    settings.setdefault("show_default", True)
    return click.option(*names, cls=SectionedOption, section=section, **settings)


def bundle(name: str, options: Mapping[str, Decorator]) -> Decorator:
    """Give a command options whose values it receives as one dictionary called `name`."""

    def decorate(command: Function) -> Function:
        @wraps(command)
        def unbundled(**values: Any) -> Any:  # noqa: ANN401
            own = {key: values.pop(key) for key in options}
            return command(**values, **{name: own})

        return chain(options.values())(unbundled)

    return decorate


def chain(decorators: Iterable[Decorator]) -> Decorator:
    """Combine decorators; the options of the first are listed first."""

    def decorate(command: Function) -> Function:
        for define in reversed(list(decorators)):  # click lists what was applied last first
            command = define(command)
        return command

    return decorate


def given(name: str) -> bool:
    """Tell whether the user gave an option of the running command, rather than its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def check_folder(folder: Path, name: str) -> None:
    """Refuse a folder that cannot be written, before the work for it; `name` is its option."""
    try:
        check_writable(folder)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(
            f"cannot write to {folder}: {reason}; choose another with {name}"
        ) from error


def load_registry(files: Sequence[Path]) -> Registry:
    """Load all plugins, with these files; parts that the command calls find them, too."""
    from gemkit.plugins.current import in_use
    from gemkit.plugins.loader import load_plugins

    registry = load_plugins(files=files)
    click.get_current_context().with_resource(in_use(registry))
    return registry


class Number(click.FloatRange):
    """A finite number within bounds; click's own range accepts `nan`."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Parse a number; refuse NaN and infinity."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Answer(NamedTuple):
    """What a command returns: data for `--json`, text for people, and the exit code."""

    data: Mapping[str, Any]
    text: str
    code: int = 0


def answers_json(command: Function) -> Function:
    """Add `--json` to a command that returns an Answer.

    With `--json`, stdout carries that one object and nothing else, even if a plugin prints.
    """

    @option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @wraps(command)
    def answered(*, as_json: bool, **values: Any) -> None:  # noqa: ANN401
        if as_json:
            with redirect_stdout(sys.stderr):
                answer = command(**values)
            echo(json.dumps(answer.data, allow_nan=False))
        else:
            answer = command(**values)
            echo(answer.text)
        if answer.code:
            raise click.exceptions.Exit(answer.code)

    return answered
