"""With `--compile`, a network is compiled once: nothing that freezing does compiles it again."""

import pytest
import torch
from tiny import PLAN, tiny_data, tiny_net

from gemkit import Runtime, load_plugins
from gemkit.engine import finetune, search
from gemkit.events import Froze, StepEnded
from gemkit.masking import MaskedNet

REGISTRY = load_plugins(only=[])
COMPILED = Runtime(device="cpu", compile=True)
GRAPHS = 2
"""One for training and one for evaluation."""


@pytest.fixture
def graphs(monkeypatch):
    """Collect what is compiled; it runs as it is, because only its number matters here."""
    found = []

    def collect(graph, inputs):
        found.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: real(model, backend=collect))
    torch._dynamo.reset()
    return found


def heard(pruner):
    events = []
    ticket = search(
        REGISTRY.recipe(pruner),
        tiny_net(),
        tiny_data(),
        density=0.3,
        plan=PLAN,
        runtime=COMPILED,
        observers=[events.append],
    )
    return ticket, events


@pytest.mark.parametrize("pruner", REGISTRY.pruners)
def test_no_freeze_compiles_the_network_again(pruner, graphs):
    ticket, events = heard(pruner)
    assert any(isinstance(event, Froze) for event in events)
    trains = any(isinstance(event, StepEnded) for event in events)
    assert len(graphs) == (GRAPHS if trains else 0)
    torch._dynamo.reset()
    graphs.clear()
    finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=COMPILED)
    assert len(graphs) == GRAPHS


def test_compiling_again_is_noticed(graphs, monkeypatch):
    """A careless freeze, after which weights lie in memory in another way."""
    freeze_ = MaskedNet.freeze_

    def careless(net, alive, shares):
        freeze_(net, alive, shares)
        for parameter in net.parameters.values():
            parameter.data = parameter.detach().contiguous()

    monkeypatch.setattr(MaskedNet, "freeze_", careless)
    heard("gradual_magnitude")
    assert len(graphs) > GRAPHS
