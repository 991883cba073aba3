"""The contract of initializers: weights that fit, drawn only from the given generator."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator, parameters_of
from gemkit.parts.initializer import Initializer
from gemkit.testing.cases import Network
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import networks, variants
from gemkit.testing.watch import (
    at_global_seed,
    copied,
    no_global_randomness,
    same_everywhere,
    unchanged,
)

Drawn = tuple[Initializer, Network]


def built_networks(part: Initializer, device: torch.device) -> st.SearchStrategy[Drawn]:
    """Draw networks."""
    return st.tuples(variants(part), networks(device))


def weights_of(case: Network) -> dict[str, torch.Tensor]:
    """Return the prunable weights of a case."""
    model = case.model()
    parameters = parameters_of(model, prunable_names(model))
    return {name: parameter.detach() for name, parameter in parameters.items()}


@clause(Initializer, built_networks, on_devices=True)
def the_drawn_weights_fit(part: Initializer, case: Drawn) -> None:
    """`draw` returns one finite tensor per weight, of its shape and dtype, on the CPU."""
    part, drawn = case
    weights = weights_of(drawn)
    made = part.draw(weights, generator(drawn.seed, "weights"))
    require(list(made) == list(weights), f"the weights are {list(weights)}, it drew {list(made)}")
    for name, weight in weights.items():
        require(made[name].shape == weight.shape, f"'{name}' has shape {tuple(made[name].shape)}")
        require(made[name].dtype == weight.dtype, f"'{name}' is {made[name].dtype}")
        require(made[name].device.type == "cpu", f"'{name}' is on {made[name].device}")
        require(bool(made[name].isfinite().all()), f"'{name}' is not finite")


@clause(Initializer, built_networks)
def the_same_generator_draws_the_same_weights(part: Initializer, case: Drawn) -> None:
    """`draw` uses only the given generator, and changes no weight of the model."""
    part, drawn = case
    weights = weights_of(drawn)
    with no_global_randomness(), unchanged("the weights", lambda: copied(weights.items())):
        part.draw(weights, generator(drawn.seed, "weights"))
    one, other = (
        at_global_seed(seed, lambda: part.draw(weights, generator(drawn.seed, "weights")))
        for seed in (1, 2)
    )
    require(same_everywhere(one, other), "drawing twice gave two results")
