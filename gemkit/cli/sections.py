"""Options under headings, and bundles of them that several commands share.

Choices and defaults of options are written out where they are defined, because reading them off
the classes they belong to would import torch for `--help`; a test holds the two together.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


class SectionedOption(click.Option):
    """An option that stands under a heading in the help of its command."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help groups its options under headings, in the order of their definition."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for every heading."""
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
    """Give a command options, whose values it receives as one dictionary called `name`."""

    def decorate(command: Function) -> Function:
        @wraps(command)
        def unbundled(**values: Any) -> Any:  # noqa: ANN401
            own = {key: values.pop(key) for key in options}
            return command(**values, **{name: own})

        defined: Function = unbundled
        for define in reversed(list(options.values())):  # click lists the last applied first
            defined = define(defined)
        return defined

    return decorate


def given(name: str) -> bool:
    """Tell whether the user gave an option of the running command, rather than its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT
