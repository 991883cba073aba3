"""What a part is: one small frozen class per idea, whose fields are its options.

A part holds settings, never tensors; its docstring is its help; its `name` is what people type.
Every kind of part is one abstract class below. To write a new part, subclass the kind, give it a
`name`, a docstring, described fields and the abstract methods, and return the class from the
kind's hook (see `gemkit.hookspecs`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from gemkit.errors import DataError
from gemkit.events import Event
from gemkit.probe import Probe, Wanted
from gemkit.selection import Shares
from gemkit.tensors import Tensors

if TYPE_CHECKING:
    from gemkit.data.source import Data
    from gemkit.lab import Lab
    from gemkit.ticket import Ticket


class Part(BaseModel):
    """A named, immutable choice; its fields are strict, bounded and described."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: ClassVar[str]
    argument: ClassVar[str | None] = None
    """The field that `name:value` on the command line fills, where a part has one."""


# --- what is important ---------------------------------------------------------------------------


class Scores(Part):
    """How important every weight is."""

    needs_signal: ClassVar[bool] = True
    """Whether the ranking depends on the loss or the output, so that it says nothing about layers
    that no gradient reaches."""

    @abstractmethod
    def importance(self, probe: Probe) -> Tensors:
        """Rank the weights: one tensor per prunable weight, of its shape; higher = keep."""

    def batches_wanted(self) -> Wanted:
        """Say which training data the engine should hand over in `probe.batches`.

        `Wanted(batches=1)` is one batch; `Wanted(batches=2, per_class=10)` is two that together
        hold ten samples of every class.
        """
        return Wanted()


class MeasuredScores(Scores):
    """Scores computed from the network whenever a freeze asks for them."""


PAPER_STEPS = 150 * 391
"""Optimizer steps of the paper's ResNet-20 search: 150 epochs of CIFAR-10 in batches of 128."""


class LearnedScores(Scores):
    """Scores that are trained by gradient descent while the weights stand still."""

    unit_interval: ClassVar[bool] = False
    """Whether `view` always lies in [0, 1], so that it can be rounded against a threshold."""

    fastest_lr: ClassVar[float] = 0.1
    """The highest learning rate that suits a short search."""

    default_weight_decay: ClassVar[float] = 0.0
    """How strongly the optimizer decays the scores where nothing else is asked for."""

    @abstractmethod
    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw the first scores, on the CPU, one tensor per weight and of its shape."""

    @abstractmethod
    def view(self, scores: Tensors) -> Tensors:
        """Turn raw scores into what is ranked and rounded, element by element."""

    @abstractmethod
    def slope(self, scores: Tensors) -> Tensors | None:
        """Return the derivative of `view`, element by element, or None where it is 1 everywhere."""

    @abstractmethod
    def project_(self, scores: Tensors) -> None:
        """Bring scores back, in place and element by element, to where they are allowed to be."""

    def default_lr(self, steps: int) -> float:
        """Return the learning rate for a search of this many SGD steps, where none is given.

        It is the paper's 0.1 for the paper's length, and proportionally more for fewer steps, up to
        `fastest_lr`: scores have a way to go, so what counts is the sum of the learning rates.
        """
        return min(self.fastest_lr, max(0.1, 0.1 * PAPER_STEPS / max(1, steps)))

    def importance(self, probe: Probe) -> Tensors:
        """Rank the weights by the learned scores."""
        return self.view(probe.scores)


class Rounding(Part):
    """How learned scores become a mask of zeros and ones in every forward pass."""

    spends_budget: ClassVar[bool] = False
    """Whether the mask itself keeps just the budget, so that nothing needs to be frozen."""
    needs_unit_interval: ClassVar[bool] = False
    """Whether the scores must lie in [0, 1]."""
    takes_measured: ClassVar[bool] = False
    """Whether it works without learned scores."""

    @abstractmethod
    def masks(self, view: Tensors, alive: Tensors, shares: Shares, rng: torch.Generator) -> Tensors:
        """Return a mask for every layer of `view`, in order: 0 and 1, or booleans.

        Called in every step. The caller cuts off what is not alive. Masks of the type of the
        scores, made by `torch._foreach_` functions, take the fewest kernels.
        """

    def slope(self, view: Tensors, masks: Tensors) -> Tensors | None:
        """Return d mask / d view element by element; None passes gradients straight through.

        `masks` are those of the forward pass.
        """
        return None


# --- how much, and when --------------------------------------------------------------------------


class Allocation(Part):
    """How layers share the budget of weights to keep."""

    @abstractmethod
    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Split the budget over groups of layers; weights compete within their group.

        The counts sum to the budget exactly and never exceed what is alive. Asked once a freeze.
        """


