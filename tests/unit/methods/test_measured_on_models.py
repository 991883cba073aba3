"""Every pruner that measures reaches its exact count on the architectures people use."""

import pytest
from architectures import ARCHITECTURES, build
from tiny import CPU, tiny_data

from gemkit import Plan, load_plugins, search
from gemkit.core.tensors import budget, kept, total

REGISTRY = load_plugins()
PRUNERS = ["snip", "grasp", "synflow", "prospr"]
PLAN = Plan(batch_size=8)


@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_count_is_exact_and_the_model_untouched(name, pruner):
    data = tiny_data(classes=10, shape=(3, 32, 32), samples=40)
    options = {"schedule.rounds": 5} if pruner == "synflow" else {}
    recipe = REGISTRY.recipe(pruner, options=options)
    model = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ticket = search(recipe, model, data, density=0.137, plan=PLAN, runtime=CPU, on_collapse="warn")
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.137)
    assert all((before[key] == value).all() for key, value in model.state_dict().items())
    assert all((before[key] == value).all() for key, value in ticket.state.items())
