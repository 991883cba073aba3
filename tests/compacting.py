"""Random tickets and norm statistics for tests of compaction."""

import torch
from torch import nn

from gemkit.compaction import compact
from gemkit.core.prunable import prunable_names
from gemkit.tickets.info import TicketInfo
from gemkit.tickets.ticket import Ticket

SHAPE = (3, 8, 8)


def info(shape=SHAPE):
    return TicketInfo(
        pruner="random",
        recipe={},
        model=None,
        dataset=None,
        shape=shape,
        classes=10,
        density_target=0.1,
        seed=0,
        epochs=0,
        stage="found",
        versions={},
        history=[],
    )


def randomize_norms_(model, seed=0):
    """Draw biases, norm parameters and running statistics as after training; some scales are 0."""
    rng = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(generator=rng)
            module.running_var.uniform_(0.5, 2, generator=rng)
            module.num_batches_tracked.fill_(7)
            if module.affine:
                module.weight.data.normal_(generator=rng)[::5] = 0
                module.bias.data.normal_(generator=rng)
        elif getattr(module, "bias", None) is not None:
            module.bias.data.normal_(generator=rng)
    return model


def ticket_of(model, density, *, shape=SHAPE, seed=0):
    """Draw a mask; layers differ in density, so that some channels lose all weights."""
    rng = torch.Generator().manual_seed(seed)
    weights = {name: model.get_parameter(name) for name in prunable_names(model)}
    mask = {
        name: torch.rand(weight.shape, generator=rng) < density * 2 * torch.rand((), generator=rng)
        for name, weight in weights.items()
    }
    return Ticket(mask, model.state_dict(), info(shape))


def images(shape=SHAPE, count=3, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=rng, dtype=torch.float64)


def outputs(model, shape=SHAPE):
    with torch.no_grad():
        return model.eval()(images(shape))


def error_of(model, ticket, shape=SHAPE):
    """Return the relative difference of the masked and the compact network's outputs."""
    small = compact(ticket, model)
    ticket.apply(model)
    expected, actual = outputs(model, shape), outputs(small.model, shape)
    assert expected.isfinite().all()
    return float((expected - actual).abs().max() / expected.abs().max().clamp(min=1)), small


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())
