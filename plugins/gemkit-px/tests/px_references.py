"""Two other ways to compute PX: path by path, and with three changed copies of a network."""

import copy
import itertools
from functools import partial

import torch
from torch import nn

from gemkit import Probe
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import parameters_of
from gemkit.testing import tiny_data

BATCHES = list(tiny_data(samples=24).train.batches(12))


def probe(model, batches=BATCHES, alive=None):
    parameters = parameters_of(model, prunable_names(model))
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    alive = alive or {name: torch.ones_like(own, dtype=torch.bool) for name, own in weights.items()}
    weights = {name: own * alive[name] for name, own in weights.items()}
    batches = [(images.to(next(model.parameters())), labels) for images, labels in batches]
    return Probe(model, weights, alive, batches)


# --- all paths of a small network -----------------------------------------------------------------


def mlp(*widths, bias=False, seed=0):
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def walk(model, probe):
    """Return the scores of a chain of linear layers and ReLUs, path by path."""
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    names = list(probe.weights)
    weights = [probe.weights[name].tolist() for name in names]
    alive = [probe.alive[name].tolist() for name in names]
    x = torch.cat([images for images, _ in probe.batches]).tolist()
    patterns = [_pattern(sample, weights, layers) for sample in x]
    scores = [torch.zeros_like(probe.weights[name], dtype=torch.float64) for name in names]
    units = [range(layer.in_features) for layer in layers] + [range(layers[-1].out_features)]
    carried = dict.fromkeys(units[-1], 0.0)  # z1, summed over samples
    for path in itertools.product(*units):
        steps = list(enumerate(itertools.pairwise(path)))
        if all(alive[at][to][start] for at, (start, to) in steps):
            for sample, pattern in zip(x, patterns, strict=True):
                open_path = all(pattern[at][unit] for at, unit in enumerate(path[1:-1]))
                carried[path[-1]] += open_path * sample[path[0]] ** 2
    for begin in range(len(layers)):  # later ones begin at the biases of the layer before
        for path in itertools.product(*units[begin:]):
            steps = list(enumerate(itertools.pairwise(path), start=begin))
            product = _bias(layers, begin, path[0]) ** 2 if begin else 1.0
            for at, (start, to) in steps:
                product *= weights[at][to][start] ** 2
            for at, (start, to) in steps:
                scores[at][to, start] += carried[path[-1]] * product
    return dict(zip(names, scores, strict=True))


def _bias(layers, begin, unit):
    bias = layers[begin - 1].bias
    return 0.0 if bias is None else bias[unit].item()


def _pattern(sample, weights, layers):
    """Return which hidden units are positive, layer by layer."""
    found, hidden = [], sample
    for at, layer in enumerate(weights):
        shifts = [0.0] * len(layer) if layers[at].bias is None else layers[at].bias.tolist()
        hidden = [
            sum(w * h for w, h in zip(row, hidden, strict=True)) + shift
            for row, shift in zip(layer, shifts, strict=True)
        ]
        found.append([value > 0 for value in hidden])
        hidden = [max(0.0, value) for value in hidden]
    return found


# --- changed copies ------------------------------------------------------------------------------


class Shortcut(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


def conv_net(inplace=False):
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(4, 4, 1),
    )
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=inplace),
        nn.MaxPool2d(2),
        Shortcut(body),
        nn.ReLU(inplace=inplace),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(4, 3),
    )
    for norm in (model[1], body[1]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return model.double().eval()


class Gate(nn.Module):
    def __init__(self, pattern):
        super().__init__()
        self.pattern = pattern

    def forward(self, x):
        return x * self.pattern


def replaced(model, make):
    """Return a copy of a model with other modules in place of some, by name and module."""
    changed = copy.deepcopy(model)
    for name, child in list(changed.named_modules()):
        if name and not list(child.children()):
            parent, _, own = name.rpartition(".")
            setattr(changed.get_submodule(parent), own, make(name, child))
    return changed


def note(patterns, name, module, inputs, output):
    patterns[name] = (output > 0).double()


def gated(patterns, name, module):
    if isinstance(module, nn.ReLU):
        return Gate(patterns[name])
    return nn.Identity() if isinstance(module, nn.BatchNorm2d) else module


def reference(model, batches, alive):
    """Compute the scores as the authors describe it: with three copies of the model."""
    with torch.no_grad():
        for name, mask in alive.items():
            model.get_parameter(name).mul_(mask)
    linear = replaced(model, lambda _, m: nn.Identity() if isinstance(m, nn.ReLU) else m)
    with torch.no_grad():
        for own in linear.parameters():
            own.square_()
        for norm in linear.modules():
            if isinstance(norm, nn.BatchNorm2d):  # running means are zero here
                norm.running_var.copy_((norm.running_var + norm.eps).square() - norm.eps)
    total = 0
    for images, _ in batches:
        patterns = {}
        watched = copy.deepcopy(model)
        for name, module in watched.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(partial(note, patterns, name))
        watched(images.double())
        ones = copy.deepcopy(model)
        with torch.no_grad():
            for name, own in ones.named_parameters():
                own.copy_(alive[name] if name in alive else torch.zeros_like(own))
        ones = replaced(ones, partial(gated, patterns))
        z1 = ones(images.double().square()).detach()
        z2 = linear(torch.ones_like(images.double()))
        total = total + (z1 * z2).sum()
    total.backward()
    return {n: (linear.get_parameter(n).grad * linear.get_parameter(n)).detach() for n in alive}
