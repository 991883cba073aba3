"""Linear mode connectivity: the error barrier between two fine-tuned copies of a ticket.

Frankle et al., "Linear Mode Connectivity and the Lottery Ticket Hypothesis" (2020). There, the
highest error on the line minus the mean error of its ends is called the instability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import nn

from gemkit.core.errors import CheckError
from gemkit.core.limits import MAX_SEED
from gemkit.core.tensors import as_input
from gemkit.data.source import size_of_batches
from gemkit.plugins.markers import hookimpl
from gemkit.sanity.measurement import Measurement

if TYPE_CHECKING:  # both import what is slow to load
    from gemkit.sanity.context import CheckContext
    from gemkit.tickets.ticket import Ticket


class LinearModeConnectivity(Measurement):
    """The error barrier on the line between two copies of the ticket, fine-tuned in other orders.

    Both copies start from the ticket's weights and see the data in other orders, with other
    augmentation. All networks on the line between their weights have the ticket's mask. `barrier`
    is the highest test error on the line minus the mean of `first_error` and `second_error`, those
    of its ends. Near zero, both copies lie in one linearly connected minimum. The error is
    1 − accuracy, or the metric of the run where less of that is better.

    Interpolated batch-norm statistics are meaningless: the statistics of a network between two
    others are not between their statistics, because activations are not linear in the weights. So
    they are recomputed on training data at every point, the ends included.
    """

    name = "linear_mode_connectivity"

    points: int = Field(
        default=11,
        ge=3,
        le=1001,
        description="evenly spaced networks to evaluate on the line, both ends included",
    )
    renew_statistics: bool = Field(
        default=True,
        description="recompute batch-norm statistics on training data at every point, instead of "
        "interpolating them",
    )

    def check_fit(self, context: CheckContext) -> None:
        """Refuse fine-tuning without a step, which leaves both copies equal."""
        if context.finetune_plan.epochs == 0:
            raise CheckError(
                "it fine-tunes two copies of the ticket, and 0 epochs leave them equal; give "
                "--finetune-epochs"
            )

    def measure(self, ticket: Ticket, context: CheckContext) -> dict[str, float]:
        """Fine-tune two copies, and measure the error on the line between them."""
        one, other = (context.finetune(ticket, seed=seed) for seed in _two_seeds(context))
        errors = errors_between(
            one, other, context, points=self.points, renew_statistics=self.renew_statistics
        )
        return {
            "barrier": barrier_of(errors),
            "first_error": errors[0],
            "second_error": errors[-1],
        }


def _two_seeds(context: CheckContext) -> tuple[int, int]:
    """Draw two seeds that differ."""
    first, distance = torch.randint(
        0, MAX_SEED, (2,), generator=context.rng(LinearModeConnectivity.name)
    ).tolist()
    return first, (first + 1 + distance) % (MAX_SEED + 1)


def barrier_of(errors: Sequence[float]) -> float:
    """Return the highest error on a line minus the mean error of its ends."""
    return max(errors) - (errors[0] + errors[-1]) / 2


def errors_between(
    one: Ticket, other: Ticket, context: CheckContext, *, points: int, renew_statistics: bool
) -> list[float]:
    """Return the test errors on the line between two tickets of the same mask."""
    errors = []
    for place_on_line in torch.linspace(0, 1, points, dtype=torch.float64).tolist():
        between = interpolated(one, other, place_on_line)
        if renew_statistics:
            between = with_own_statistics(between, context)
        errors.append(context.task.metric.error(context.evaluate(between)))
    return errors


def interpolated(one: Ticket, other: Ticket, weight: float) -> Ticket:
    """Return (1 − weight) · one + weight · other, for everything in the state that is continuous.

    Counters are those of the first; both ends come out exactly.
    """
    state = {
        name: torch.lerp(value, other.state[name], weight) if value.is_floating_point() else value
        for name, value in one.state.items()
    }
    return replace(one, state=state)


@torch.no_grad()
def with_own_statistics(ticket: Ticket, context: CheckContext) -> Ticket:
    """Return the ticket with its batch-norm statistics recomputed on the training data.

    They are the mean over one epoch of training batches, shuffled but not augmented. Every process
    computes all of it, so that all have the same.
    """
    from gemkit.training.device import make_fabric, place  # which load Fabric

    fabric = context.fabric or make_fabric(context.runtime)
    model = place(ticket.apply(context.network()), fabric, context.runtime).eval()
    norms = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None
    ]
    if not norms:
        return ticket
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches, instead of a moving average
        norm.train()
    module = fabric.setup_module(model, move_to_device=False)
    like = next(model.parameters())
    size, source = context.finetune_plan.batch_size, context.data.train.to(fabric.device)
    # A smaller last batch would count as much as a whole one.
    whole = max(1, len(source) // size_of_batches(source, size))
    for images, _ in islice(source.batches(size, seed=context.seed), whole):
        module(as_input(images, like))
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    state = {
        name: value.to(ticket.state[name]) if name in buffers else ticket.state[name]
        for name, value in model.state_dict().items()
    }
    return replace(ticket, state=state)


@hookimpl
def gemkit_measurements() -> list[type[Measurement]]:
    """Register the measurement."""
    return [LinearModeConnectivity]
