"""From `-o kind.field=value` to plain data."""

import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from gemkit.errors import OptionError, did_you_mean

Fields = dict[str, dict[str, Any]]
"""Kind -> field -> value; fields without a kind stand under the empty name, where allowed."""


def sort_fields(texts: Iterable[str], kinds: Sequence[str]) -> Fields:
    """Split the texts and file every value under its kind; a later one wins over an earlier one."""
    fields: Fields = {kind: {} for kind in kinds}
    for text in texts:
        path, equals, value = text.partition("=")
        kind, _, field = path.strip().rpartition(".")
        if not equals or not field or (not kind and "" not in kinds):
            example = "regularizer.weight=1e-3" if "regularizer" in kinds else "model.width=8"
            raise OptionError(f"-o {text}: write kind.field=value, for example -o {example}")
        if kind not in fields:
            raise OptionError(
                f"-o {text}: there is no kind '{kind}'{did_you_mean(kind, filter(None, kinds))}"
            )
        fields[kind][field] = parse_value(value.strip())
    return fields


def parse_value(text: str) -> Any:  # noqa: ANN401 - any TOML value
    """Read a value as TOML has it (1e-4, true, [0.5, 0.75]); anything else is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break could smuggle in a second key.
    return parsed["value"] if len(parsed) == 1 else text
