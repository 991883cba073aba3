"""The page of a report as text; the same records give the same bytes."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

from gemkit.report.groups import Group, densities_of, places_of, series_of
from gemkit.report.judged import Judged, measured
from gemkit.report.overlap import MOST_SEEDS, Overlaps
from gemkit.report.page.data import datasets_of, models_of, page_data
from gemkit.report.paper import (
    CONTROL_CAPTION,
    CONTROL_HEAD,
    caption,
    control_cells,
    notes_of,
    tables,
)
from gemkit.report.quoting import script
from gemkit.report.spread import INTERVAL, figure
from gemkit.sanity.verdicts import LEAST_SEEDS

_SCRIPTS = ("chart.js", "interact.js", "sections.js", "page.js")
_MOST_SETTINGS = 40


class Problem(NamedTuple):
    """A row of the table of what is missing or failed."""

    group: int | None
    cells: tuple[str, ...]


def page(
    title: str,
    summary: str,
    groups: Sequence[Group],
    controls: Sequence[Judged],
    overlaps: Overlaps,
) -> str:
    """Return the page as HTML."""
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=False)
    style = environment.from_string(_asset("page.css")).render()
    code = "\n".join(_asset(name) for name in _SCRIPTS)
    context = {
        "title": title,
        "summary": summary,
        "style": Markup(style),
        "style_hash": _hash(style),
        "code": Markup(code),
        "script_hash": _hash(code),
        "data": Markup(script(page_data(groups, controls))),
        "version": version("gemkit"),
        **_words(groups),
        **_rows(groups, controls, overlaps),
    }
    return environment.from_string(_asset("page.html")).render(context)


def _asset(name: str) -> str:
    return files("gemkit.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source that a content security policy allows for this inline text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _words(groups: Sequence[Group]) -> dict[str, Any]:
    """Return functions, texts and indices for the template."""
    metrics = list(dict.fromkeys(one.metric.name for one in groups))
    return {
        "figure": figure,
        "caption": caption,
        "notes_of": notes_of,
        "percent": lambda density: f"{100 * density:.3g} %",
        "interval": INTERVAL,
        "least_seeds": LEAST_SEEDS,
        "most_seeds": MOST_SEEDS,
        "control_caption": CONTROL_CAPTION,
        "control_head": list(CONTROL_HEAD),
        "metric_title": metrics[0].replace("_", " ").capitalize()
        if len(metrics) == 1
        else "Metric",
        "series_index": {label: number for number, label in enumerate(series_of(groups))},
        "place_index": {place: number for number, place in enumerate(places_of(groups))},
        "density_index": {density: number for number, density in enumerate(densities_of(groups))},
        "filters": [
            ("series", "Method", series_of(groups)),
            ("density", "Density", [f"{100 * one:.3g} %" for one in densities_of(groups)]),
            ("model", "Network", models_of(groups)),
            ("dataset", "Data", datasets_of(groups)),
        ],
    }


def _rows(
    groups: Sequence[Group], controls: Sequence[Judged], overlaps: Overlaps
) -> dict[str, Any]:
    """Return the rows of all tables."""
    index = {id(one): number for number, one in enumerate(groups)}
    names, differing, common = _settings(groups)
    return {
        "groups": groups,
        "tables": tables(groups),
        "controls": [(index[id(one.group)], one, control_cells(one)) for one in controls],
        "positive": sorted({one.check for one in controls if one.verdict.expects == "same"}),
        "measurements": [(index[id(one)], one, summary) for one, summary in measured(groups)],
        "overlaps": _overlap_tables(overlaps, series_of(groups)),
        "seeds": [(index[id(one)], one.label, own) for one in groups for own in one.records],
        "problems": problems(groups, overlaps),
        "lacking": _lacking(groups),
        "differing_names": names,
        "differing": differing,
        "common": common,
    }


def _overlap_tables(overlaps: Overlaps, series: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return place, density, methods and cells of every matrix."""
    found: dict[tuple[Any, float], dict[tuple[str, str], Any]] = {}
    for one in overlaps.found:
        cells = found.setdefault((one.place, one.density), {})
        cells[one.first, one.second] = cells[one.second, one.first] = one
    return [
        (place, density, [name for name in series if any(name in pair for pair in cells)], cells)
        for (place, density), cells in found.items()
    ]


def problems(groups: Sequence[Group], overlaps: Overlaps) -> list[Problem]:
    """List what is missing or failed: seeds, controls, and tickets that cannot be compared."""
    found = []
    for number, one in enumerate(groups):
        for record in one.records:
            where = (one.place.text(), one.label, f"{100 * one.density:.3g} %", str(record.seed))
            if record.state != "done":
                why = record.problem or record.collapse or ""
                found.append(Problem(number, (*where, record.state, why)))
            elif record.collapse:
                found.append(Problem(number, (*where, "collapsed", record.collapse)))
            found += [
                Problem(number, (*where, f"{check} not made", why))
                for check, why in record.unmade.items()
            ]
    return found + [
        Problem(None, ("", "", "", "", "mask overlap", why)) for why in overlaps.problems
    ]


def _lacking(groups: Sequence[Group]) -> str:
    """Say how many results are missing, in one sentence."""
    states = [own.state for one in groups for own in one.records]
    lost = [
        f"{states.count(one)} {one}" for one in ("missing", "failed", "partial") if one in states
    ]
    return f"Of {len(states)} results, {', '.join(lost)}." if lost else ""


def _settings(
    groups: Sequence[Group],
) -> tuple[list[str], list[tuple[Any, ...]], list[tuple[str, str]]]:
    """Return names and rows of the settings that differ, and those that are the same."""
    paths = list(dict.fromkeys(path for one in groups for path in one.settings))
    values = {path: {one.settings.get(path) for one in groups} for path in paths}
    usual = {"density", "recipe.pruner", "recipe.help", "pruner", "model.name", "dataset.name"}
    names = [path for path in paths if len(values[path]) > 1 and path not in usual]
    names = names[:_MOST_SETTINGS]
    rows = [
        (number, one.label, one.density, [one.settings.get(path, "–") for path in names])
        for number, one in enumerate(groups)
    ]
    common = [(path, str(*values[path])) for path in paths if len(values[path]) == 1]
    return names, rows if names else [], common
