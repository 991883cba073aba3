"""In which settings two configurations differ."""

from collections.abc import Mapping
from typing import Any


def differences(there: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> list[str]:
    """List the settings in which two configurations differ."""
    found = []
    for name in dict.fromkeys([*there, *here]):
        one, other = there.get(name), here.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{path}{name}.")
        elif one != other:
            old, new = ("not set" if value is None else repr(value) for value in (one, other))
            found.append(f"{path}{name} is {old} there and {new} here")
    return found
