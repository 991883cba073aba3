"""What the script of the page draws, as plain data; shares are in percent."""

from collections.abc import Sequence
from typing import Any

from gemkit.report.groups import Group, Place, densities_of, places_of, series_of
from gemkit.report.judged import Judged
from gemkit.report.spread import Spread
from gemkit.report.verdicts import worded
from gemkit.training.metrics import Metric

_POINTS = 160
"""Points of a curve; longer ones are thinned out."""
_BRIEF = (
    *("recipe.regularizer.name", "recipe.regularizer.weight", "recipe.schedule.name"),
    *("search.epochs", "search.optimizer", "search.lr", "search.batch_size"),
    *("finetune.epochs", "finetune.lr"),
)
COSTS = {
    "epochs": ("search_epochs", "epochs of the search"),
    "cpu": ("cpu_seconds", "CPU seconds"),
    "seconds": ("seconds", "seconds"),
}


def page_data(groups: Sequence[Group], controls: Sequence[Judged]) -> dict[str, Any]:
    """Return everything that charts and filters need."""
    series, places, densities = series_of(groups), places_of(groups), densities_of(groups)
    layers: dict[tuple[str, ...], int] = {}
    drawn = [_group(one, series, places, densities, layers) for one in groups]
    index = {id(one): number for number, one in enumerate(groups)}
    return {
        "series": series,
        "places": [_place(one, groups) for one in places],
        "densities": densities,
        "groups": drawn,
        "layers": [list(names) for names in layers],
        "controls": [_control(one, index[id(one.group)]) for one in controls],
        "costs": {
            name: label
            for name, (field, label) in COSTS.items()
            if any(one.spread(field) is not None for one in groups)
        },
    }


def models_of(groups: Sequence[Group]) -> list[str]:
    """Return the networks in the order in which they appear."""
    return list(dict.fromkeys(one.place.model for one in groups))


def datasets_of(groups: Sequence[Group]) -> list[str]:
    """Return the data sets in the order in which they appear."""
    return list(dict.fromkeys(one.place.dataset for one in groups))


def _place(place: Place, groups: Sequence[Group]) -> dict[str, Any]:
    metric = next(one.metric for one in groups if one.place == place)
    return {
        "title": place.text(),
        "model": place.model,
        "dataset": place.dataset,
        "m": models_of(groups).index(place.model),
        "k": datasets_of(groups).index(place.dataset),
        "metric": metric.name,
        "share": metric.share,
    }


def _group(
    group: Group,
    series: Sequence[str],
    places: Sequence[Place],
    densities: Sequence[float],
    layers: dict[tuple[str, ...], int],
) -> dict[str, Any]:
    metric, own = group.metric, group.layers()
    names = tuple(name for name, _ in own)
    return {
        "s": series.index(group.label),
        "p": places.index(group.place),
        "d": densities.index(group.density),
        "x": _number(group.actual),
        "b": _spread(group.spread("before"), metric),
        "a": _spread(group.spread("after"), metric),
        "c": brief(group),
        "q": ", ".join(filter(None, (group.collapsed, group.lacking))),
        "seeds": [
            [one.seed, _value(one.before, metric), _value(one.after, metric)]
            for one in group.records
            if one.before is not None and one.after is not None
        ],
        "cost": {
            name: _spread(spread)
            for name, (field, _) in COSTS.items()
            if (spread := group.spread(field)) is not None
        },
        "l": [layers.setdefault(names, len(layers)), [_number(share) for _, share in own]]
        if own
        else None,
        **_curves(group, metric),
    }


def _curves(group: Group, metric: Metric) -> dict[str, Any]:
    measured = [
        [
            [_number(epoch), *(_spread(spread, metric) or ())]
            for epoch, spread in thinned(group.curve(phase, lambda moment: moment.metric))
        ]
        for phase in ("search", "finetune")
    ]
    density = thinned(group.curve("search", lambda moment: moment.density))
    strength = thinned(group.curve("search", lambda moment: moment.strength))
    return {
        "cv": measured,
        "den": [[_number(epoch), _number(own.mean), own.n] for epoch, own in density],
        "lam": [[_number(epoch), _number(own.mean), own.n] for epoch, own in strength],
        "bound": [[_number(epoch), _number(share)] for epoch, share in group.bound()],
    }


def _control(one: Judged, group: int) -> dict[str, Any]:
    metric, verdict = one.group.metric, one.verdict
    low, high = verdict.interval or (None, None)
    return {
        "g": group,
        "check": one.check,
        "drop": _value(verdict.drop, metric),
        "low": _value(low, metric),
        "high": _value(high, metric),
        "n": verdict.seeds,
        "margin": _value(verdict.margin, metric),
        "verdict": worded(verdict),
    }


def thinned(curve: Sequence[tuple[float, Spread]]) -> list[tuple[float, Spread]]:
    """Return at most so many points of a curve that a chart can show, the last one included."""
    step = -(-len(curve) // _POINTS)
    return [
        one
        for number, one in enumerate(curve, 1)
        if number % max(1, step) == 0 or number == len(curve)
    ]


def brief(group: Group) -> str:
    """Return the settings that a reader looks for first, for a tooltip."""
    known = [(path, group.settings[path]) for path in _BRIEF if path in group.settings]
    return ", ".join(f"{path.removeprefix('recipe.')} {value}" for path, value in known)


def _spread(spread: Spread | None, metric: Metric | None = None) -> list[float | None] | None:
    if spread is None:
        return None
    return [_value(spread.mean, metric), _value(spread.half, metric), spread.n]


def _value(value: float | None, metric: Metric | None) -> float | None:
    """Return a number in the unit of the charts."""
    if value is None:
        return None
    return _number(100 * value if metric is not None and metric.share else value)


def _number(value: float) -> float:
    """Return a number with the digits that a chart can show."""
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) and abs(short) < 1e9 else short
