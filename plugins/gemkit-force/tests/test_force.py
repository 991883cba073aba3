"""FORCE and Iter-SNIP keep their contracts and match the paper."""

from itertools import pairwise
from pathlib import Path

import gemkit_force
import torch
import torch.nn.functional as F
from gemkit_force import Force

from gemkit import Probe, load_plugins, search, select
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, kept, parameters_of, total
from gemkit.testing import CPU, contract, tiny_data, tiny_net

test_plugin = contract(gemkit_force)
test_force_in_one_round = contract(Force(rounds=1, batches=2))

BATCHES = list(tiny_data(samples=60).train.batches(6))


def probe(density=0.1, model=None):
    model = model or tiny_net()
    parameters = parameters_of(model, prunable_names(model))
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    alive = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
    return Probe(model, weights, alive, BATCHES, density=density)


def reference(rounds, density, *, weights_return):
    """Return the masks of the paper's loop, on a model that is changed in place."""
    model = tiny_net().train()
    names = prunable_names(model)
    drawn = {name: model.get_parameter(name).detach().clone() for name in names}
    mask = {name: torch.ones_like(weight) for name, weight in drawn.items()}
    history = []
    for number in range(1, rounds + 1):
        for name in names:
            model.get_parameter(name).data.copy_(drawn[name] * mask[name])
        model.zero_grad()
        images, labels = BATCHES[number - 1]
        F.cross_entropy(model(images), labels).backward()
        used = drawn if weights_return else {name: drawn[name] * mask[name] for name in names}
        scores = {name: (used[name] * model.get_parameter(name).grad).abs() for name in names}
        flat = torch.cat([score.flatten() for score in scores.values()])
        count = budget(len(flat), density ** (number / rounds))
        chosen = torch.zeros_like(flat)
        chosen[flat.argsort(descending=True, stable=True)[:count]] = 1
        parts = chosen.split([score.numel() for score in scores.values()])
        mask = {name: part.view_as(drawn[name]) for name, part in zip(names, parts, strict=True)}
        history.append(mask)
    return history


def test_force_equals_the_papers_loop():
    expected = reference(5, 0.1, weights_return=True)[-1]
    mask = select(Force(rounds=5).importance(probe()), 0.1)
    assert all(torch.equal(mask[name], expected[name].bool()) for name in mask)
    assert kept(mask) == budget(total(mask), 0.1)


def test_weights_return_between_the_rounds_of_force():
    rounds = reference(5, 0.1, weights_return=True)
    returned = [
        sum(int(((later[name] == 1) & (earlier[name] == 0)).sum()) for name in later)
        for earlier, later in pairwise(rounds)
    ]
    assert sum(returned) > 0
    without = select(Force(rounds=1, batches=1).importance(probe()), 0.1)
    assert any(not torch.equal(without[name], rounds[-1][name].bool()) for name in without)


def test_the_density_of_the_freeze_sets_the_curve():
    one, other = (Force(rounds=5).importance(probe(density)) for density in (0.1, 0.6))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def ticket_of(name, **options):
    registry = load_plugins(files=[Path(gemkit_force.__file__)], only=())
    return search(
        registry.recipe(name, options=options),
        tiny_net(),
        tiny_data(samples=60),
        density=0.1,
        runtime=CPU,
        on_collapse="warn",
    )


def test_iter_snip_freezes_ten_times_and_nothing_returns():
    ticket = ticket_of("iter_snip")
    history = [record.kept for record in ticket.info.history]
    assert len(history) == 10
    assert history == sorted(history, reverse=True)
    assert ticket.kept == budget(ticket.prunable, 0.1)


def test_force_freezes_once():
    assert len(ticket_of("force").info.history) == 1


def test_batch_norm_may_use_either_statistics():
    batch, running = (Force(rounds=2, mode=mode).importance(probe()) for mode in ("train", "eval"))
    assert any(not torch.allclose(batch[name], running[name]) for name in batch)
