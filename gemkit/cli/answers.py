"""What a command found out, for people or for machines."""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import wraps
from typing import Any, NamedTuple

import click

from gemkit.cli.screen import echo
from gemkit.cli.sections import Function, option


class Answer(NamedTuple):
    """What a command found out: data for machines, text for people, and the exit code."""

    data: Mapping[str, Any]
    text: str
    code: int = 0


def answers_json(command: Function) -> Function:
    """Add `--json` to a command that returns an Answer.

    With it, stdout carries that one object and nothing else, whatever a plugin may print.
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
