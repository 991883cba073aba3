"""Masks from elsewhere: checked, compacted, benchmarked and saved like tickets of a search."""

import warnings

import pytest
import torch
from cli_runs import answer, commands_in
from tiny import CPU, PLAN, tiny_data, tiny_net
from torch import nn
from torch.nn.utils import prune

import gemkit
from gemkit import Ticket, load_plugins, prunable_names
from gemkit.compaction import compact, difference
from gemkit.core.errors import GemkitError, GemkitWarning, TicketError
from gemkit.models.weights import load_weights

SHAPE = (2, 6, 6)


def random_masks(model, density=0.5):
    rng = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(model.get_parameter(name).shape, generator=rng) < density
        for name in prunable_names(model)
    }


def test_masks_may_be_booleans_or_numbers_and_come_in_any_order():
    model = tiny_net()
    masks = random_masks(model)
    ticket = Ticket.from_masks(model, masks)
    shuffled = {name: masks[name].float() for name in reversed(list(masks))}
    assert list(Ticket.from_masks(model, shuffled).mask) == prunable_names(model)
    assert Ticket.from_masks(model, shuffled) == ticket
    assert ticket.kept == sum(int(mask.sum()) for mask in masks.values())
    assert ticket.info.density_target == ticket.density
    assert torch.equal(ticket.state["0.weight"], model[0].weight)
    assert "imported ticket for a model without a name" in ticket.summary()


def test_weights_without_a_mask_are_not_pruned():
    model = tiny_net()
    ticket = Ticket.from_masks(
        model,
        {
            "3.weight": torch.zeros_like(model[3].weight).bool()[:]
            | (torch.arange(3).view(1, 1, 1, 3) == 1)
        },
    )
    assert ticket.prunable == model[3].weight.numel()
    assert ticket.apply(tiny_net())[0].weight.all()


BAD = {
    "a name": (lambda m: {"9.weight": m["0.weight"]}, "mask '9.weight' belongs to no weight"),
    "a bias": (lambda m: {"0.bias": torch.ones(6)}, "mask '0.bias' belongs to no weight"),
    "a shape": (lambda m: {"0.weight": m["8.weight"]}, "must be a tensor of shape .* not "),
    "no tensor": (lambda m: {"0.weight": [1]}, "must be a tensor of shape .* not list"),
    "numbers": (lambda m: {"0.weight": m["0.weight"] * 0.5}, "other values than 0 and 1"),
    "NaN": (lambda m: {"0.weight": m["0.weight"] * torch.nan}, "other values than 0 and 1"),
    "nothing kept": (lambda m: {"0.weight": m["0.weight"] & False}, "the masks keep no weight"),
    "no masks": (lambda m: {}, "the masks are empty"),
}


@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD)
def test_what_is_no_mask_is_refused(change, words):
    model = tiny_net()
    with pytest.raises(TicketError, match=words):
        Ticket.from_masks(model, change(random_masks(model)))


FACTS = {
    "a list": ({"shape": [3, 32, 32]}, r"\(shape: Input should be a valid tuple\)"),
    "no classes": ({"classes": 0}, r"\(classes: Input should be greater than"),
    "a long name": ({"name": "x" * 513}, r"\(name: String should have at most"),
    "a number": ({"name": 3}, r"\(name: Input should be a valid string\)"),
}


@pytest.mark.parametrize(("facts", "words"), FACTS.values(), ids=FACTS)
def test_facts_that_no_ticket_can_record_are_refused(facts, words):
    model = tiny_net()
    masks = random_masks(model)
    with pytest.raises(TicketError, match=words) as refused:
        Ticket.from_masks(model, masks, **facts)
    assert "\n" not in str(refused.value)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.raises(TicketError, match=words):
        Ticket.from_pruned(model, **facts)


@pytest.mark.parametrize("masks", [None, [torch.ones(3)], "0.weight"])
def test_masks_have_names(masks):
    with pytest.raises(TicketError, match="masks must be a dict of tensors by parameter name, not"):
        Ticket.from_masks(tiny_net(), masks)


