"""The contract of models: logits for inputs, prunable weights, gradients for all of them."""

from __future__ import annotations

import torch
from torch import nn

from gemkit.core.errors import GemkitError
from gemkit.core.probe import in_mode
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import parameters_of
from gemkit.models.part import ModelPart
from gemkit.testing.clause import NotTriedError, clause, require
from gemkit.testing.watch import same_everywhere, state_of

SHAPES: tuple[tuple[int, ...], ...] = (
    *((3, 32, 32), (1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 64, 64), (3, 224, 224)),
    *((4, 16), (16,)),
)
"""Images, signals and vectors or sequences; the first that fits is used."""
CLASSES = 5


def build(part: ModelPart, shape: tuple[int, ...]) -> nn.Module:
    """Build the model from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return part.build(shape, CLASSES)


def first_that_fits(part: ModelPart) -> tuple[nn.Module, torch.Tensor]:
    """Build the model for the first common shape it takes; return it with a batch of inputs."""
    reason = ""
    for shape in SHAPES:
        try:
            model = build(part, shape)
        except GemkitError as error:
            reason = str(error)
            continue
        return model, inputs_for(model, shape)
    raise NotTriedError(f"it takes none of the common shapes of inputs: {reason}")


def inputs_for(model: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """Return two inputs: values or, for a sequence model that takes none, the tokens 0 and 1."""
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(2, *shape, generator=rng)
    tokens = torch.randint(2, values.shape, generator=rng)
    if len(shape) > 1:
        return values
    try:
        with torch.no_grad(), in_mode(model, training=False):
            model(values)
    except Exception:  # a forward pass may raise anything
        return tokens
    return values


@clause(ModelPart)
def it_gives_a_logit_for_every_class(part: ModelPart, case: None) -> None:
    """In training and in evaluation mode two inputs give finite logits of shape [2, classes]."""
    model, images = first_that_fits(part)
    for training in (True, False):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model.train(training)(images)
        require(isinstance(logits, torch.Tensor), f"it returned {type(logits).__name__}")
        require(logits.shape == (2, CLASSES), f"the logits have shape {tuple(logits.shape)}")
        require(bool(logits.isfinite().all()), "the logits are not finite")


@clause(ModelPart)
def unsupported_shapes_raise_a_gemkit_error(part: ModelPart, case: None) -> None:
    """An image shape either works or raises a GemkitError, never another exception."""
    for shape in SHAPES[:3]:
        try:
            model = build(part, shape)
        except GemkitError:
            continue
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model.eval()(torch.zeros(2, *shape))
        require(logits.shape == (2, CLASSES), f"{shape} gives logits of {tuple(logits.shape)}")


@clause(ModelPart)
def the_same_seed_builds_the_same_model(part: ModelPart, case: None) -> None:
    """Weights are drawn from torch's global random generator, which the caller seeds."""
    (one, _), (other, _) = first_that_fits(part), first_that_fits(part)
    equal = same_everywhere(dict(one.state_dict()), dict(other.state_dict()))
    require(equal, "two builds from one seed differ")
    require(list(state_of(one)) == list(state_of(other)), "two builds differ in structure")


@clause(ModelPart)
def every_prunable_weight_can_learn(part: ModelPart, case: None) -> None:
    """The model has prunable weights, and the loss gives each of them a gradient."""
    model, images = first_that_fits(part)
    parameters = parameters_of(model.train(), prunable_names(model))
    with torch.random.fork_rng(devices=[]):
        loss = nn.functional.cross_entropy(model(images), torch.tensor([0, 1]))
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    without = [name for name, gradient in zip(parameters, found, strict=True) if gradient is None]
    require(not without, f"no gradient reaches {', '.join(without[:3])}")
