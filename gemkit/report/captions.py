"""What the figures of a report show, in words for a paper."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gemkit.core.text import number_of
from gemkit.report.groups import Group, Place, places_of
from gemkit.report.quoting import markdown
from gemkit.report.spread import INTERVAL
from gemkit.sanity.verdicts import LEAST_SEEDS

_BARS = f"Bars are the {INTERVAL}; there are none with fewer than {number_of(LEAST_SEEDS, 'seed')}."
_TEXTS = {
    "accuracy": f"Test {{metric}} before and after fine-tuning against the actual density. {_BARS}",
    "controls": "By how much controls are worse than their tickets after fine-tuning, in test "
    f"{{metric}}, paired over seeds. Lines are the {INTERVAL}; the dashed one is the margin.",
    "layers": "The density of every prunable layer, from input to output, mean over seeds.",
    "convergence": "Validation {metric} after every epoch of search and fine-tuning, mean over "
    "seeds; the vertical line is where fine-tuning starts.",
    "lambda": "Above: the density of the mask after every epoch of the search, mean over seeds, "
    "and dotted the density that its freezes allow. Below: the strength λ of the penalty.",
    "cost": "Test {metric} after fine-tuning against the seconds of search and fine-tuning, of the "
    "processor where they are known. " + _BARS,
}


def captions(files: Iterable[Path], groups: Sequence[Group]) -> str:
    """Return a caption for each drawn figure, as Markdown."""
    places = places_of(groups)
    parts = ["# Captions"]
    for stem in dict.fromkeys(file.stem for file in files):
        name, _, number = stem.partition("-")
        place = places[int(number) - 1 if number else 0]
        own = [one for one in groups if one.place == place]
        parts.append(f"**{stem}.** {markdown(caption(name, place, own))}")
    return "\n\n".join(parts) + "\n"


def caption(figure: str, place: Place, groups: Sequence[Group]) -> str:
    """Return the caption of one figure: network, data, metric, what bars are, and n."""
    metric = groups[0].metric
    name = f"{metric.name} in percent" if metric.share else metric.name
    text = _TEXTS[figure].replace("{metric}", name)
    return f"{place.model} on {place.dataset}. {text} {_seeds(groups)}"


def _seeds(groups: Sequence[Group]) -> str:
    """Say over how many seeds with a result means are taken."""
    counts = sorted({len(one.measured) for one in groups if one.measured})
    if not counts:
        return "No seed has a result yet."
    least = "" if len(counts) == 1 else f"{counts[0]} to "
    return f"{least}{number_of(counts[-1], 'seed')}."