@pytest.mark.parametrize("shape", [(16,), (3, 16), (1, 4, 4, 4)])
def test_inputs_may_have_any_shape(shape):
    model = tiny_net()
    ticket = Ticket.from_masks(model, random_masks(model), shape=shape)
    assert ticket.info.shape == shape


def test_layers_that_keep_no_weight_are_named():
    model = tiny_net()
    masks = random_masks(model)
    masks["3.weight"] &= False
    with pytest.warns(GemkitWarning, match=r"keep no weight of '3.weight'; they output") as seen:
        ticket = Ticket.from_masks(model, masks)
    assert seen[0].filename == __file__
    assert not ticket.mask["3.weight"].any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ticket.from_masks(model, random_masks(model))


def test_a_tied_weight_has_one_mask():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 72), nn.Linear(72, 72), nn.Linear(72, 3))
    model[2].weight = model[1].weight
    mask = torch.rand(72, 72) < 0.5
    ticket = Ticket.from_masks(model, {"2.weight": mask})
    assert list(ticket.mask) == ["1.weight"]
    assert ticket.info.tied == [["1.weight", "2.weight"]]
    with pytest.raises(TicketError, match=r"'2.weight' and '1.weight' differ"):
        Ticket.from_masks(model, {"2.weight": mask, "1.weight": ~mask})


def test_an_imported_ticket_is_saved_finetuned_and_compacted(tmp_path):
    model, data = tiny_net(), tiny_data()
    ticket = Ticket.from_masks(model, random_masks(model, 0.2), shape=SHAPE, classes=3)
    ticket.save(tmp_path / "t.safetensors")
    again = Ticket.load(tmp_path / "t.safetensors")
    assert again == ticket
    assert again.info.recipe is None
    trained = gemkit.finetune(again, model, data, plan=PLAN, runtime=CPU)
    assert trained.info.stage == "finetuned"
    small = compact(again, model)
    masked = again.apply(tiny_net())
    assert difference(masked, small.model, torch.randn(4, *SHAPE)) < 1e-9


def test_a_wrapped_model_gives_the_names_inside():
    model = tiny_net()
    masks = random_masks(model)
    assert Ticket.from_masks(nn.DataParallel(model), masks) == Ticket.from_masks(model, masks)


# --- pruned models --------------------------------------------------------------------------------


def test_zeros_are_read():
    model = tiny_net()
    masks = random_masks(model)
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    ticket = Ticket.from_pruned(model)
    assert all(torch.equal(ticket.mask[name], mask) for name, mask in masks.items())


def test_the_masks_of_torch_prune_are_read():
    model, plain = tiny_net(), tiny_net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[8], "weight", amount=0.5)
    prune.random_unstructured(model[8], "bias", amount=1)
    ticket = Ticket.from_pruned(model)
    assert torch.equal(ticket.mask["0.weight"], model[0].weight_mask.bool())
    assert torch.equal(ticket.state["0.weight"], plain[0].weight), "pruned weights keep values"
    assert ticket.mask["3.weight"].all()
    assert set(ticket.state) == set(plain.state_dict())
    images = torch.randn(2, *SHAPE)
    assert torch.equal(ticket.apply(plain).eval()(images), model.eval()(images))


def test_zeros_beside_the_masks_of_torch_prune_are_values():
    """A layer may start at zero, as the last one of a residual branch does."""
    model = tiny_net()
    nn.init.zeros_(model[3].weight)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    ticket = Ticket.from_pruned(model)
    assert ticket.mask["3.weight"].all()
    assert not ticket.mask["0.weight"].all()
    prune.remove(model[0], "weight")
    prune.identity(model[0], "weight")
    with pytest.raises(TicketError, match=r"its masks of torch.nn.utils.prune keep every weight"):
        Ticket.from_pruned(model)


