"""Write a report: the page, tables and figures, and one line about them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gemkit.core.atomic_io import write_atomic
from gemkit.core.errors import GemkitError, OptionError, StorageError, did_you_mean
from gemkit.core.text import escaped, number_of
from gemkit.report.captions import captions
from gemkit.report.figures import draw_report
from gemkit.report.groups import Group, densities_of, group, places_of, series_of
from gemkit.report.judged import judged
from gemkit.report.overlap import overlaps
from gemkit.report.page.render import page
from gemkit.report.paper import latex_tables, markdown_tables
from gemkit.report.plots import check_canvas
from gemkit.report.records import records_from
from gemkit.report.sheets import group_sheet, record_sheet
from gemkit.sanity.check import Expected
from gemkit.sanity.verdicts import MARGIN

TEXTS = ("html", "csv", "jsonl", "md", "tex")
PICTURES = ("svg", "pdf", "png")
FORMATS = (*TEXTS, *PICTURES)


class Report(NamedTuple):
    """What was written, a line about it, and what could not be written."""

    files: tuple[Path, ...]
    summary: str
    note: str = ""


def formats_of(text: str) -> tuple[str, ...]:
    """Return the formats that a comma-separated text names; refuse unknown ones."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise OptionError(
                f"unknown format '{name}'{did_you_mean(name, FORMATS)}; there are {known}"
            )
    if not names:
        raise OptionError(f"name at least one format: {', '.join(FORMATS)}")
    return names


def write_report(
    data: Sequence[Mapping[str, Any]],
    root: Path,
    out: Path,
    *,
    title: str,
    formats: Sequence[str] | None = None,
    margin: float = MARGIN,
    expects: Mapping[str, Expected] | None = None,
) -> Report:
    """Write the report of some records to a folder.

    Tickets are read below `root`. Without `formats` it writes all of them, and leaves out figures
    if matplotlib is not installed. `expects` names the controls that should be as good as the
    ticket.
    """
    note = _missing_canvas(required=formats is not None and bool({*formats} & {*PICTURES}))
    chosen = FORMATS if formats is None else tuple(formats)
    groups = group(records_from(data))
    if not groups:
        raise OptionError(f"{root} has no results to report; run something first")
    controls = judged(groups, margin, expects)
    line, title = summary(groups), escaped(title)
    texts: dict[str, dict[str, Callable[[], str]]] = {
        "html": {
            "report.html": lambda: page(title, line, groups, controls, overlaps(groups, root))
        },
        "csv": {
            "records.csv": lambda: record_sheet(groups),
            "groups.csv": lambda: group_sheet(groups, controls),
        },
        "jsonl": {"records.jsonl": lambda: "".join(f"{json.dumps(one)}\n" for one in data)},
        "md": {"tables.md": lambda: markdown_tables(groups, controls, title)},
        "tex": {"tables.tex": lambda: latex_tables(groups, controls, title)},
    }
    files: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for kind in TEXTS:
            if kind in chosen:
                for name, make in texts[kind].items():
                    write_atomic(make().encode("utf-8", "replace"), out / name)
                    files.append(out / name)
        pictures = () if note else [kind for kind in PICTURES if kind in chosen]
        if pictures:
            drawn = draw_report(groups, controls, out / "figures", pictures)
            if drawn:
                files += [*drawn, out / "figures" / "captions.md"]
                write_atomic(captions(drawn, groups).encode("utf-8", "replace"), files[-1])
    except OSError as error:
        raise StorageError(
            f"cannot write the report to {out}: {error.strerror or error}; choose another folder "
            "with --out"
        ) from error
    return Report(tuple(files), line, note)


def _missing_canvas(*, required: bool) -> str:
    """Return why no figures can be drawn, or nothing; raise if they are required."""
    try:
        check_canvas()
    except GemkitError as error:
        if required:
            raise
        return f"no figures were drawn: {error}"
    return ""


def summary(groups: Sequence[Group]) -> str:
    """Return one line: what was compared, how much of it is there, and the best at the sparsest."""
    records = [one for own in groups for one in own.records]
    done = sum(one.after is not None for one in records)
    methods, densities = series_of(groups), densities_of(groups)
    seeds = sorted({len(one.records) for one in groups})
    size = " × ".join(
        (
            number_of(len(methods), "method"),
            number_of(len(densities), "density", "densities"),
            ("" if len(seeds) == 1 else f"{seeds[0]} to ") + number_of(seeds[-1], "seed"),
        )
    )
    places = places_of(groups)
    where = places[0].text() if len(places) == 1 else f"{len(places)} networks and data sets"
    best = _best(groups) if len(places) == 1 else ""
    return f"{done} of {number_of(len(records), 'result')}: {size} on {where}{best}."


def _best(groups: Sequence[Group]) -> str:
    """Return the best method at the lowest density that has results."""
    metric = groups[0].metric
    known = [(one, after) for one in groups if (after := one.spread("after")) is not None]
    if not known:
        return ""
    sparsest = min(one.density for one, _ in known)
    rivals = [(one, after) for one, after in known if one.density == sparsest]
    best, after = min(rivals, key=lambda rival: metric.error(rival[1].mean))
    unit = " %" if metric.share else f" {metric.name}"
    return (
        f"; {'best ' * (len(rivals) > 1)}at {100 * sparsest:g} %: {best.label} with "
        f"{after.text(metric)}{unit} after fine-tuning (n {after.n})"
    )
