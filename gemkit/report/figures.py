"""The figures of a report for a paper, by matplotlib; equal records give equal bytes."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.report.groups import Group, Place, densities_of, places_of, series_of
from gemkit.report.judged import Judged
from gemkit.report.plots import Styles, canvas, density_axis, legend, save, styles_of
from gemkit.report.quoting import plot
from gemkit.report.spread import Spread
from gemkit.training.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOMENTS = {"before": "before fine-tuning", "after": "after fine-tuning"}
_MOST = 6
"""Densities that have a panel of their own."""
_DODGE = 1.025
"""The factor between the places of two series on the density axis, so that marks do not hide."""

Fill = Callable[["Figure", Sequence[Group], Styles], None]


def draw_report(
    groups: Sequence[Group], controls: Sequence[Judged], folder: Path, kinds: Sequence[str]
) -> list[Path]:
    """Draw all figures that the records suffice for, one set for each place."""
    files: list[Path] = []
    places = places_of(groups)
    styles = styles_of(plot(label) for label in series_of(groups))
    with canvas() as new_figure, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        for number, place in enumerate(places, 1):
            own = [one for one in groups if one.place == place]
            for name, width, height, fill, subjects in _plan(own, controls, place):
                if subjects:
                    folder.mkdir(parents=True, exist_ok=True)
                    figure = new_figure(width, height)
                    fill(figure, subjects, styles)
                    stem = name if len(places) == 1 else f"{name}-{number}"
                    files += save(figure, folder, stem, _origin(subjects), kinds)
    return files


def _plan(
    groups: Sequence[Group], controls: Sequence[Judged], place: Place
) -> list[tuple[str, float, float, Fill, list[Group]]]:
    """List name, size, function and groups of every figure of a place."""
    rows = [one for one in controls if one.group.place == place]
    judged = list({id(one.group): one.group for one in rows}.values())
    curves = [one for one in groups if _has_curves(one)]
    searched = [one for one in groups if one.curve("search", lambda moment: moment.density)]
    layered = [one for one in groups if one.layers()]
    wide = 2.4 + 2.4 * min(_MOST, len(densities_of(groups)))
    return [
        ("accuracy", 7.2, 3.2, _accuracy, [one for one in groups if one.measured]),
        ("controls", 6.4, 1.1 + 0.24 * len(rows), lambda *own: _controls(own[0], rows), judged),
        ("layers", wide, 3.0, _layers, layered),
        ("convergence", wide, 3.0, _convergence, curves),
        ("lambda", wide, 4.4, _strength, searched),
        ("cost", 4.8, 3.2, _cost, [one for one in groups if one.measured and _cost_of(one)]),
    ]


def _origin(groups: Iterable[Group]) -> str:
    """Return a hash of the records, stored in the figures to detect outdated ones."""
    text = "\n".join(own.model_dump_json() for one in groups for own in one.records)
    return f"records sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _has_curves(group: Group) -> bool:
    return any(one.curves.search or one.curves.finetune for one in group.records)


def _factor(metric: Metric) -> float:
    return 100.0 if metric.share else 1.0


def _name(metric: Metric) -> str:
    return plot(f"{metric.name}, %" if metric.share else metric.name)


def _errors(spreads: Sequence[Spread], factor: float) -> list[float]:
    """Return half intervals; where there is none, nothing is drawn."""
    return [float("nan") if one.half is None else factor * one.half for one in spreads]


def _by_series(groups: Sequence[Group]) -> Iterable[tuple[str, list[Group]]]:
    for label in series_of(groups):
        own = [one for one in groups if one.label == label]
        yield plot(label), sorted(own, key=lambda one: one.actual)


def _accuracy(figure: "Figure", groups: Sequence[Group], styles: Styles) -> None:
    """Plot the metric against the actual density, before and after fine-tuning."""
    panels = figure.subplots(1, 2, sharey=True)
    metric, count = groups[0].metric, len(series_of(groups))
    for axes, (moment, title) in zip(panels, _MOMENTS.items(), strict=True):
        for number, (label, own) in enumerate(_by_series(groups)):
            shift = _DODGE ** (number - (count - 1) / 2)
            known = [(one, spread) for one in own if (spread := one.spread(moment)) is not None]
            spreads = [spread for _, spread in known]
            axes.errorbar(
                [100 * max(one.actual, 1e-9) * shift for one, _ in known],
                [_factor(metric) * one.mean for one in spreads],
                yerr=_errors(spreads, _factor(metric)),
                **(styles[label] | {"capsize": 2, "label": label, "markersize": 4, "lw": 1.2}),
            )
        density_axis(axes, densities_of(groups))
        axes.set_title(title, loc="left")
    panels[0].set_ylabel(f"test {_name(metric)}")
    legend(figure, panels)


def _controls(figure: "Figure", rows: Sequence[Judged]) -> None:
    """Plot by how much every control is worse, with its interval, and the margin."""
    axes: Axes = figure.subplots()
    metric = rows[0].group.metric
    factor = _factor(metric)
    for place, one in enumerate(rows):
        drop = factor * one.verdict.drop
        axes.plot([drop], [place], "o", color="#0072b2", markersize=4)
        if one.verdict.interval is not None:
            axes.plot([factor * end for end in one.verdict.interval], [place] * 2, color="#0072b2")
    names = [f"{one.group.label} {100 * one.group.density:g} %: {one.check}" for one in rows]
    axes.set_yticks(range(len(rows)), [plot(name) for name in names])
    axes.invert_yaxis()
    axes.axvline(0, color="0.6", lw=0.8)
    axes.axvline(factor * rows[0].verdict.margin, color="0.3", lw=0.8, ls="--")
    unit = "percentage points" if metric.share else plot(metric.name)
    axes.set_xlabel(f"control worse than its ticket by, {unit}")
    axes.grid(axis="x", alpha=0.3)


def _panels(figure: "Figure", groups: Sequence[Group], rows: int = 1) -> tuple[Any, list[float]]:
    """Return panels for the densities, at most so many as fit, and the densities."""
    shown = densities_of(groups)[-_MOST:]
    panels = figure.subplots(rows, len(shown), sharex=True, sharey="row", squeeze=False)
    for axes, density in zip(panels[0], shown, strict=True):
        axes.set_title(f"density {100 * density:g} %", loc="left")
    return panels, shown


def _layers(figure: "Figure", groups: Sequence[Group], styles: Styles) -> None:
    """Plot the density of each layer, one panel for each target."""
    panels, shown = _panels(figure, groups)
    for axes, density in zip(panels[0], shown, strict=True):
        for one in (one for one in groups if one.density == density):
            shares = [100 * share for _, share in one.layers()]
            label = plot(one.label)
            x = range(1, 1 + len(shares))
            axes.plot(x, shares, label=label, markersize=3, lw=1, **styles[label])
        axes.set_yscale("log", nonpositive="mask")
        axes.set_xlabel("layer")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("weights kept, %")
    legend(figure, panels[0])


def _convergence(figure: "Figure", groups: Sequence[Group], styles: Styles) -> None:
    """Plot the validation metric over search and fine-tuning, which starts at the line."""
    panels, shown = _panels(figure, groups)
    factor = _factor(groups[0].metric)
    longest = max(_length(one) for one in groups)
    for axes, density in zip(panels[0], shown, strict=True):
        for one in (one for one in groups if one.density == density):
            for phase, start in (("search", longest - _length(one)), ("finetune", longest)):
                curve = one.curve(phase, lambda moment: moment.metric)
                label = plot(one.label)
                style = {**styles[label], "markevery": max(1, len(curve) // 6), "markersize": 3}
                x = [start + epoch for epoch, _ in curve]
                y = [factor * spread.mean for _, spread in curve]
                axes.plot(x, y, label=label, lw=1, **style)
        axes.axvline(longest, color="0.5", lw=0.8)
        axes.set_xlabel("epochs: search | fine-tuning")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"validation {_name(groups[0].metric)}")
    legend(figure, panels[0])


def _length(group: Group) -> float:
    return max((own.epoch for one in group.records for own in one.curves.search), default=0.0)


def _strength(figure: "Figure", groups: Sequence[Group], styles: Styles) -> None:
    """Plot the density of the mask with its bound, dotted, and λ below it."""
    panels, shown = _panels(figure, groups, 2)
    for column, density in enumerate(shown):
        above, below = panels[0][column], panels[1][column]
        for one in (one for one in groups if one.density == density):
            _search(above, below, one, styles[plot(one.label)])
        above.set_yscale("log")
        below.set_xlabel("epochs of the search")
        for axes in (above, below):
            axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("weights in the mask, %")
    panels[1][0].set_ylabel("λ")
    legend(figure, panels[0])


def _search(above: "Axes", below: "Axes", group: Group, style: dict[str, Any]) -> None:
    curve = group.curve("search", lambda moment: moment.density)
    strength = group.curve("search", lambda moment: moment.strength)
    drawn = {**style, "markersize": 3, "lw": 1.2, "markevery": max(1, len(curve) // 8)}
    x, y = [epoch for epoch, _ in curve], [100 * own.mean for _, own in curve]
    above.plot(x, y, label=plot(group.label), **drawn)
    if bound := group.bound():
        ends = [*bound, (max(x[-1], bound[-1][0]), bound[-1][1])]
        epochs, densities = zip(*ends, strict=True)
        above.step(
            epochs, [100 * one for one in densities], where="post", ls=":", color=style["color"]
        )
    below.plot([epoch for epoch, _ in strength], [own.mean for _, own in strength], **drawn)


def _cost_of(group: Group) -> Spread | None:
    return group.spread("cpu_seconds") or group.spread("seconds")


def _cost(figure: "Figure", groups: Sequence[Group], styles: Styles) -> None:
    """Plot the metric after fine-tuning against seconds."""
    axes: Axes = figure.subplots()
    factor = _factor(groups[0].metric)
    for label, own in _by_series(groups):
        pairs = [(_cost_of(one), one.spread("after")) for one in own]
        known = [(cost, after) for cost, after in pairs if cost is not None and after is not None]
        axes.errorbar(
            [cost.mean for cost, _ in known],
            [factor * after.mean for _, after in known],
            yerr=_errors([after for _, after in known], factor),
            **(styles[label] | {"capsize": 2, "label": label, "ls": "", "markersize": 5}),
        )
    axes.set_xscale("log")
    cpu = all(one.spread("cpu_seconds") is not None for one in groups)
    axes.set_xlabel("CPU seconds" if cpu else "seconds")
    axes.set_ylabel(f"test {_name(groups[0].metric)} after")
    axes.grid(alpha=0.3)
    legend(figure, [axes])
