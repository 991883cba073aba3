"""Figures that look the same wherever they are drawn, down to the bytes of their files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.errors import GemkitError
from gemkit.files import put

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Without a salt and with a date, every drawing of the same figure would be another file.
_STYLE: Any = {
    "svg.hashsalt": "gemkit",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}


def check_canvas() -> None:
    """Refuse to go on where no figure can be drawn, before anybody works for what goes there."""
    with canvas():
        pass


@contextmanager
def canvas() -> Iterator[Callable[[float, float], "Figure"]]:
    """Yield a function that makes an empty figure of some width and height, in inches."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GemkitError(
            "a picture needs matplotlib, which is not installed: pip install 'gemkit[plots]'"
        ) from error
    with style.context(["default", _STYLE]):  # whatever the user's own style is
        yield lambda width, height: Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", folder: Path, stem: str, origin: str = "") -> list[Path]:
    """Write STEM.svg and STEM.png, and name them; both carry a text on where they come from."""
    files = []
    for kind, metadata in _METADATA.items():
        told = {**metadata, "Description": origin} if origin else metadata
        files.append(folder / f"{stem}.{kind}")
        drawn = BytesIO()
        figure.savefig(drawn, format=kind, dpi=150, metadata=told)
        put(drawn.getvalue(), files[-1])
    return files
