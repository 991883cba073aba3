"""Check, before training, that a network has an output for every class, label or value.

The loss would only report an index out of range, and on a GPU at some later step.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from gemkit.core.errors import DataError, ModelError
from gemkit.core.probe import no_output
from gemkit.core.tensors import as_input
from gemkit.data.source import Data
from gemkit.models.check import try_outputs
from gemkit.parts.objective import check_shapes
from gemkit.training.task import Task

_ALL = ("train", "validation", "test")


def check_targets(model: nn.Module, data: Data, task: Task, splits: Iterable[str] = _ALL) -> None:
    """Refuse data whose targets do not suit the task, or the outputs of the network."""
    task.check_data(data)
    kinds = {task.objective.targets, task.metric.targets}
    if task.has_classes(data):
        check_labels(model, data, splits, maps="classes" in kinds)
    if not kinds & {"labels", "values"}:
        return
    outputs = _output_shape(model, data)
    for name in splits:
        targets: Tensor = getattr(data, name).targets()
        whose = f"the {name} split of '{data.name}':"
        if outputs is not None:
            check_shapes(targets.shape, (len(targets), *outputs), whose)
        if "labels" in kinds and targets.numel() and not _are_shares(targets):
            raise DataError(f"{whose} each of several labels must be 0 or 1, or a share between")


def _are_shares(targets: Tensor) -> bool:
    """Whether all targets lie between 0 and 1."""
    return bool(((targets >= 0) & (targets <= 1)).all())


def check_labels(
    model: nn.Module, data: Data, splits: Iterable[str] = _ALL, *, maps: bool = True
) -> None:
    """Refuse a data set with labels that the network has no output for.

    With `maps`, outputs must have a value of every class for every label of a sample.
    """
    outputs = _output_shape(model, data)
    for name in splits:
        labels: Tensor = getattr(data, name).targets()
        highest = int(labels.max()) if labels.numel() else -1
        if outputs and highest >= outputs[0]:
            raise no_output(f"the {name} split of '{data.name}'", highest, outputs[0])
        if maps and outputs and outputs[1:] != labels.shape[1:]:
            raise DataError(
                f"the {name} split of '{data.name}': its labels have shape "
                f"{list(labels.shape[1:])} for each sample, so the network needs outputs of shape "
                f"{['classes', *labels.shape[1:]]}, and has {list(outputs)}; several labels that "
                "are 0 or 1 are bool or float, with objective 'binary', and of "
                + (
                    "labels of shape [samples, 1] give labels.squeeze(1)"
                    if labels.shape[1:] == (1,)
                    else "one-hot labels give labels.argmax(1)"
                )
            )


def _output_shape(model: nn.Module, data: Data) -> tuple[int, ...]:
    """Find the shape of the outputs with a forward pass.

    The model is also called in training mode, in which some return more than logits.
    """
    inputs = as_input(data.blank(2), next(model.parameters()))
    try:
        try_outputs(model, inputs, training=True)
        outputs = try_outputs(model, inputs, training=False)
        if outputs.shape[:1] != inputs.shape[:1]:
            raise ModelError(
                f"{type(model).__name__} returns a tensor of shape {list(outputs.shape)} for "
                f"{len(inputs)} inputs; its first dimension must be that of the inputs"
            )
        return tuple(outputs.shape[1:])
    except ModelError as error:
        if not data.indices:
            raise
        raise DataError(
            f"the inputs of '{data.name}' are int64, so they count as indices such as tokens, and "
            f"{error}; or give values as float"
        ) from error
