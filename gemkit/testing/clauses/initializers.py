"""The contract of initializers: weights that fit, drawn from their generator alone."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.parts import Initializer
from gemkit.tensors import generator, parameters_of, prunable_names
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

Begun = tuple[Initializer, Network]


def built_networks(part: Initializer, device: torch.device) -> st.SearchStrategy[Begun]:
    """Draw networks whose weights are to be drawn."""
    return st.tuples(variants(part), networks(device))


def weights_of(case: Network) -> dict[str, torch.Tensor]:
    """Return the prunable weights of a case."""
    model = case.model()
    parameters = parameters_of(model, prunable_names(model))
    return {name: parameter.detach() for name, parameter in parameters.items()}


@clause(Initializer, built_networks, on_devices=True)
def the_drawn_weights_fit(part: Initializer, case: Begun) -> None:
    """`draw` returns one finite tensor per weight, of its shape and number format, on the CPU."""
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
def the_same_generator_draws_the_same_weights(part: Initializer, case: Begun) -> None:
    """`draw` draws from the generator it is given, and changes no weight of the model."""
    part, drawn = case
    weights = weights_of(drawn)
    with no_global_randomness(), unchanged("the weights", lambda: copied(weights.items())):
        part.draw(weights, generator(drawn.seed, "weights"))
    one, other = (
        at_global_seed(seed, lambda: part.draw(weights, generator(drawn.seed, "weights")))
        for seed in (1, 2)
    )
    require(same_everywhere(one, other), "drawing twice gave two results")
