"""The task of a run: one objective and one metric, the same in every phase.

Search, scoring, fine-tuning, evaluation and controls agree on it. A recipe may have an objective of
its own, which only its search minimizes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from gemkit.core.errors import DataError, OptionError
from gemkit.core.probe import Batch
from gemkit.core.text import CUSTOM
from gemkit.data.source import Data
from gemkit.parts.lookup import Lookup
from gemkit.parts.now import Now
from gemkit.parts.objective import CrossEntropy, FunctionObjective, Objective
from gemkit.parts.recipe import part_data
from gemkit.training.metrics import Metric, metric_named

ObjectiveSpec = Objective | str | Mapping[str, Any] | Callable[..., Any]
"""An objective, its name, a table with name and fields, or a function of outputs and targets."""


class Recorded(Protocol):
    """What tickets record of a task."""

    @property
    def objective(self) -> Mapping[str, Any] | None:
        """The objective as part data; None for cross-entropy."""
        ...

    @property
    def metric(self) -> str | None:
        """The metric, if it is not that of the objective."""
        ...


@dataclass(frozen=True)
class Task:
    """What a run minimizes, and what it measures; without a metric, the objective's own."""

    objective: Objective = field(default_factory=CrossEntropy)
    metric_name: str | None = None

    def __post_init__(self) -> None:
        if self.objective.needs_dense:
            raise OptionError(
                f"objective '{self.objective.name}' compares with the dense network, so only a "
                "search can minimize it; set it in the recipe, where it is a role"
            )
        kinds = {self.objective.targets, self.metric.targets}
        if "any" not in kinds and len(kinds) > 1:
            raise OptionError(
                f"metric '{self.metric.name}' is for {self.metric.targets}, but the targets of "
                f"objective '{self.objective.name}' are {self.objective.targets}; leave the metric "
                "out, or choose another"
            )

    @property
    def metric(self) -> Metric:
        """The metric of the run."""
        return metric_named(self.metric_name or self.objective.metric)

    def has_classes(self, data: Data) -> bool:
        """Whether the targets are the numbers of classes."""
        return data.has_classes and self.objective.targets in ("classes", "any")

    def outputs(self, data: Data) -> int:
        """Return how many outputs a network needs: one for each class, label or value."""
        if self.has_classes(data):
            if data.classes is None:
                raise DataError(
                    f"data set '{data.name}' does not say how many classes there are; give "
                    "classes= where it is made"
                )
            return data.classes
        return max(1, data.train.targets()[:1].numel())

    def check_data(self, data: Data) -> None:
        """Refuse targets that objective and metric are not for."""
        own: dict[str, Objective | Metric] = {"objective": self.objective, "metric": self.metric}
        for kind, part in own.items():
            if part.targets == "classes" and not data.has_classes:
                found = str(data.train.targets().dtype).removeprefix("torch.")
                raise DataError(
                    f"{kind} '{part.name}' is for classes, and the targets of '{data.name}' are "
                    f"{found}: choose an objective for them, such as 'mse' for values or 'binary' "
                    "for several labels, or give the number of every sample's class as int64"
                )
            if part.targets == "values" and data.has_classes:
                raise DataError(
                    f"{kind} '{part.name}' is for values, and the targets of '{data.name}' are the "
                    "numbers of classes: give float targets, or choose an objective for classes"
                )

    def loss_of(self, model: nn.Module) -> Callable[[Tensor, Batch], Tensor]:
        """Return the loss of a network outside training, with an objective's first state."""
        weights = {name: own.detach() for name, own in model.named_parameters()}

        def loss(outputs: Tensor, batch: Batch) -> Tensor:
            state = self.objective.init_state(weights)
            return self.objective.loss(outputs, batch, Now(state=state))

        return loss

    def to_data(self) -> dict[str, Any]:
        """Return plain data for files: nothing at all for cross-entropy and accuracy."""
        data = {} if self.objective == CrossEntropy() else {"objective": part_data(self.objective)}
        named = self.metric_name not in (None, self.objective.metric)
        return data | ({"metric": self.metric_name} if named else {})


def task_from(
    registry: Lookup, objective: ObjectiveSpec | None = None, metric: str | None = None
) -> Task:
    """Make a task of names, tables or functions; a file may only name a function."""
    return Task(_objective(registry, objective), metric)


def task_of(
    info: Recorded,
    registry: Lookup,
    objective: ObjectiveSpec | None = None,
    metric: str | None = None,
) -> Task:
    """Return the task that a ticket records, with another objective or metric if given."""
    if objective is not None:
        return task_from(registry, objective, metric)
    return task_from(registry, info.objective, metric or info.metric)


def _objective(registry: Lookup, spec: ObjectiveSpec | None) -> Objective:
    if spec is None:
        return CrossEntropy()
    if isinstance(spec, Objective):
        return spec
    if isinstance(spec, type):
        raise OptionError(
            f"objective {spec.__name__} is a class; give an instance of it, {spec.__name__}(), or "
            "a function of outputs and targets"
        )
    if callable(spec):
        return FunctionObjective(function=spec)
    named = spec.get("function") if isinstance(spec, Mapping) else spec
    if isinstance(named, str) and named.startswith(CUSTOM):
        raise OptionError(
            f"the objective is the function {named!r}, and a file alone runs no code; run or "
            "resume from Python with the function itself, objective=..., or name another objective"
        )
    part = registry.build("objectives", spec)
    assert isinstance(part, Objective)
    return part
