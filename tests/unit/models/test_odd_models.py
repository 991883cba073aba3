"""What is no model, or no model that can be pruned, is refused in one sentence from Python."""

import functools

import pytest
import torch
from tiny import CPU, tiny_data, tiny_net
from torch import nn

import gemkit
from gemkit import evaluate, finetune, importance, search
from gemkit.core.errors import ModelError, TicketError

DATA = tiny_data()
TICKET = search("random", tiny_net(), DATA, density=0.5, runtime=CPU)
CALLS = {
    "search": lambda model: search("snip", model, DATA, density=0.5, runtime=CPU),
    "finetune": lambda model: finetune(TICKET, model, DATA, epochs=1, runtime=CPU),
    "evaluate": lambda model: evaluate(TICKET, model, DATA, runtime=CPU),
    "importance": lambda model: importance("snip", model, DATA),
    "prepare": gemkit.prepare,
    "apply": TICKET.apply,
    "hold": TICKET.hold,
    "compact": lambda model: gemkit.compact(TICKET, model, shape=DATA.shape),
    "from_pruned": gemkit.Ticket.from_pruned,
}


class Unready(nn.Module):
    """Forgets to initialize."""

    def __init__(self):
        self.width = 3


OTHERS = {
    "None": None,
    "a function": lambda inputs: inputs,
    "a class": nn.Linear,
    "a state dict": tiny_net().state_dict(),
    "a list": [tiny_net()],
    "a name": "resnet18",
    "a tensor": torch.ones(3),
    "a partial function": functools.partial(nn.Linear, 3),
    "not initialized": Unready(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_model_is_refused(kind, call):
    words = "is not initialized; let Unready" if kind == "not initialized" else "give an instance"
    with pytest.raises(ModelError, match=words):
        CALLS[call](OTHERS[kind])


class Changed(nn.Module):
    """Applies a function to logits."""

    def __init__(self, function):
        super().__init__()
        self.net, self.function = tiny_net(), function

    def forward(self, inputs):
        return self.function(self.net(inputs))


def fail(_):
    raise ValueError("forward is out of order")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (fail, "cannot take a batch of inputs .*forward is out of order"),
        (lambda logits: None, "returns a value of type NoneType"),
        (torch.sum, r"shape \[\] for 2 inputs; its first dimension must be that"),
        (lambda logits: logits[:1], r"shape \[1, 3\] for 2 inputs"),
    ],
)
@pytest.mark.parametrize("pruner", ["snip", "gem_miner"])
def test_outputs_that_are_no_logits_are_refused(function, words, pruner):
    with pytest.raises(ModelError, match=words):
        search(pruner, Changed(function), DATA, density=0.5, epochs=20, runtime=CPU)


def test_a_model_made_in_inference_mode_cannot_be_written():
    with torch.inference_mode():
        model = tiny_net()
    with pytest.raises(TicketError, match="made in inference mode"):
        TICKET.apply(model)


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("call", sorted({*CALLS} - {"prepare", "apply", "hold"}))
def test_a_scripted_model_is_refused(call):
    with pytest.raises(ModelError, match="TorchScript module, which hides its layers"):
        CALLS[call](torch.jit.script(tiny_net()))
