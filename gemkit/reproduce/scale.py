"""Scale a preset down, so that its table fits a smaller machine."""

import math
from typing import Any, NamedTuple

from gemkit.core.errors import OptionError
from gemkit.parts.recipe import Recipe
from gemkit.parts.scores import LearnedScores
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset, merged, preset_from
from gemkit.training.plan import Plan

IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000, "caltech101": 6_941}
"""Training images, validation included; other data sets are not reduced."""

LEAST_EPOCHS, LEAST_PERIOD, LEAST_IMAGES, LEAST_WIDTH = 4, 2, 1_000, 4


class Scale(NamedTuple):
    """`time` is the fraction of epochs and of images, `width` the fraction of channels."""

    time: float = 1.0
    width: float = 1.0


def scaled(preset: Preset, scale: Scale, registry: Registry) -> Preset:
    """Return the preset with fewer epochs, images and channels.

    The periods between freezes (at least two epochs) and the points to rewind to scale with the
    epochs. A search lasts a whole number of periods, as 150 epochs are 30 periods of 5, so that the
    authors' timing leaves scores some time after the last freeze. Learning rates of weights do not
    change. Those of scores that SGD learns are left open: fewer steps need larger ones, and the
    search sets them by its number of steps.
    """
    data = preset.to_data()
    if scale.time != 1:
        recipe = preset.made(registry)
        data = merged(data, _shorter(preset, recipe, scale.time))
        if isinstance(recipe.scores, LearnedScores) and preset.search.optimizer == "sgd":
            data["search"].pop("lr", None)
    if scale.width != 1:
        data["model"] = _narrower(preset, scale.width, registry)
    return preset_from("scaled", data)


def _shorter(preset: Preset, recipe: Recipe, time: float) -> dict[str, Any]:
    every = getattr(recipe.schedule, "every", None)
    period = 1 if every is None else max(LEAST_PERIOD, round(every * time))
    own = _table(preset.recipe.get("schedule", {}))
    changes = {"schedule": own | {"every": period}} if every else {}
    if recipe.rewind.happens:
        moments = recipe.rewind.model_dump(exclude_none=True)
        changes["rewind"] = {name: round(moment * time, 4) for name, moment in moments.items()}
    return {
        "search": {"epochs": math.ceil(_epochs(preset.search, time) / period) * period},
        "finetune": {"epochs": _epochs(preset.finetune, time)},
        "dataset": _fewer(preset, time),
        "recipe": changes,
    }


def _epochs(plan: Plan, time: float) -> int:
    return min(plan.epochs, max(LEAST_EPOCHS, round(plan.epochs * time)))


def _fewer(preset: Preset, time: float) -> dict[str, Any]:
    """Limit the images, if their number is known."""
    own = _table(preset.dataset)
    if own["name"] not in IMAGES:
        return own
    return {**own, "limit": max(LEAST_IMAGES, round(IMAGES[own["name"]] * time))}


def _narrower(preset: Preset, width: float, registry: Registry) -> dict[str, Any]:
    own = _table(preset.model)
    channels = getattr(registry.build("models", own), "width", None)
    if channels is None:
        raise OptionError(f"--width does not apply to model '{own['name']}'; leave it out")
    return {**own, "width": max(LEAST_WIDTH, round(channels * width))}


def _table(part: Any) -> dict[str, Any]:  # noqa: ANN401 - a name, or a table
    return {"name": part} if isinstance(part, str) else dict(part)
