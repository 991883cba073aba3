"""Many runs: grids of configurations, stages cached by content, executors, records.

`Study` and `load` are imported on first use, since ledgers need neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemkit.study.study import Study, load

__all__ = ["Study", "load"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a public name
    if name not in __all__:
        raise AttributeError(f"module 'gemkit.study' has no attribute '{name}'")
    return getattr(import_module("gemkit.study.study"), name)
