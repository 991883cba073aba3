"""Networks of timm and torchvision: adapted to the data, loaded from files, or refused."""

import pickle
import subprocess
import sys
from typing import get_args

import pytest
import timm
import torch
import torchvision
from cli_runs import answer, commands_in
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call
from torch.torch_version import TorchVersion

from gemkit import load_plugins
from gemkit.cli.options import NORMS
from gemkit.core.errors import GemkitError, ModelError, OptionError
from gemkit.models.external import strip_biases_, strip_norms_
from gemkit.models.from_torchvision import Torchvision
from gemkit.models.weights import read_weights
from gemkit.tickets.ticket import Ticket

REGISTRY = load_plugins(only=())
RGB, GREY = (3, 32, 32), (1, 32, 32)


def part(spec, **fields):
    return REGISTRY.build("models", spec, fields)


def seeded(spec, shape=RGB, classes=5, **fields):
    torch.manual_seed(0)
    return part(spec, **fields).build(shape, classes)


def layers_of(model, *kinds):
    return [module for module in model.modules() if isinstance(module, kinds)]


# --- adapted to the data -------------------------------------------------------------------------

FITTING = [
    ("timm:resnet18", (1, 8, 8)),
    ("timm:resnet18.a1_in1k", RGB),
    ("timm:vit_tiny_patch16_224", (2, 48, 32)),
    ("timm:convnext_atto", RGB),
    ("torchvision:resnet18", (1, 28, 28)),
    ("torchvision:mobilenet_v3_small", (4, 32, 32)),
    ("torchvision:squeezenet1_1", RGB),
    ("torchvision:vit_b_32", GREY),
    ("torchvision:googlenet", (3, 64, 64)),
]


@pytest.mark.parametrize(("spec", "shape"), FITTING)
def test_a_network_is_built_for_the_datas_channels_size_and_classes(spec, shape):
    model = seeded(spec, shape)
    assert model.train()(torch.zeros(2, *shape)).shape == (2, 5)


def test_without_prepare_a_network_is_as_timm_builds_it():
    ours = seeded("timm:resnet18", prepare=False)
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=5)
    assert type(ours) is type(theirs)
    assert ours.training
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(torch.equal(state[name], value) for name, value in ours.state_dict().items())


UNFIT = [
    (
        "timm:vit_tiny_patch16_224",
        (3, 8, 8),
        r"cannot take a batch of inputs of 3 × 8 × 8.*larger inputs",
    ),
    (
        "torchvision:alexnet",
        RGB,
        r"'alexnet' of torchvision cannot take a batch of inputs of 3 × 32 × 32",
    ),
    ("torchvision:vit_b_32", (3, 32, 64), r"cannot take a batch.*width"),
    ("torchvision:vit_b_32", (3, 33, 33), r"cannot be built for images of 3 × 33 × 33"),
    ("timm:nf_resnet26", RGB, r"recomputes .* in every forward pass"),
    ("timm:resnet18.nonsense", RGB, r"cannot be built.*nonsense"),
]


@pytest.mark.parametrize(("spec", "shape", "reason"), UNFIT)
def test_a_network_that_cannot_take_the_images_is_refused(spec, shape, reason):
    with pytest.raises(GemkitError, match=reason):
        part(spec).build(shape, 5)


UNKNOWN = [
    ("timm:resnet19", "timm has no such network; did you mean 'resnet18'"),
    ("timm:qqqqq", "timm.list_models"),
    ("timm", "model.network must be given"),
    ("timm:hf_hub:somebody/something", "should match pattern"),
    ("timm:local-dir:/somewhere", "should match pattern"),
    ("torchvision:resnet19", "torchvision has no such classifier; did you mean 'resnet18'"),
    ("torchvision:fcn_resnet50", "no such classifier"),
]


@pytest.mark.parametrize(("spec", "reason"), UNKNOWN)
def test_an_unknown_network_is_an_error_before_anything_is_built(spec, reason):
    with pytest.raises(OptionError, match=reason):
        part(spec)


# --- biases and norms ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["timm:resnet18", "timm:mobilenetv3_small_050", "torchvision:mobilenet_v2"]
)
def test_biases_and_affine_norms_are_removed(spec):
    shape = RGB
    full, model = seeded(spec, shape), seeded(spec, shape, strip_bias=True, bn="plain")
    assert {layer.bias for layer in layers_of(model, nn.Conv2d, nn.Linear)} == {None}
    assert {norm.affine for norm in layers_of(model, nn.BatchNorm2d)} == {False}
    kept = set(model.state_dict())
    removed = set(full.state_dict()) - kept
    assert kept < set(full.state_dict())
    assert all(name.endswith((".bias", ".weight")) for name in removed)
    assert {name for name, _ in model.named_parameters()} == kept - {
        n for n, _ in model.named_buffers()
    }
    images = torch.randn(2, *shape)
    model.eval()
    torch.testing.assert_close(functional_call(model, model.state_dict(), (images,)), model(images))
    fresh = seeded(spec, shape, strip_bias=True, bn="plain")
    fresh.load_state_dict(model.state_dict())


