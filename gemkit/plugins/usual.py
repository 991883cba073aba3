"""The registry in which a call of the Python API looks names up."""

import os
from functools import cache

from gemkit.plugins.current import current_registry
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry


def usual_registry() -> Registry:
    """Return the registry of the run around this call, or the installed plugins.

    Those are loaded once per value of GEMKIT_PLUGINS.
    """
    return current_registry() or _loaded(os.environ.get("GEMKIT_PLUGINS"))


@cache
def _loaded(restriction: str | None) -> Registry:
    return load_plugins()
