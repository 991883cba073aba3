"""The contract of state: a part keeps it in tensors that are saved with the run, nowhere else.

A search that is killed and resumed is in `gemkit.testing.clauses.resuming`.
"""

from __future__ import annotations

import re

import torch
from hypothesis import strategies as st

from gemkit.core.tensors import Tensors
from gemkit.parts.objective import Objective
from gemkit.parts.part import Part
from gemkit.parts.recipe import Recipe
from gemkit.parts.regularizer import Regularizer
from gemkit.testing.cases import Layers
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import layers
from gemkit.testing.watch import State, copied, no_global_randomness, same, unchanged

PLAIN = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


def has_state(part: Part) -> bool:
    """Whether a part has a state. One that cannot say so is tried."""
    try:
        return bool(part.init_state(Layers().values()))
    except Exception:  # it is the plugin's own code, and a clause words what is wrong
        return True


def weights(part: Part, device: torch.device) -> st.SearchStrategy[Layers]:
    """Draw the weights of a network."""
    return layers(("drawn",), device)


@clause(Part, weights, on_devices=True, applies=has_state)
def the_first_state_is_tensors_by_name(part: Part, case: Layers) -> None:
    """`init_state` of regularizers and objectives returns tensors by plain names.

    They are on the device of the weights, and outside autograd.
    """
    state = part.init_state(case.values())
    require(isinstance(state, dict), f"it is a {type(state).__name__}, not a dict")
    for name, value in state.items():
        plain = isinstance(name, str) and PLAIN.fullmatch(name)
        require(plain, f"{name!r} is no plain name; use letters, digits and _")
        require(isinstance(value, torch.Tensor), f"'{name}' is a {type(value).__name__}")
        require(value.device == case.device, f"'{name}' is on {value.device}")
        require(not value.requires_grad, f"'{name}' requires a gradient; detach it")
    served = isinstance(part, Regularizer | Objective)
    require(served, "only regularizers and objectives are handed their state; this part never is")


@clause(Part, weights, applies=has_state)
def the_same_weights_give_the_same_first_state(part: Part, case: Layers) -> None:
    """`init_state` is a plain function of the weights, and returns new tensors every time."""
    own = case.values()
    with no_global_randomness(), unchanged("the weights", lambda: copied(own.items())):
        state, first = part.init_state(own), begun(part, own)
        equal = list(state) == list(first) and all(same(state[name], first[name]) for name in state)
        require(equal, "asking twice gave two states")
        for tensor in state.values():
            tensor.zero_() if bool(tensor.any()) else tensor.fill_(1)
    again = part.init_state(own)
    apart = all(same(tensor, again[name]) for name, tensor in first.items())
    require(apart, "two states share memory, so that one run would change another")


def begun(part: Part, own: Tensors) -> Tensors:
    """Return the first state of a part."""
    return {name: tensor.clone() for name, tensor in part.init_state(own).items()}


def fresh(part: Part) -> Part:
    """Build a part with the same fields, and nothing else that the part may hold."""
    fields = {name: getattr(part, name) for name in type(part).model_fields}
    return type(part).model_construct(_fields_set=part.model_fields_set, **fields)


def held(recipe: Recipe) -> State:
    """Take down what the parts of a recipe hold in attributes."""
    return {
        f"attribute '{name}' of {role} '{part.name}'": repr(value)
        for role, part in recipe.parts().items()
        for name, value in [*vars(part).items(), *(part.__pydantic_private__ or {}).items()]
    }