def test_attention_loses_its_biases_and_layer_norms_keep_theirs():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    strip_biases_(model)
    strip_norms_(model)
    names = {name for name, _ in model.named_parameters()}
    assert {name for name in names if "bias" in name} == {"norm1.bias", "norm2.bias"}
    tokens = torch.randn(2, 3, 8)
    for training in (True, False):
        assert model.train(training)(tokens).shape == tokens.shape


# --- weights -------------------------------------------------------------------------------------


@pytest.fixture
def donor():
    torch.manual_seed(7)
    return timm.create_model("resnet10t", num_classes=5)


@pytest.fixture
def trusted_torch(monkeypatch):
    """Allow pickles with the installed version of torch."""
    monkeypatch.setattr("gemkit.models.weights._SAFE_TORCH", "2")


def wrapped(state):
    return {"epoch": 3, "state_dict": state}


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("w.safetensors", lambda state, file: save_file(state, file)),
        ("w.pth", torch.save),
        ("w.pt", lambda state, file: torch.save(wrapped(state), file)),
    ],
)
@pytest.mark.usefixtures("trusted_torch")
def test_weights_are_loaded_from_a_file(tmp_path, donor, name, save):
    save(donor.state_dict(), tmp_path / name)
    model = seeded("timm:resnet10t", weights=str(tmp_path / name))
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in donor.state_dict().items())


def test_weights_for_other_classes_do_not_change_the_last_layer(tmp_path, donor):
    save_file(donor.state_dict(), tmp_path / "w.safetensors")
    fresh = seeded("timm:resnet10t", classes=7)
    model = seeded("timm:resnet10t", classes=7, weights=str(tmp_path / "w.safetensors"))
    for name, value in model.state_dict().items():
        expected = fresh if name.startswith("fc.") else donor
        assert torch.equal(value, expected.state_dict()[name]), name


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was executed')",)


def renamed(state):
    return {name.replace("layer1", "stage1"): value for name, value in state.items()}


def reshaped(state):
    return {**state, "layer1.0.conv1.weight": torch.zeros(2, 2)}


WRONG = {
    "missing.pth": (None, "there is no weights file .*missing.pth"),
    "bomb.pth": (lambda state: Bomb(), "bomb.pth.*damaged or holds more than tensors"),
    "text.safetensors": ("text", "text.safetensors.*damaged"),
    "text.pth": ("text", "text.pth.*damaged"),
    "list.pth": (lambda state: [1, 2], "list.pth holds no weights"),
    "names.pth": (lambda state: {"a": 1}, "names.pth holds no weights"),
    "renamed.pth": (renamed, "renamed.pth do not fit.*resnet10t.*missing: '.*unknown.*'stage1."),
    "reshaped.pth": (
        reshaped,
        r"reshaped.pth do not fit.*'layer1.0.conv1.weight \(2, 2\) instead of \(64, 64, 3, 3\)'",
    ),
    "empty.pth": (lambda state: {}, r"missing: 'conv1.0.weight', .* more"),
}


@pytest.mark.parametrize("name", sorted(WRONG))
@pytest.mark.usefixtures("trusted_torch")
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path, donor, name):
    make, reason = WRONG[name]
    file = tmp_path / name
    if isinstance(make, str):
        file.write_text(make)
    elif make:
        torch.save(make(donor.state_dict()), file, pickle_module=pickle)
    with pytest.raises(ModelError, match=reason):
        part("timm:resnet10t", weights=str(file)).build(RGB, 5)


@pytest.mark.parametrize(
    ("version", "safe"), [("2.6.0+cu124", False), ("2.9.1", False), ("2.10.0", True)]
)
def test_a_pickle_is_read_only_by_a_safe_version_of_torch(
    tmp_path, donor, monkeypatch, version, safe
):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    torch.save(donor.state_dict(), tmp_path / "w.pth")
    save_file(donor.state_dict(), tmp_path / "w.safetensors")
    assert read_weights(tmp_path / "w.safetensors").keys() == donor.state_dict().keys()
    if safe:
        assert read_weights(tmp_path / "w.pth").keys() == donor.state_dict().keys()
    else:
        with pytest.raises(ModelError, match=r"w.pth is not read.*install torch 2\.10 or newer"):
            read_weights(tmp_path / "w.pth")


def test_pretrained_and_weights_exclude_each_other():
    with pytest.raises(ModelError, match="exclude each other"):
        part("timm:resnet10t", weights="w.pth", pretrained=True).build(RGB, 5)