def test_a_model_that_is_not_pruned_is_refused():
    with pytest.raises(TicketError, match="Sequential is not pruned: its weights have no zeros"):
        Ticket.from_pruned(tiny_net())
    model = tiny_net()
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(GemkitError, match=r"recomputes '0.weight'.*remove_parametrizations"):
        Ticket.from_pruned(model)


def test_zeros_of_padding_are_no_mask():
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight[0] = 0
    assert list(Ticket.from_pruned(model).mask) == ["1.weight"]


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Save an imported ticket of a registered network; return the commands and their options."""
    run = commands_in(tmp_path, monkeypatch)
    part = load_plugins(only=()).build("models", {"name": "conv4", "width": 4})
    model = part.build((1, 8, 8), 4)
    Ticket.from_masks(model, random_masks(model, 0.3), name="theirs").save("t.safetensors")
    world = ("--model", "conv4", "-o", "model.width=4", "--dataset", "fake")
    return run, (
        *world,
        "-o",
        "dataset.samples=60",
        "-o",
        "dataset.size=8",
        "-o",
        "dataset.channels=1",
    )


def test_the_checks_that_change_a_ticket_run(saved):
    run, world = saved
    checks = "shuffle,weight_shuffle,reinit:kaiming_normal,random_like,erk"
    done = run(
        "check",
        "t.safetensors",
        "--checks",
        checks,
        *world,
        "--seeds",
        "2",
        "--finetune-epochs",
        "1",
        "--device",
        "cpu",
        "--json",
    )
    data = answer(done)
    assert len(data["trials"]) == 2 * 6
    assert {one["check"] for one in data["verdicts"]} == set(checks.split(","))
    assert not data["unmade"]


SENTENCES = {
    "reinit": "does not record how its weights were drawn; name an initializer: reinit:as_built",
    "invert": "the ticket's mask was found elsewhere, so its search cannot be repeated",
    "random_labels": "the ticket's mask was found elsewhere, so its search cannot be repeated",
}


@pytest.mark.parametrize(("check", "words"), SENTENCES.items(), ids=SENTENCES)
def test_the_checks_that_need_the_recipe_say_so(saved, check, words):
    run, world = saved
    done = run("check", "t.safetensors", "--checks", check, *world, "--seeds", "1")
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_other_commands_take_an_imported_ticket(saved):
    run, world = saved
    assert answer(run("compact", "t.safetensors", *world, "--json"))["error"] < 1e-9
    assert set(answer(run("bench", "t.safetensors", *world, "--turns", "1", "--json"))["forms"])
    assert answer(run("eval", "t.safetensors", *world, "--json"))["pruner"] == "theirs"
    shown = run("ticket", "show", "t.safetensors")
    assert "elsewhere" in shown.stdout
    assert run("ticket", "verify", "t.safetensors").exit_code == 0
    without = run("bench", "t.safetensors")
    assert without.exit_code == 2
    assert "does not say which model it belongs to; give --model" in without.stderr


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.net."])
@pytest.mark.parametrize("key", [None, "state_dict"])
def test_weights_of_a_file_are_loaded_without_their_prefix(tmp_path, monkeypatch, prefix, key):
    monkeypatch.setattr("gemkit.models.weights._SAFE_TORCH", "2")
    donor = tiny_net()
    with torch.no_grad():
        donor[0].weight.fill_(3)
    state = {prefix + name: value for name, value in donor.state_dict().items()}
    torch.save(state if key is None else {key: state, "epoch": 3}, tmp_path / "w.pth")
    model = tiny_net()
    assert load_weights(model, tmp_path / "w.pth") is model
    assert bool((model[0].weight == 3).all())


def test_weights_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gemkit.models.weights._SAFE_TORCH", "2")
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "w.pth")
    with pytest.raises(GemkitError, match=r"do not fit Sequential; missing: '0.weight'"):
        load_weights(tiny_net(), tmp_path / "w.pth")
