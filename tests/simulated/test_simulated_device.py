"""The simulated device counts, notes and refuses what a real one would."""

import copy

import pytest
import torch
from torch import nn

from gemkit.testing import simulated

DEVICE = simulated.install()
READING = {
    "a number": lambda tensor: tensor.sum().item(),
    "a truth": lambda tensor: bool((tensor > 2).any()),
    "a format": lambda tensor: f"{tensor.sum():.2f}",
    "a representation": repr,
    "a list": lambda tensor: tensor.tolist(),
    "a copy": lambda tensor: tensor.to("cpu", torch.float64),
    "a copy into a tensor": lambda tensor: torch.empty(5).copy_(tensor),
    "equality": lambda tensor: torch.equal(tensor, tensor),
    "closeness": lambda tensor: torch.allclose(tensor, tensor),
    "positions": torch.nonzero,
    "different values": torch.unique,
    "a choice by mask": lambda tensor: tensor[tensor > 0.5],
    "a change by mask": lambda tensor: tensor.index_put_((tensor > 0.5,), tensor.sum()),
    "counts": lambda tensor: tensor.long().bincount(),
}
WORKING = {
    "in place": lambda tensor: tensor.add_(1),
    "views": lambda tensor: tensor.view(-1)[1:].unsqueeze(0),
    "other types": torch.Tensor.double,
    "a number of the host": lambda tensor: tensor * torch.tensor(2.0),
    "a choice by position": lambda tensor: tensor[torch.zeros_like(tensor, dtype=torch.long)],
    "a change where": lambda tensor: tensor.masked_fill_(tensor > 0.5, 0),
    "random numbers": torch.rand_like,
    "sorting": lambda tensor: tensor.sort(stable=True),
}


def there(*shape):
    return torch.rand(shape).to(DEVICE)


@pytest.mark.parametrize("read", READING.values(), ids=READING)
def test_every_read_back_is_noted(read):
    tensor = there(5)
    with simulated.watched() as seen:
        read(tensor)
    assert len(seen.waits) == 1


@pytest.mark.parametrize("work", WORKING.values(), ids=WORKING)
def test_what_stays_on_the_device_does_not_wait(work):
    tensor = there(5)
    with simulated.watched() as seen:
        work(tensor)
    assert seen.waits == seen.uploads == []


def test_operations_are_counted_and_views_are_not():
    tensor = there(4, 6)
    with simulated.watched() as seen:
        tensor.add_(1).t().reshape(24)
        tensor.view(-1).unsqueeze_(0)[0, 1:3].detach()
        torch.empty_like(tensor)
    assert seen.kernels == {"add_": 1, "clone": 1}  # a transposed tensor is copied to be reshaped
    assert seen.count == 2


def test_uploads_are_noted():
    with simulated.watched() as seen:
        there(5)[[0, 2]] += torch.tensor([1.0, 2.0], device=DEVICE)
        torch.zeros(5, device=DEVICE)
    assert len(seen.uploads) == 4  # the tensor, the list of positions twice, and the numbers
    assert seen.waits == []


MIXED = {
    "arithmetic": lambda tensor: tensor + torch.rand(5),
    "joining": lambda tensor: torch.cat([tensor, torch.rand(5)]),
    "stacking numbers": lambda tensor: torch.stack([tensor.sum(), torch.tensor(1.0)]),
    "positions": lambda tensor: tensor[torch.tensor([0, 1])],
    "lists": lambda tensor: torch._foreach_add_([tensor], [torch.rand(5)]),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_the_device_does_not_mix_with_the_host(mix):
    with pytest.raises(RuntimeError, match="a tensor of the host meets one of the device"):
        mix(there(5))


def test_the_device_has_no_arrays_and_no_generators_of_the_host():
    with pytest.raises(TypeError, match="copy it to the host first"):
        there(5).numpy()
    with pytest.raises(RuntimeError, match="drawn on the host"):
        torch.rand(5, device=DEVICE, generator=torch.Generator())


def test_the_device_refuses_lists_that_take_a_kernel_each():
    plain, strided = there(4, 6), torch.rand(6, 4).t().to(DEVICE)
    with pytest.raises(RuntimeError, match="strides that differ"):
        torch._foreach_mul_([plain], [strided])
    with pytest.raises(RuntimeError, match="different types"):
        torch._foreach_mul([plain], [plain.double()])
    torch._foreach_mul_([plain, strided], [plain, strided])
    torch._foreach_copy_([plain], [plain.bool()])


def test_a_module_moves_and_changes_its_layout_and_type():
    here = nn.Conv2d(4, 6, 3)
    moved = copy.deepcopy(here).to(DEVICE).to(memory_format=torch.channels_last)
    assert moved.weight.stride() == moved.weight.raw.stride() == (36, 1, 12, 4)
    assert isinstance(moved.weight, nn.Parameter)
    doubled = copy.deepcopy(moved).double()
    assert doubled.weight.raw.dtype == torch.float64
    back = moved.cpu()
    assert torch.equal(back.weight, here.weight)
    assert type(back.weight) is nn.Parameter


def test_a_copy_is_a_parameter_with_its_own_values():
    layer = nn.Linear(2, 2).to(DEVICE)
    copied = copy.deepcopy({"one": layer.weight, "same": layer.weight})
    assert copied["one"] is copied["same"]
    assert isinstance(copied["one"], nn.Parameter)
    with torch.no_grad():
        layer.weight.zero_()
    assert copied["one"].count_nonzero() == 4


def test_gradients_are_those_of_the_cpu():
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    moved, images = copy.deepcopy(here).to(DEVICE), torch.rand(3, 2, 5, 5)
    here(images).square().sum().backward()
    moved(images.to(DEVICE)).square().sum().backward()
    for one, other in zip(here.parameters(), moved.parameters(), strict=True):
        assert torch.equal(other.grad.cpu(), one.grad)
