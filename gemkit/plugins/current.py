"""The registry in which names are looked up while a run or a command is at work.

A part may call `gemkit.importance("name")` or `gemkit.search("name")`. It then finds what the run
around it finds, also in plugin files, and not only what is installed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gemkit.plugins.registry import Registry

_CURRENT: ContextVar[Registry | None] = ContextVar("registry", default=None)


@contextmanager
def in_use(registry: Registry | None) -> Iterator[None]:
    """Look names up in this registry until the end of the block; None changes nothing."""
    token = _CURRENT.set(registry or _CURRENT.get())
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_registry() -> Registry | None:
    """Return the registry of the innermost block, or None outside of all."""
    return _CURRENT.get()