class Freeze(NamedTuple):
    """When the clock shows this optimizer step, the density falls to this one."""

    step: int
    density: float


class FreezeSchedule(Part):
    """When the density falls, and how far each time."""

    needs_clock_rewound: ClassVar[bool] = False
    """Whether its freezes wait for the same moment, which comes again when the clock goes back."""

    @property
    def round_epochs(self) -> int | None:
        """How long one run of the clock takes, where the schedule and not the plan decides."""
        return None

    @property
    @abstractmethod
    def trains(self) -> bool:
        """Whether its freezes are spread over training, rather than all before the first step."""

    @abstractmethod
    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """List every freeze: steps ascending, densities never rising, the last one the target."""


# --- what pulls on the scores, and where weights begin -------------------------------------------


class Regularizer(Part):
    """A penalty on learned scores, added to the loss."""

    def towards(self, density: float) -> Regularizer:
        """Return the penalty for a search of this density; override where it makes a difference."""
        return self

    @abstractmethod
    def penalty(self, scores: Tensors) -> Tensor:
        """Return the penalty, a scalar, differentiable in the scores."""

    def add_gradient_(self, gradients: Tensors, scores: Tensors) -> None:
        """Add d penalty / d scores to `gradients`; override where a closed form is cheaper."""
        leaves = {name: score.detach().requires_grad_() for name, score in scores.items()}
        with torch.enable_grad():
            pulls = torch.autograd.grad(self.penalty(leaves), list(leaves.values()))
        torch._foreach_add_(list(gradients.values()), list(pulls))


class Initializer(Part):
    """Where the weights begin."""

    @abstractmethod
    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Return the starting weights (CPU, drawn from `rng`) for tensors of these shapes."""


# --- around the search ---------------------------------------------------------------------------


class SanityCheck(Part):
    """A control: a ticket that a method with real insight should beat.

    Whatever is drawn comes from `lab.rng`, so that a seed gives the same control again.
    """

    def check_fit(self, lab: Lab) -> None:
        """Raise what keeps this control from being made; asked before anything is computed."""

    @abstractmethod
    def control(self, ticket: Ticket, lab: Lab) -> Ticket:
        """Make the control for this ticket, which keeps just as many weights.

        `lab` can search, build and draw as the ticket's own search did.
        """


class ModelPart(Part):
    """A network that can be built for any image shape and number of classes."""

    @abstractmethod
    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Build it with freshly drawn weights, for images of (channels, height, width)."""

    def skeleton(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Build it to be filled by a ticket; override where `build` fetches weights."""
        return self.build(shape, classes)


class DatasetPart(Part):
    """A data set that can be loaded from disk, or made."""

    @abstractmethod
    def load(self, folder: Path | None) -> Data:
        """Load it; `folder` is where the user keeps data sets."""

    def download(self, folder: Path | None) -> None:
        """Put it where `load` finds it; only ever called when the user asks for it."""
        raise DataError(f"data set '{self.name}' cannot be downloaded; leave out --download")


class Observer(Part):
    """Something that listens to runs: a logger, a tracker, a progress bar."""

    @abstractmethod
    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Start listening to one run; the returned function is called with every event."""
