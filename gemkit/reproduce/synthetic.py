"""Try a row without its data: the smallest run of the same kind, on images that are made up."""

from typing import Any

from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset, preset_from
from gemkit.reproduce.datasets import DATASETS, table_of_part
from gemkit.reproduce.scale import Least, Scale, narrower, shortened, with_score_rate

TRY = Scale(synthetic=True)
"""What `--try` runs."""

SAMPLES, BATCH = 100, 64
"""Images in all splits, of which three fifths are for training, and in a batch."""

_LEAST = Least(epochs=2, period=1)


def tried(preset: Preset, registry: Registry, rate: float = 1.0) -> Preset:
    """Return the preset on synthetic images of the same shape and number of classes.

    Epochs, periods and channels are as few as possible. Densities become their cube roots, in the
    same order: so narrow a network would lose whole layers at the real ones, and iterative pruning
    needs a third of the rounds. Pretrained networks are built without their weights.
    """
    data = preset.to_data()
    own = table_of_part(preset.dataset)
    known = DATASETS[own["name"]]
    data["dataset"] = {
        "name": "fake",
        "samples": SAMPLES,
        "size": own.get("size", known.size),
        "channels": known.channels,
        "classes": known.classes,
    }
    data["model"] = narrower(_without_weights(preset.model), 0, registry)
    data["density"] = round(preset.density ** (1 / 3), 4)
    longest = max(preset.search.epochs, preset.finetuning.epochs)
    data = shortened(preset, data, _LEAST.epochs / longest, registry, _LEAST)
    for phase in ("search", "finetune"):
        data[phase]["batch_size"] = BATCH
    return preset_from("tried", with_score_rate(preset, data, registry, rate, 3 * SAMPLES // 5))


def _without_weights(model: str | dict[str, Any]) -> dict[str, Any]:
    """Return gemkit's own network instead of a library's, which has weights and no width."""
    own = table_of_part(model)
    return {"name": own["network"]} if "network" in own else own
