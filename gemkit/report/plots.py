"""Figures whose files are the same bytes on every machine and for every user's style."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.core.atomic_io import write_atomic
from gemkit.core.errors import GemkitError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Without a salt, or with a date, drawing the same figure twice would give two different files.
_STYLE: Any = {
    "svg.hashsalt": "gemkit",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}


def check_canvas() -> None:
    """Raise if no figure can be drawn, before its data are computed."""
    with canvas():
        pass


@contextmanager
def canvas() -> Iterator[Callable[[float, float], "Figure"]]:
    """Yield a function that makes an empty figure of a width and a height in inches."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GemkitError(
            "a picture needs matplotlib, which is not installed: pip install 'gemkit[plots]'"
        ) from error
    with style.context(["default", _STYLE]):  # instead of the user's own style
        yield lambda width, height: Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", folder: Path, stem: str, origin: str = "") -> list[Path]:
    """Write STEM.svg and STEM.png and return them; `origin` becomes their description."""
    files = []
    for kind, metadata in _METADATA.items():
        described = {**metadata, "Description": origin} if origin else metadata
        files.append(folder / f"{stem}.{kind}")
        drawn = BytesIO()
        figure.savefig(drawn, format=kind, dpi=150, metadata=described)
        write_atomic(drawn.getvalue(), files[-1])
    return files