def test_unavailable_pretrained_weights_are_explained(monkeypatch, tmp_path):
    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    for spec in ("timm:resnet10t", "torchvision:resnet18"):
        with pytest.raises(ModelError, match=r"no route to host.*model\.weights=FILE"):
            part(spec, pretrained=True).build(RGB, 5)
        part(spec, pretrained=True).skeleton(RGB, 5)  # a ticket brings its own weights


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_pretrained_weights_are_loaded_without_unpickling_and_adapted(monkeypatch, channels):
    torch.manual_seed(7)
    donor = torchvision.models.resnet18()
    arguments = {}

    def fetched(url, **settings):
        arguments.update(settings)
        return donor.state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetched)
    model = seeded("torchvision:resnet18", (channels, 32, 32), pretrained=True)
    assert arguments["weights_only"] is True
    assert arguments["check_hash"] is True
    assert torch.equal(model.layer4[1].conv2.weight, donor.layer4[1].conv2.weight)
    assert model.fc.weight.shape == (5, 512)
    if channels == 3:
        assert torch.equal(model.conv1.weight, donor.conv1.weight)
    grey = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(
        model.conv1(grey.expand(-1, channels, -1, -1)), donor.conv1(grey.expand(-1, 3, -1, -1))
    )


def test_auxiliary_heads_are_left_out_of_pretrained_weights(monkeypatch):
    donor = torchvision.models.googlenet(aux_logits=True, init_weights=False)
    assert any(key.startswith("aux") for key in donor.state_dict())
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda *_, **__: donor.state_dict()
    )
    model = Torchvision(network="googlenet", pretrained=True).build((3, 64, 64), 5)
    assert torch.equal(model.conv1.conv.weight, donor.conv1.conv.weight)


# --- on the command line -------------------------------------------------------------------------

TINY = (
    *("--dataset", "fake", "-o", "dataset.samples=30", "-o", "dataset.size=32"),
    *("--epochs", "1", "--pruner", "magnitude", "--density", "0.3", "--device", "cpu"),
)


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


def test_a_run_on_timm_and_its_ticket_without_the_weights(gemkit, tmp_path, donor):
    save_file(donor.state_dict(), tmp_path / "w.safetensors")
    model = ("--model", "timm:resnet10t", "-o", "model.weights=w.safetensors", "--strip-bias")
    run = answer(gemkit("run", *TINY, *model, "--bn", "plain", "--json"))
    assert run["model"] == {
        "name": "timm",
        "strip_bias": True,
        "bn": "plain",
        "prepare": True,
        "network": "resnet10t",
        "pretrained": False,
        "weights": "w.safetensors",
    }
    ticket = Ticket.load(run["ticket"])
    assert torch.equal(ticket.state["conv1.0.weight"], donor.state_dict()["conv1.0.weight"])
    assert ticket.info.versions["timm"] == timm.__version__
    assert "ticket for timm:resnet10t for 3x32x32" in ticket.summary()
    (tmp_path / "w.safetensors").unlink()
    shown = answer(gemkit("eval", run["finetuned"], "--json", "--device", "cpu"))
    assert shown["accuracy"] == run["accuracy_after"]


MISTAKES = {
    "--model timm:resnet19": ["model.network = 'resnet19'", "'resnet18'"],
    "--model lenet300 --bn plain": ["--bn does not apply to model 'lenet300'", "no field 'bn'"],
    "--model lenet5 --bn batch": ["--bn", "'affine'"],
    "--model conv6 --strip-bias": ["unknown model 'conv6'"],
    "--model resnet20:3": ["takes nothing after a colon"],
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_end_with_one_message(gemkit, words):
    shown = gemkit("run", *TINY, *words.split())
    assert shown.exit_code == 2
    for piece in MISTAKES[words]:
        assert piece in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ((), {"bias": False, "bn": "plain"}),
        (("--strip-bias", "--bn", "affine"), {"bias": False, "bn": "affine"}),
        (("-o", "model.bias=true"), {"bias": True, "bn": "plain"}),
        (("-o", "model.bias=true", "--strip-bias"), {"bias": True, "bn": "plain"}),
    ],
)
def test_the_switches_are_the_built_in_networks_fields(gemkit, flags, fields):
    run = answer(gemkit("run", *TINY, "-o", "model.width=4", *flags, "--json"))
    assert {key: run["model"][key] for key in fields} == fields


def test_the_choices_of_the_option_bn_are_those_of_every_network():
    for entry in REGISTRY.parts["models"].values():
        if "bn" in entry.thing.model_fields:
            assert set(get_args(entry.thing.model_fields["bn"].annotation)) == set(NORMS)


def test_loading_plugins_does_not_import_the_libraries():
    code = (
        "import sys; from gemkit import load_plugins; load_plugins(only=()); "
        "print({'timm', 'torchvision'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
