"""The paper's networks: exact counts, the right layers in the right places, and every pruner."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
import torchvision
from tiny import CPU, tiny_data
from torch import nn

from gemkit import Data, Plan, finetune, load_plugins, prunable_names, search
from gemkit.core.errors import DataError, FitError, ImportanceError
from gemkit.core.tensors import budget, parameters_of, total

REGISTRY = load_plugins(only=())
NETWORKS = sorted(
    name for name, entry in REGISTRY.parts["models"].items() if entry.thing.argument is None
)
SMALL, CIFAR, TINY_IMAGENET, IMAGENET = ((3, size, size) for size in (8, 32, 64, 224))
LEAST_SIZE = {"vgg16": 32, "lenet5": 16}
OTHER_SHAPES = {"conv1d": (3, 8), "mlp": (7,), "transformer": (6,)}
"""Inputs of networks that are not for images."""


def part(name, **fields):
    return REGISTRY.build("models", name, fields)


def tiny(name, **fields):
    """Return the narrowest form of a network, and the smallest inputs it takes."""
    narrow = {"width": 2} if "width" in fields_of(name) else {}
    size = LEAST_SIZE.get(name, 8)
    return part(name, **narrow, **fields), OTHER_SHAPES.get(name, (3, size, size))


def data_for(name, shape):
    """Return a few inputs of three classes: tokens for the transformer."""
    if name != "transformer":
        return tiny_data(shape=shape, samples=6)
    tokens = torch.arange(36).reshape(6, 6) * 5 % 24
    pair = (tokens, torch.arange(6) % 3)
    return Data.of_tensors(train=pair, validation=pair, test=pair)


def fields_of(name):
    return REGISTRY.part("models", name).thing.model_fields


def layers_of(model, *kinds):
    return [module for module in model.modules() if isinstance(module, kinds)]


# --- counts --------------------------------------------------------------------------------------

COUNTS = [
    # name, fields, image, classes, layers, weights
    ("resnet20", {}, CIFAR, 10, 20, 268_336),
    ("resnet32", {}, CIFAR, 10, 32, 461_872),
    ("resnet32", {}, CIFAR, 100, 32, 467_632),
    ("resnet32", {"width": 32}, CIFAR, 100, 32, 1_856_864),
    ("resnet18", {}, CIFAR, 10, 21, 11_164_352),
    ("resnet18", {}, TINY_IMAGENET, 200, 21, 11_269_312),
    ("resnet18", {}, IMAGENET, 1000, 21, 11_678_912),
    ("resnet50", {}, IMAGENET, 1000, 54, 25_502_912),
    ("resnet50", {}, TINY_IMAGENET, 200, 54, 23_864_512),
    ("wide_resnet28_2", {}, CIFAR, 10, 29, 1_463_984),
    ("vgg16", {}, CIFAR, 10, 14, 14_715_584),
    ("vgg16", {}, TINY_IMAGENET, 200, 14, 14_812_864),
    ("mobilenet_v2", {}, CIFAR, 10, 58, 2_261_824),
    ("mobilenet_v2", {}, TINY_IMAGENET, 200, 58, 2_505_024),
    ("conv4", {}, CIFAR, 10, 5, 60_976),
    ("lenet300", {}, (1, 28, 28), 10, 3, 266_200),
    ("lenet5", {}, (1, 28, 28), 10, 4, 430_500),
    ("mlp", {}, (20,), 5, 4, 35_968),
    ("conv1d", {}, (8, 8), 10, 5, 20_992),
    ("transformer", {}, (32,), 4, 13, 16_512),
]


@pytest.mark.parametrize(("name", "fields", "shape", "classes", "layers", "weights"), COUNTS)
def test_the_number_of_prunable_weights_is_exact(name, fields, shape, classes, layers, weights):
    with torch.device("meta"):
        model = part(name, **fields).build(shape, classes)
    names = prunable_names(model)
    assert (len(names), total(parameters_of(model, names))) == (layers, weights)
    embeddings = sum(own.weight.numel() for own in layers_of(model, nn.Embedding))
    assert sum(p.numel() for p in model.parameters()) == weights + embeddings  # nothing else


def test_every_network_is_counted():
    assert {row[0] for row in COUNTS} == set(NETWORKS)


# --- structure -----------------------------------------------------------------------------------


def same_weights(ours, theirs):
    """Copy parameters and buffers by their order."""
    for mine, other in (
        (list(ours.parameters()), list(theirs.parameters())),
        (list(ours.buffers()), list(theirs.buffers())),
    ):
        assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in other]
        for own, foreign in zip(mine, other, strict=True):
            own.data.copy_(foreign)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_large_resnets_compute_what_torchvisions_do(name):
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(name, num_classes=10)
    theirs.fc = nn.Linear(theirs.fc.in_features, 10, bias=False)
    ours = part(name, bn="affine").build(TINY_IMAGENET, 10)
    same_weights(ours, theirs)
    images = torch.randn(2, *TINY_IMAGENET)
    torch.testing.assert_close(ours(images), theirs(images))


def test_vgg16_computes_what_torchvisions_convolutions_do():
    torch.manual_seed(0)
    plan = torchvision.models.vgg.cfgs["D"]
    theirs = torchvision.models.vgg.make_layers(plan, batch_norm=True)
    ours = part("vgg16", bn="affine", bias=True).build(CIFAR, 10)
    features = ours[: list(dict(ours.named_children())).index("average")]
    same_weights(features, theirs)
    images = torch.randn(2, *CIFAR)
    torch.testing.assert_close(features(images), theirs(images))


def test_a_wide_blocks_shortcut_follows_the_norm_only_if_the_shape_changes():
    model = part("wide_resnet28_2", width=2).build(CIFAR, 10)
    first, second = model.blocks[0], model.blocks[1]
    x = torch.randn(2, 2, 6, 6)
    inner = F.relu(first.bn1(x))
    change = first.sum.change
    expected = change.conv2(F.relu(change.bn2(change.conv1(inner)))) + first.sum.shortcut(inner)
    torch.testing.assert_close(first(x), expected)
    x, change = expected, second.change
    inner = change.conv1(F.relu(change.bn1(x)))
    torch.testing.assert_close(second(x), change.conv2(F.relu(change.bn2(inner))) + x)


def test_mobilenet_has_shortcuts_only_at_stride_1_and_convolutions_if_channels_change():
    model = part("mobilenet_v2").build(CIFAR, 10)
    kinds = []
    for block in model.blocks:
        shortcut = getattr(block, "shortcut", None)
        kinds.append("-" if shortcut is None else "c" if hasattr(shortcut, "conv") else "=")
    assert "".join(kinds) == "cc=-==-===c==-==c"
    x = torch.randn(2, 32, 6, 6)
    block = model.blocks[0]
    torch.testing.assert_close(block(x), block.change(x) + block.shortcut(x))
    assert (block(x) < 0).any()  # no ReLU at the end of a block


def test_a_small_resnets_shortcut_subsamples_and_zero_pads():
    model = part("resnet20", width=3).build(CIFAR, 10)
    block = model.blocks[3]
    x = torch.randn(2, 3, 5, 5)
    passed = block.shortcut(x)
    assert passed.shape == (2, 6, 3, 3)
    assert torch.equal(passed[:, 1:4], x[:, :, ::2, ::2])
    assert passed[:, [0, 4, 5]].count_nonzero() == 0
    torch.testing.assert_close(block(x), F.relu(block.change(x) + passed))


LAST_MAP = [
    ("resnet20", CIFAR, 8),
    ("resnet18", CIFAR, 4),
    ("resnet18", TINY_IMAGENET, 2),
    ("resnet50", CIFAR, 4),
    ("wide_resnet28_2", CIFAR, 8),
    ("vgg16", CIFAR, 1),
    ("vgg16", TINY_IMAGENET, 2),
    ("mobilenet_v2", CIFAR, 4),
]


@pytest.mark.parametrize(("name", "shape", "size"), LAST_MAP)
def test_images_shrink_as_far_as_in_the_paper(name, shape, size):
    model, seen = tiny(name)[0].build(shape, 10), []
    model.average.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[2:]))
    model.eval()(torch.zeros(1, *shape))
    assert seen == [(size, size)]


@pytest.mark.parametrize(
    ("stem", "shape", "size"),
    [
        ("auto", (3, 63, 64), 3),
        ("auto", (3, 64, 64), 7),
        ("cifar", IMAGENET, 3),
        ("imagenet", CIFAR, 7),
    ],
)
def test_the_stem_is_chosen_by_image_size_unless_given(stem, shape, size):
    model = part("resnet18", width=2, stem=stem).build(shape, 10)
    assert model.conv1.kernel_size == (size, size)
    assert hasattr(model, "pool1") == (size == 7)


# --- switches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_have_biases_only_if_configured(name, bias):
    network, shape = tiny(name, bias=bias)
    layers = layers_of(network.build(shape, 4), nn.Conv1d, nn.Conv2d, nn.Linear)
    assert {layer.bias is not None for layer in layers} == {bias}


@pytest.mark.parametrize("bn", ["plain", "affine"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if "bn" in fields_of(name)])
def test_norms_are_affine_only_if_configured(name, bn):
    network, shape = tiny(name, bn=bn)
    norms = layers_of(network.build(shape, 4), nn.BatchNorm1d, nn.BatchNorm2d)
    assert {norm.affine for norm in norms} == {bn == "affine"}


def test_the_networks_without_batch_norm():
    without = {name for name in NETWORKS if "bn" not in fields_of(name)}
    assert without == {"lenet300", "lenet5", "transformer"}


@pytest.mark.parametrize(("name", "size"), [("vgg16", 32), ("lenet5", 16), ("conv4", 4)])
def test_images_that_are_too_small_are_refused(name, size):
    part(name).build((1, size, size), 3).eval()(torch.zeros(1, 1, size, size))
    for shape in ((1, size - 1, size), (1, size, size - 1)):
        with pytest.raises(DataError, match=f"'{name}'.*{size} × {size} or larger.*lenet300"):
            part(name).build(shape, 3)


# --- every pruner --------------------------------------------------------------------------------


MISFITS = {
    **{(name, "smart_ratio"): FitError for name in ("lenet300", "mlp", "transformer")},
    ("transformer", "synflow"): ImportanceError,
}
"""Smart Ratio has fixed densities for linear layers, so without convolutions it has no budget to
distribute. SynFlow needs inputs that are values."""


@cache
def short_recipe(pruner):
    """Return a recipe with as few freezes as possible, rewinding to initialization."""
    recipe = REGISTRY.recipe(pruner)
    known = type(recipe.schedule).model_fields
    in_a_row = "rounds" in known and recipe.schedule.rounds is not None
    quick = {"rounds": 2} if in_a_row else {"every": 1, "fraction": 0.5}
    options = {f"schedule.{key}": value for key, value in quick.items() if key in known}
    options |= {f"rewind.{key}": 0 for key in recipe.rewind.model_dump(exclude_none=True)}
    return REGISTRY.recipe(pruner, options=options)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("pruner", sorted(REGISTRY.pruners))
@pytest.mark.parametrize("name", NETWORKS)
def test_every_pruner_prunes_every_network_and_it_trains(name, pruner):
    network, shape = tiny(name)
    torch.manual_seed(0)
    model = network.build(shape, 3)
    data, recipe = data_for(name, shape), short_recipe(pruner)
    # Networks of two channels may have layers that six images do not reach.
    plan = Plan(epochs=2, batch_size=6, lr=0.1, on_no_signal="warn", allow_ties=True)
    if (name, pruner) in MISFITS:
        with pytest.raises(MISFITS[name, pruner]):
            search(recipe, model, data, density=0.5, plan=plan, runtime=CPU)
        return
    ticket = search(recipe, model, data, density=0.5, plan=plan, runtime=CPU, on_collapse="warn")
    assert list(ticket.mask) == prunable_names(model)
    target = recipe.density or 0.5
    assert 0 < ticket.kept <= budget(ticket.prunable, target)
    trained = finetune(ticket, model, data, plan=Plan(epochs=1, lr=0.1), runtime=CPU)
    network = trained.apply(model)
    weights = {layer: network.get_parameter(layer) for layer in ticket.mask}
    assert all(weights[layer][~mask].count_nonzero() == 0 for layer, mask in ticket.mask.items())
    assert any(
        (trained.state[layer] != ticket.state[layer])[mask].any()
        for layer, mask in ticket.mask.items()
    )
