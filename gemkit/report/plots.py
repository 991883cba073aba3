"""Figures whose files are the same bytes on every machine and for every user's style.

Series differ in colour and in marker, so that figures can be read without colour.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.core.atomic_io import write_atomic
from gemkit.core.errors import GemkitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""
MARKERS = "os^Dvpx*"
"""One more than colours, so that 56 series look different."""
Styles = dict[str, dict[str, Any]]

# Without a salt, or with a date, drawing the same figure twice would give two different files.
_STYLE: Any = {
    "svg.hashsalt": "gemkit",
    "pdf.fonttype": 42,  # conferences refuse Type 3 fonts
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}
_DESCRIPTION = {"svg": "Description", "pdf": "Subject", "png": "Description"}


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


def save(
    figure: "Figure",
    folder: Path,
    stem: str,
    origin: str = "",
    kinds: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Write STEM.svg, STEM.png or STEM.pdf and return them; `origin` becomes their description."""
    files = []
    for kind in kinds:
        metadata = _METADATA[kind]
        described = {**metadata, _DESCRIPTION[kind]: origin} if origin else metadata
        files.append(folder / f"{stem}.{kind}")
        drawn = BytesIO()
        figure.savefig(drawn, format=kind, dpi=150, metadata=described)
        write_atomic(drawn.getvalue(), files[-1])
    return files


def styles_of(names: Iterable[str]) -> Styles:
    """Return a colour and a marker for each series."""
    marks = zip(dict.fromkeys(names), cycle(COLOURS), cycle(MARKERS), strict=False)
    return {name: {"color": colour, "marker": marker} for name, colour, marker in marks}


def density_axis(axes: "Axes", densities: Sequence[float]) -> None:
    """Set up a log axis of densities in percent, with ticks at these ones."""
    axes.set_xscale("log")
    axes.set_xticks([100 * one for one in densities], [f"{100 * one:g}" for one in densities])
    axes.minorticks_off()
    axes.set_xlabel("weights kept, %")
    axes.grid(alpha=0.3)


def legend(figure: "Figure", panels: Iterable["Axes"]) -> None:
    """Add the legend of some panels beside the figure, each label once."""
    once: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        once |= {
            label: own for label, own in zip(labels, handles, strict=True) if label not in once
        }
    if once:
        figure.legend(list(once.values()), list(once), frameon=False, loc="outside right upper")
