"""The small networks."""

import pluggy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from gemkit.core.prunable import prunable_names
from gemkit.data.fake import Fake
from gemkit.models import small
from gemkit.models.small import Conv4, LeNet300
from gemkit.plugins import hookspecs

SMALL = [Conv4(), Conv4(bn="affine", bias=True), LeNet300(), LeNet300(bias=True)]


@settings(deadline=None, max_examples=30)
@given(
    part=st.sampled_from(SMALL),
    shape=st.tuples(st.integers(1, 4), st.integers(4, 20), st.integers(4, 20)),
    classes=st.integers(2, 12),
)
def test_small_models_take_images_from_4_x_4(part, shape, classes):
    model = part.build(shape, classes)
    scores = model(torch.zeros(2, *shape))
    assert scores.shape == (2, classes)


def test_small_models_learn_on_every_device(device):
    data = Fake(samples=100).load(None).to(device)
    for part in (Conv4(width=4), LeNet300()):
        torch.manual_seed(0)
        model = part.build(data.shape, data.classes).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for epoch in range(8):
            for images, labels in data.train.batches(20, seed=0, epoch=epoch):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0], part.name


def test_conv4_widths_and_names_are_as_documented():
    model = Conv4(width=8).build((3, 8, 8), 10)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {
        "conv1.weight": (8, 3, 3, 3),
        "conv2.weight": (16, 8, 3, 3),
        "conv3.weight": (32, 16, 3, 3),
        "conv4.weight": (32, 32, 3, 3),
        "classifier.weight": (10, 32),
    }
    assert prunable_names(model) == list(shapes)


def test_lenet300_widths_and_names_are_as_documented():
    shapes = {
        name: tuple(p.shape) for name, p in LeNet300().build((1, 8, 8), 10).named_parameters()
    }
    assert shapes == {
        "fc1.weight": (300, 64),
        "fc2.weight": (100, 300),
        "classifier.weight": (10, 100),
    }


def test_conv4_halves_the_image_after_the_second_and_fourth_convolution():
    model = Conv4(width=2).build((1, 8, 12), 10)
    sizes = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(
            lambda _, args, out, name=name: sizes.update({name: tuple(out.shape[2:])})
        )
    model(torch.zeros(1, 1, 8, 12))
    assert (sizes["conv2"], sizes["pool2"], sizes["pool4"]) == ((8, 12), (4, 6), (2, 3))


@pytest.mark.parametrize("options", [{"width": 0}, {"width": 2.0}, {"bn": "none"}, {"depth": 3}])
def test_options_out_of_bounds_are_refused(options):
    with pytest.raises(ValidationError):
        Conv4(**options)


def test_the_models_are_registered_by_the_public_hook():
    manager = pluggy.PluginManager("gemkit")
    manager.add_hookspecs(hookspecs)
    manager.register(small)
    manager.check_pending()
    [offered] = manager.hook.gemkit_models()
    assert [part.name for part in offered] == ["conv4", "lenet300", "lenet5", "mlp", "conv1d"]
