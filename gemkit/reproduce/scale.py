"""Scale a preset down, so that its table fits a smaller machine."""

import math
from typing import Any, NamedTuple

from gemkit.core.errors import OptionError
from gemkit.parts.scores import LearnedScores
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset, merged, preset_from
from gemkit.reproduce.datasets import DATASETS, table_of_part
from gemkit.training.plan import Plan

LEAST_IMAGES, LEAST_WIDTH = 1_000, 4


class Scale(NamedTuple):
    """`time` is the fraction of epochs and of images, `width` the fraction of channels.

    `synthetic` runs are as small as possible, on images that are made up.
    """

    time: float = 1.0
    width: float = 1.0
    synthetic: bool = False


class Least(NamedTuple):
    """The fewest epochs of a phase, and between two freezes."""

    epochs: int = 4
    period: int = 2


def scaled(preset: Preset, scale: Scale, registry: Registry, rate: float = 1.0) -> Preset:
    """Return the preset with fewer epochs, images and channels.

    The periods between freezes (at least two epochs) and the points to rewind to scale with the
    epochs. A search lasts a whole number of periods, as 150 epochs are 30 periods of 5, so that the
    authors' timing leaves scores some time after the last freeze. Learning rates of weights do not
    change. Those of scores that SGD learns are left open: fewer steps need larger ones, and the
    search sets them by its number of steps. A preset whose rate is `rate` times the usual one gets
    as many times the rate for its steps.
    """
    data = preset.to_data()
    if scale.time != 1:
        own = table_of_part(preset.dataset)
        images = DATASETS[own["name"]].images if own["name"] in DATASETS else 0
        limit = max(LEAST_IMAGES, round(images * scale.time))
        data["dataset"] = own | ({"limit": limit} if images else {})
        data = shortened(preset, data, scale.time, registry, Least())
        data = with_score_rate(preset, data, registry, rate, limit)
    if scale.width != 1:
        data["model"] = narrower(preset.model, scale.width, registry)
    return preset_from("scaled", data)


def shortened(
    preset: Preset, data: dict[str, Any], time: float, registry: Registry, least: Least
) -> dict[str, Any]:
    """Return the data of a preset with fewer epochs, shorter periods and earlier rewinding."""
    recipe = preset.made(registry)
    every = getattr(recipe.schedule, "every", None) if recipe.schedule.trains else None
    period = 1 if every is None else max(least.period, round(every * time))
    own = table_of_part(preset.recipe.get("schedule", {}))
    changes: dict[str, Any] = {"schedule": own | {"every": period}} if every else {}
    if recipe.rewind.happens:
        moments = recipe.rewind.model_dump(exclude_none=True)
        changes["rewind"] = {name: round(moment * time, 4) for name, moment in moments.items()}
    return merged(
        data,
        {
            "search": {"epochs": math.ceil(_epochs(preset.search, time, least) / period) * period},
            "finetune": {"epochs": _epochs(preset.finetune, time, least)},
            "recipe": changes,
        },
    )


def _epochs(plan: Plan, time: float, least: Least) -> int:
    return min(plan.epochs, max(least.epochs, round(plan.epochs * time)))


def with_score_rate(
    preset: Preset, data: dict[str, Any], registry: Registry, rate: float, images: int
) -> dict[str, Any]:
    """Leave the learning rate of scores open, or set `rate` times the default for the steps."""
    scores = preset.made(registry).scores
    if not isinstance(scores, LearnedScores) or preset.search.optimizer != "sgd":
        return data
    search = {key: value for key, value in data["search"].items() if key != "lr"}
    if rate != 1:
        batch = search.get("batch_size", preset.search.batch_size)
        steps = search["epochs"] * math.ceil(images / batch)
        search["lr"] = rate * scores.default_lr(steps)
    return {**data, "search": search}


def narrower(model: str | dict[str, Any], width: float, registry: Registry) -> dict[str, Any]:
    """Return a network with this fraction of its channels."""
    own = table_of_part(model)
    channels = getattr(registry.build("models", own), "width", None)
    if channels is None:
        raise OptionError(f"--width does not apply to model '{own['name']}'; leave it out")
    return {**own, "width": max(LEAST_WIDTH, round(channels * width))}
