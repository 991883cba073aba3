"""Metrics by name, from torchmetrics: how good a network is, and whether higher is better."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torchmetrics
from torch import Tensor
from torchmetrics import classification, regression

from gemkit.core.errors import OptionError, did_you_mean
from gemkit.core.probe import IGNORED
from gemkit.parts.objective import Targets, matched

LOSS = "loss"
"""The metric that is the mean of the run's own objective."""


class Metric(NamedTuple):
    """A metric: what it compares outputs with, and how its values are read."""

    name: str
    higher_is_better: bool
    share: bool
    """Whether it lies between 0 and 1, and is shown in percent."""
    targets: Targets
    make: Callable[[int], torchmetrics.Metric]
    """Makes an empty metric for so many outputs."""
    make_for_maps: Callable[[int], torchmetrics.Metric] | None = None
    """Makes one for maps of classes, in which `IGNORED` does not count."""

    def prepared(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets in the form that torchmetrics takes."""
        if self.targets == "classes":
            return outputs, targets
        targets = matched(targets, outputs)
        if self.targets == "labels":
            # torchmetrics would take logits between 0 and 1 for probabilities
            chances, labels = outputs.sigmoid(), (targets >= 0.5).long()
            return (chances, labels) if outputs.ndim > 1 else (chances[:, None], labels[:, None])
        if self.name == "r2":
            outputs, targets = outputs.to(_wide(outputs)), targets.to(_wide(outputs))
            if outputs[:1].numel() > 1:
                return outputs.flatten(1), targets.flatten(1)
        return outputs.flatten(), targets.flatten()

    def meter(self, outputs: Tensor, targets: Tensor) -> torchmetrics.Metric:
        """Return an empty metric for outputs and targets of these shapes, on their device."""
        count = outputs.shape[1] if outputs.ndim > 1 else 1
        maps = self.make_for_maps if targets.ndim > 1 else None
        made = (maps or self.make)(count).to(outputs.device)
        return made.set_dtype(_wide(outputs)) if self.name == "r2" else made

    def margin(self, fraction: float, typical: float) -> float:
        """Return the smallest difference that counts.

        It is relative to the tickets' mean, if the metric is not a share.
        """
        return fraction if self.share else fraction * abs(typical)

    def worse_by(self, value: float, than: float) -> float:
        """Return by how much a value is worse than another one; negative where it is better."""
        return than - value if self.higher_is_better else value - than

    def error(self, value: float) -> float:
        """Return a value of which less is better."""
        if not self.higher_is_better:
            return value
        return 1 - value if self.share else -value


def _wide(outputs: Tensor) -> torch.dtype:
    """Return the type that R² is summed in: it is a small difference of large sums of squares."""
    return torch.float32 if outputs.device.type == "mps" else torch.float64


def _multiclass(
    cls: type[torchmetrics.Metric], average: str, ignored: int | None = None
) -> Callable[[int], torchmetrics.Metric]:
    how = {"average": average, "ignore_index": ignored, "validate_args": False}
    return lambda outputs: cls(num_classes=outputs, **how)


def _multilabel(
    cls: type[torchmetrics.Metric], average: str
) -> Callable[[int], torchmetrics.Metric]:
    return lambda outputs: cls(num_labels=outputs, average=average, validate_args=False)


def _plain(cls: type[torchmetrics.Metric]) -> Callable[[int], torchmetrics.Metric]:
    return lambda outputs: cls()


def _metric(
    name: str,
    targets: Targets,
    cls: type[torchmetrics.Metric],
    make: Callable[[int], torchmetrics.Metric],
    *,
    share: bool = True,
) -> Metric:
    return Metric(name, bool(cls.higher_is_better), share, targets, make)


def _of_classes(name: str, cls: type[torchmetrics.Metric], average: str = "macro") -> Metric:
    metric = _metric(name, "classes", cls, _multiclass(cls, average))
    return metric._replace(make_for_maps=_multiclass(cls, average, IGNORED))


def _of_labels(name: str, cls: type[torchmetrics.Metric], average: str = "macro") -> Metric:
    return _metric(name, "labels", cls, _multilabel(cls, average))


def _of_values(name: str, cls: type[torchmetrics.Metric]) -> Metric:
    return _metric(name, "values", cls, _plain(cls), share=False)


METRICS = {
    metric.name: metric
    for metric in (
        _of_classes("accuracy", classification.MulticlassAccuracy, "micro"),
        _of_classes("balanced_accuracy", classification.MulticlassAccuracy),
        _of_classes("f1", classification.MulticlassF1Score),
        _of_classes("jaccard", classification.MulticlassJaccardIndex),
        _of_labels("multilabel_accuracy", classification.MultilabelAccuracy, "micro"),
        _of_labels("multilabel_f1", classification.MultilabelF1Score),
        _of_labels("multilabel_average_precision", classification.MultilabelAveragePrecision),
        _of_values("mean_squared_error", regression.MeanSquaredError),
        _of_values("mean_absolute_error", regression.MeanAbsoluteError),
        _of_values("r2", regression.R2Score),
        Metric(LOSS, False, False, "any", lambda outputs: torchmetrics.MeanMetric()),
    )
}
"""All metrics by name. `higher_is_better` is torchmetrics' own."""

ACCURACY = METRICS["accuracy"]


def metric_named(name: str) -> Metric:
    """Return a metric, or raise an error that suggests the closest name."""
    if not isinstance(name, str):
        raise OptionError(f"metric = {name!r}: should be a name, one of {', '.join(METRICS)}")
    if name not in METRICS:
        raise OptionError(f"there is no metric {name!r}{did_you_mean(name, METRICS)}")
    return METRICS[name]


def value_text(value: float, metric: str) -> str:
    """Return the value of a metric: shares in percent, others with four significant digits."""
    known = METRICS.get(metric)
    return f"{100 * value:.1f} %" if known is not None and known.share else f"{value:.4g}"


def values_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric of a result, its direction and its values; older files have accuracies."""
    return {
        "metric": result.get("metric", ACCURACY.name),
        "higher_is_better": result.get("higher_is_better", True),
        **{moment: _value(result, moment) for moment in ("before", "after")},
    }


def _value(result: Mapping[str, Any], moment: str) -> Any:  # noqa: ANN401 - of a file
    value = result.get(moment)
    return result.get(f"accuracy_{moment}") if value is None else value
