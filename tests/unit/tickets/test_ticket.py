"""The ticket as a value, in a model, and as a file in which all damage is detected."""

import errno
import json
import os
import stat
import struct
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forging import forge, raw
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from gemkit.core.errors import TicketError
from gemkit.core.prunable import prunable_names
from gemkit.core.tensor_file import DTYPES, Document
from gemkit.core.tensors import generator
from gemkit.tickets import file as ticket_file
from gemkit.tickets.apply import effective
from gemkit.tickets.file import pack, unpack
from gemkit.tickets.info import FreezeRecord, TicketInfo
from gemkit.tickets.ticket import Ticket
from gemkit.training.plan import Plan

INFO = TicketInfo(
    pruner="gem_miner",
    recipe={"pruner": "gem_miner", "scores": {"name": "uniform"}, "density": 0.1},
    model={"name": "small"},
    dataset={"name": "digits"},
    shape=(3, 8, 8),
    classes=4,
    density_target=0.3,
    seed=7,
    epochs=2,
    plan=Plan(epochs=2, lr=0.3, weight_decay=0.0),
    stage="found",
    versions={"gemkit": "0.1.0", "torch": "2.15.0"},
    history=[FreezeRecord(step=0, target=1.0, alive=300, kept=150)],
    alive=200,
)


class Small(nn.Module):
    """Convolution, batch norm and a linear layer: parameters, float buffers and a counter."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


class Tied(nn.Module):
    """Two names share one weight."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        if tie:
            self.second.weight = self.first.weight


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def ticket_of(model, density=0.3, info=INFO):
    rng = generator(3, "mask")
    mask = {
        name: torch.rand(model.get_parameter(name).shape, generator=rng) < density
        for name in prunable_names(model)
    }
    return Ticket(mask, model.state_dict(), info)


@pytest.fixture
def ticket():
    return ticket_of(seeded(Small))


def same(a, b):
    """Compare two tickets without their digests: names in order, types, shapes and bytes."""
    pairs = [(a.mask, b.mask), (a.state, b.state)]
    return a.info == b.info and all(
        list(left) == list(right)
        and all(left[n].dtype == right[n].dtype for n in left)
        and all(left[n].shape == right[n].shape for n in left)
        and all(raw(left[n]) == raw(right[n]) for n in left)
        for left, right in pairs
    )


# --- the value -----------------------------------------------------------------------------------


def test_counts_are_exact_and_per_layer(ticket):
    counts = [int(mask.sum()) for mask in ticket.mask.values()]
    assert ticket.layers == [
        ("conv.weight", (5, 3, 3, 3), counts[0], 135),
        ("head.weight", (4, 5), counts[1], 20),
    ]
    assert (ticket.kept, ticket.prunable) == (sum(counts), 155)
    assert ticket.density == sum(counts) / 155


def test_a_ticket_does_not_change_when_its_model_is_trained():
    model = seeded(Small)
    alias = model.state_dict()
    taken = ticket_of(model)
    before = taken.digest()
    with torch.no_grad():
        model.conv.weight.add_(1)
    assert taken.digest() == before
    # a broken version that keeps state_dict() itself would have changed:
    assert not torch.equal(alias["conv.weight"], taken.state["conv.weight"])


def test_tickets_are_equal_by_value_and_cannot_be_reassigned(ticket):
    twin = ticket_of(seeded(Small))
    assert twin == ticket
    assert len({twin, ticket}) == 1
    assert replace(ticket, info=INFO.model_copy(update={"seed": 8})) != ticket
    other = {**ticket.mask, "head.weight": ~ticket.mask["head.weight"]}
    assert replace(ticket, mask=other) != ticket
    backwards = dict(reversed(ticket.mask.items()))
    assert replace(ticket, mask=backwards) != ticket
    with pytest.raises(FrozenInstanceError):
        ticket.info = INFO
    assert "gem_miner ticket for small for 3x8x8 images and 4 classes" in repr(ticket)


def test_the_constructor_lists_every_flaw():
    weight = torch.zeros(3)
    mask = {"gone": torch.ones(3, dtype=torch.bool), "bent": torch.ones(2), "soft": torch.ones(3)}
    with pytest.raises(TicketError) as error:
        Ticket(mask, {"bent": weight, "soft": weight}, INFO)
    assert "without weights in the state: 'gone'" in str(error.value)
    assert "another shape than their weights: 'bent'" in str(error.value)
    assert "not boolean: 'bent', 'soft'" in str(error.value)


@pytest.mark.parametrize(
    "odd",
    [
        torch.zeros(2, device="meta"),
        torch.zeros(2, dtype=torch.float8_e5m2),
        torch.zeros(2).to_sparse(),
        "text",
    ],
)
def test_the_constructor_refuses_what_a_file_cannot_hold(odd):
    mask = {"w": torch.ones(2, dtype=torch.bool)}
    with pytest.raises(TicketError, match="'odd'"):
        Ticket(mask, {"w": torch.ones(2), "odd": odd}, INFO)


@pytest.mark.parametrize("shape", [None, (0, 4)])
def test_a_ticket_needs_a_mask_with_entries(shape):
    mask = {} if shape is None else {"w": torch.ones(shape, dtype=torch.bool)}
    state = {"w": torch.ones(shape or (2,))}
    with pytest.raises(TicketError, match="no entries"):
        Ticket(mask, state, INFO)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "7"},
        {"stage": "lost"},
        {"density_target": float("nan")},
        {"density_target": 0.0},
        {"recipe": {"deep": [{"er": float("inf")}]}},
        {"recipe": {"alien": object()}},
        {"shape": (3, 0)},
        {"shape": ()},
        {"shape": (1,) * 17},
        {"plan": {"epochs": -1}},
        {"plan": {"momentums": 0.9}},
        {"unknown": 1},
    ],
)
def test_info_refuses_what_it_should_not_hold(change):
    with pytest.raises(ValidationError):
        TicketInfo(**{**dict(INFO), **change})


# --- in a model ----------------------------------------------------------------------------------


def test_apply_gives_a_fresh_model_the_kept_weights_and_the_rest_of_the_state():
    source = seeded(Small)
    source.norm.running_mean += 0.5
    source.norm.num_batches_tracked += 3
    taken = ticket_of(source)
    fresh = seeded(Small, seed=1)
    assert taken.apply(fresh) is fresh
    for name, tensor in fresh.state_dict().items():
        mask = taken.mask.get(name, torch.tensor(1))
        assert torch.equal(tensor, taken.state[name] * mask), name
    with torch.no_grad():
        for name, mask in taken.mask.items():
            source.get_parameter(name).mul_(mask)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(fresh.eval()(x), source.eval()(x))


def test_pruned_weights_become_plus_zero_even_where_they_were_infinite(ticket):
    weight, mask = ticket.state["conv.weight"], ticket.mask["conv.weight"]
    weight[~mask] = -torch.inf
    pruned = ticket.apply(Small()).conv.weight[~mask]
    assert torch.equal(pruned, torch.zeros_like(pruned))
    assert not pruned.signbit().any()
    assert (weight * mask).isnan().any()  # a broken version that multiplies


def test_apply_keeps_channels_last_and_gradients_off(ticket):
    model = Small().to(memory_format=torch.channels_last)
    ticket.apply(model)
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.conv.weight.is_leaf
    assert model.conv.weight.requires_grad
    expected = ticket.apply(Small()).conv.weight
    assert torch.equal(model.conv.weight, expected)


def test_a_mask_survives_tied_weights():
    model = seeded(Tied)
    taken = ticket_of(model)
    assert list(taken.mask) == ["first.weight"]
    fresh = taken.apply(seeded(Tied, seed=1))
    assert torch.equal(fresh.second.weight != 0, taken.mask["first.weight"])
    # a broken version that ignores ties brings pruned weights back under the second name:
    fresh.load_state_dict(effective(taken.mask, taken.state, own={}))
    assert not torch.equal(fresh.second.weight != 0, taken.mask["first.weight"])


def test_the_masked_name_of_a_tied_weight_may_come_last():
    model = seeded(Tied)
    kept = torch.eye(4, dtype=torch.bool)
    taken = Ticket({"second.weight": kept}, model.state_dict(), INFO)
    assert torch.equal(taken.apply(seeded(Tied, seed=1)).first.weight != 0, kept)


@pytest.mark.parametrize("differ", ["state", "mask"])
def test_a_model_that_ties_weights_which_differ_in_the_ticket_is_refused(differ):
    untied = seeded(lambda: Tied(tie=False))
    if differ == "mask":
        untied.load_state_dict(seeded(Tied).state_dict())
    kept = torch.eye(4, dtype=torch.bool)
    other = ~kept if differ == "mask" else kept
    taken = Ticket({"first.weight": kept, "second.weight": other}, untied.state_dict(), INFO)
    taken.apply(Tied(tie=False))
    with pytest.raises(TicketError, match="tied in the model but different in the ticket"):
        taken.apply(Tied())


def test_apply_keeps_the_models_device(ticket, device):
    model = ticket.apply(Small().to(device))
    assert {tensor.device.type for tensor in model.state_dict().values()} == {device.type}
    assert torch.equal(model.conv.weight.cpu() != 0, ticket.mask["conv.weight"])
    mask = {name: mask.to(device) for name, mask in ticket.mask.items()}
    taken = Ticket(mask, model.state_dict(), INFO)
    assert {t.device.type for t in [*taken.mask.values(), *taken.state.values()]} == {"cpu"}


def test_apply_keeps_the_models_own_dtype(ticket):
    model = ticket.apply(Small().to(torch.float64))
    assert model.conv.weight.dtype == torch.float64
    mask = ticket.mask["conv.weight"]
    assert torch.equal(model.conv.weight.float(), ticket.state["conv.weight"] * mask)
    assert ticket.apply(Small().half()).conv.weight.dtype == torch.float16


def test_floats_are_not_cast_to_integers_and_nothing_is_written(ticket):
    model = Small()
    model.norm.running_mean = torch.zeros(5, dtype=torch.int64)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(TicketError, match=r"cannot take the ticket's values: 'norm\.running_mean'"):
        ticket.apply(model)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_all_misfits_are_listed_at_once(ticket):
    model = Small(classes=9)
    model.extra = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    del model.norm
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(TicketError) as error:
        ticket.apply(model)
    text = str(error.value)
    assert "does not fit this Small: it was made for small for 3x8x8 images and 4 classes" in text
    missing = "missing from the ticket: 'extra.0.weight', 'extra.0.bias', 'extra.1.weight', "
    assert missing + "'extra.1.bias', 'extra.2.weight' ... and 3 more" in text
    assert "unexpected in the ticket: 'norm.weight', 'norm.bias', " in text
    assert "'head.weight (9, 5), in the ticket (4, 5)'" in text
    assert "apply it to that network" in text
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_model_without_memory_is_refused(ticket):
    with torch.device("meta"):
        model = Small()
    with pytest.raises(TicketError, match="meta device"):
        ticket.apply(model)


def test_a_ticket_of_a_nameless_model_says_so():
    info = INFO.model_copy(update={"model": None, "shape": None, "classes": None})
    with pytest.raises(TicketError, match="made for a model without a name"):
        ticket_of(seeded(Small), info=info).apply(nn.Linear(1, 1))


# --- masks as bits -------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@given(shapes, st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_unpack_undoes_pack(shape, seed):
    mask = torch.rand(shape, generator=generator(seed, "mask")) < 0.5
    packed = pack(mask)
    assert (packed.dtype, packed.numel()) == (torch.uint8, (mask.numel() + 7) // 8)
    assert torch.equal(unpack(packed, shape), mask)


def test_the_first_entry_is_the_lowest_bit_in_c_order():
    mask = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()
    assert pack(mask).tolist() == [1, 3]
    assert pack(mask.T.contiguous().T).tolist() == [1, 3]
    assert np.packbits(mask.reshape(-1).numpy()).tolist() != [1, 3]  # the broken version


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (torch.tensor([1, 3, 0], dtype=torch.uint8), "takes 2 bytes"),
        (torch.tensor([1], dtype=torch.uint8), "takes 2 bytes"),
        (torch.tensor([1, 3]), "int64"),
        (torch.tensor([1, 7], dtype=torch.uint8), "beyond the end"),
    ],
)
def test_unpack_refuses_what_pack_cannot_have_made(packed, why):
    with pytest.raises(TicketError, match=why):
        unpack(packed, (2, 5))


# --- the file: what goes in comes out ------------------------------------------------------------

names = st.text("abcé./ ", min_size=1, max_size=6)


@st.composite
def tickets(draw):
    """Draw any ticket: every dtype, any bytes (also NaN), names that are not sorted."""
    state, mask = {}, {}
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
        shape = draw(shapes)
        rng = generator(draw(st.integers(0, 99)), name)
        if dtype == torch.bool:
            state[name] = torch.rand(shape, generator=rng) < 0.5
        else:
            size = max(int(np.prod(shape)), 1) * torch.empty(0, dtype=dtype).element_size()
            noise = torch.randint(0, 256, (size,), generator=rng, dtype=torch.uint8)
            state[name] = noise.view(dtype).reshape(shape)
        if not mask or draw(st.booleans()):
            mask[name] = torch.rand(shape, generator=rng) < 0.5
    target = draw(st.floats(0, 1, exclude_min=True))
    value = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(-9, 9), names)
    recipe = draw(st.dictionaries(names, value | st.lists(value, max_size=2), max_size=3))
    return Ticket(mask, state, INFO.model_copy(update={"density_target": target, "recipe": recipe}))


@given(tickets())
@settings(deadline=None, max_examples=80)
def test_a_saved_ticket_loads_as_itself(tmp_path_factory, ticket):
    path = tmp_path_factory.mktemp("ticket") / "a.gem"
    ticket.save(path)
    loaded = Ticket.load(path)
    assert same(loaded, ticket)
    assert loaded == ticket


def test_equal_tickets_give_equal_bytes_whatever_their_layout(ticket, tmp_path):
    model = seeded(Small).to(memory_format=torch.channels_last)
    mask = {n: m.t().contiguous().t() if m.dim() == 2 else m for n, m in ticket.mask.items()}
    recipe = dict(reversed(INFO.recipe.items()))
    info = INFO.model_copy(update={"recipe": recipe})
    paths = [tmp_path / name for name in ("a", "b", "c")]
    ticket.save(paths[0])
    Ticket(mask, model.state_dict(), info).save(paths[1])
    Ticket.load(paths[0]).save(paths[2])
    assert not model.conv.weight.is_contiguous()
    assert len({path.read_bytes() for path in paths}) == 1


def test_tied_weights_can_be_saved(tmp_path):
    taken = ticket_of(seeded(Tied))
    taken.save(tmp_path / "tied.gem")
    assert same(Ticket.load(tmp_path / "tied.gem"), taken)


def test_masks_take_one_bit_per_weight(ticket, tmp_path):
    ticket.save(tmp_path / "a.gem")
    stored = load_file(tmp_path / "a.gem")
    assert stored["mask/conv.weight"].shape == (17,)
    assert torch.equal(stored["state/conv.weight"], ticket.state["conv.weight"])  # unmasked


def test_verify_returns_the_summary(ticket, tmp_path):
    ticket.save(tmp_path / "a.gem")
    summary = Ticket.verify(tmp_path / "a.gem")
    assert summary == ticket.summary()
    assert f"keeps {ticket.kept} of 155 weights" in summary


# --- the file: all damage is detected ------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a ticket, the bytes of its file, and a path for damaged copies."""
    path = tmp_path_factory.mktemp("saved") / "a.gem"
    ticket = ticket_of(seeded(Tied))
    ticket.save(path)
    return ticket, path.read_bytes(), path.with_name("b.gem")


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_no_flipped_byte_makes_another_ticket(saved, data):
    ticket, content, path = saved
    where = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    path.write_bytes(content[:where] + bytes([content[where] ^ flip]) + content[where + 1 :])
    assert survives(path, ticket)


def survives(path, ticket):
    """Return whether the file is refused by name, or (white space in JSON) is the same ticket."""
    try:
        return same(Ticket.load(path), ticket)
    except TicketError as error:
        return str(path) in str(error)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_no_truncated_or_extended_file_loads(saved, data):
    _, content, path = saved
    length = data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:length])
    with pytest.raises(TicketError, match=r"b\.gem is (empty|truncated)"):
        Ticket.load(path)
    path.write_bytes(content + data.draw(st.binary(min_size=1, max_size=9)))
    with pytest.raises(TicketError):
        Ticket.load(path)


def test_only_the_hash_finds_a_flipped_bit_in_a_weight(saved, monkeypatch):
    ticket, content, path = saved
    weight = content.index(raw(ticket.state["first.weight"]))
    path.write_bytes(content[:weight] + bytes([content[weight] ^ 1]) + content[weight + 1 :])
    with pytest.raises(TicketError, match="does not match its SHA-256"):
        Ticket.load(path)
    monkeypatch.setattr(Document, "digest", lambda document, tensors: document.sha256)
    assert not same(Ticket.load(path), ticket)  # a broken version without the check


# --- the file: invalid, with a valid hash --------------------------------------------------------


def test_the_file_follows_the_documented_format(ticket, tmp_path):
    forge(tmp_path / "a.gem", ticket)
    assert same(Ticket.load(tmp_path / "a.gem"), ticket)


def uint8(*values):
    return torch.tensor(values, dtype=torch.uint8)


FORGERIES = {
    "missing tensor": ({"state/head.bias": None}, {}, "missing: 'state/head.bias'"),
    "extra tensor": ({"state/more": uint8(1)}, {}, "not listed: 'state/more'"),
    "name listed twice": (
        {},
        {"mask": ["conv.weight", "head.weight", "head.weight"]},
        "it lists",
    ),
    "mask too short": ({"mask/head.weight": uint8(1, 1)}, {}, "takes 3 bytes"),
    "mask too long": ({"mask/head.weight": uint8(1, 1, 1, 0)}, {}, "takes 3 bytes"),
    "padding set": ({"mask/head.weight": uint8(1, 1, 255)}, {}, "beyond the end of the mask"),
    "mask of floats": ({"mask/head.weight": torch.ones(3)}, {}, "float32"),
    "alien type": ({"state/head.bias": torch.zeros(4, dtype=torch.float8_e5m2)}, {}, "head.bias"),
    "neither true nor false": (
        {"state/head.bias": uint8(0, 1, 2, 1).view(torch.bool)},
        {},
        "neither true nor false in 'head.bias'",
    ),
    "mask without weights": (
        {"state/head.weight": None},
        {"state": [n for n in Small().state_dict() if n != "head.weight"]},
        "no weights of that name",
    ),
    "no masks": ({"mask/head.weight": None, "mask/conv.weight": None}, {"mask": []}, "no entries"),
    "newer format": ({}, {"format": 2}, "reads format 1; install"),
    "no format": ({}, {"format": None}, "format"),
    "unknown key": ({}, {"surprise": 1}, "surprise"),
    "info of another kind": ({}, {"info": []}, "info"),
    "info incomplete": ({}, {"info": {"pruner": "x"}}, "recipe: Field required"),
    "info out of bounds": (
        {},
        {"info": {**INFO.model_dump(mode="json"), "density_target": 2.0}},
        "density_target: Input should be less than or equal to 1",
    ),
    "info not a number": ({}, {"info": {"x": float("nan")}}, "finite"),
    "wrong hash": ({}, {"sha256": "0" * 64}, "SHA-256"),
    "hash of another type": ({}, {"sha256": 5}, "sha256"),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_file_is_refused_with_its_reason(case, ticket, tmp_path):
    change, document, why = FORGERIES[case]
    path = tmp_path / "forged.gem"
    forge(path, ticket, change, document)
    with pytest.raises(TicketError) as error:
        Ticket.load(path)
    assert str(error.value).startswith(f"{path} ")
    assert why in str(error.value)
    assert any(way in str(error.value) for way in ("search again", "install", "give a file"))


@pytest.mark.parametrize("depth", [50, 300, 600, 900, 1200, 20_000])
def test_nesting_is_refused_at_any_depth_without_another_error(depth, ticket, tmp_path):
    info = json.dumps(INFO.model_dump(mode="json"))
    deep = info.replace('"uniform"', "[" * depth + "]" * depth)
    assert deep != info
    header = f'{{"format":1,"mask":[],"state":["w"],"sha256":"","info":{deep}}}'
    save_file({"state/w": torch.ones(1)}, tmp_path / "a.gem", {"gemkit": header})
    with pytest.raises(TicketError, match=r"description is invalid|SHA-256"):
        Ticket.load(tmp_path / "a.gem")


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "NaN", '"x"', "[" * 100_000, '{"format":1}'])
def test_an_invalid_description_is_refused(text, tmp_path):
    save_file({"w": torch.ones(1)}, tmp_path / "a.gem", {"gemkit": text})
    with pytest.raises(TicketError, match="description is invalid"):
        Ticket.load(tmp_path / "a.gem")


def test_the_error_says_what_a_file_is_instead_of_a_ticket(tmp_path):
    save_file({"w": torch.ones(1)}, tmp_path / "foreign", {"format": "pt"})
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog.\n" * 5)
    (tmp_path / "nothing").touch()
    os.mkfifo(tmp_path / "pipe")
    reasons = {
        "foreign": "without a gemkit description; give a file",
        "text": "not safetensors",
        "nothing": "is empty; copy it again from its source, or search again in another folder$",
        "pipe": "is a pipe, not a plain file",
        "gone": "does not exist",
        ".": "is a folder",
        "x" * 300: "cannot be read: File name too long",
    }
    for name, why in reasons.items():
        with pytest.raises(TicketError, match=why):
            Ticket.load(tmp_path / name)
        with pytest.raises(TicketError, match=why):
            Ticket.verify(str(tmp_path / name))


class Bomb:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_a_pickle_is_refused_and_never_run(tmp_path):
    torch.save(Bomb(tmp_path / "boom"), tmp_path / "a.gem")
    with pytest.raises(TicketError, match="not safetensors"):
        Ticket.load(tmp_path / "a.gem")
    assert not (tmp_path / "boom").exists()
    torch.load(tmp_path / "a.gem", weights_only=False)
    assert (tmp_path / "boom").exists()  # unpickling does run it


def one_tensor(shape, end):
    return json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (2**63, b"{}"),
        (99_000_000, b"{}"),
        (None, one_tensor([2**40], 2**42)),
        (None, one_tensor([2**30], 4)),
        (None, one_tensor([2**40, 2**40], 0)),
    ],
)
def test_a_header_that_lies_about_sizes_costs_no_memory(length, header, tmp_path, little_memory):
    data = struct.pack("<Q", length or len(header)) + header
    (tmp_path / "a.gem").write_bytes(data)
    with pytest.raises(TicketError, match="damaged or not safetensors"):
        Ticket.load(tmp_path / "a.gem")
    with pytest.raises(RuntimeError, match="allocate"):  # allocating that much fails
        torch.empty(2**30)


@pytest.mark.parametrize("shape", [(0, 2**63), (0, 2**40, 2**40)])
def test_a_shape_torch_cannot_have_is_refused(shape, ticket, tmp_path):
    forge(tmp_path / "a.gem", ticket, {"state/head.bias": torch.zeros(0)})
    content = (tmp_path / "a.gem").read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header["state/head.bias"]["shape"] = shape
    text = json.dumps(header).encode()
    (tmp_path / "a.gem").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    with pytest.raises(TicketError, match="damaged"):
        Ticket.load(tmp_path / "a.gem")


# --- the file: written atomically ----------------------------------------------------------------


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(step, ticket, tmp_path, monkeypatch):
    path = tmp_path / "a.gem"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, step, no_space)
    with pytest.raises(TicketError, match="No space left on device; an existing file is unchanged"):
        ticket.save(path)
    assert listing(tmp_path) == ["a.gem"]
    assert path.read_bytes() == b"old"


def test_saving_in_place_is_detected(ticket, tmp_path, monkeypatch):
    def in_place(data, path, **_):
        path.write_bytes(data)
        os.fsync(0)

    path = tmp_path / "a.gem"
    path.write_bytes(b"old")
    monkeypatch.setattr(ticket_file, "write_atomic", in_place)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(TicketError):
        ticket.save(path)
    assert path.read_bytes() != b"old"


def test_an_interrupted_save_leaves_nothing(ticket, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ticket.save(tmp_path / "a.gem")
    assert listing(tmp_path) == []


def test_a_path_that_cannot_be_written_is_named(ticket, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    reasons = {
        "no/such/a.gem": f"there is no folder {tmp_path}/no/such; create it first",
        "file/a.gem": "Not a directory",
        "folder": "Is a directory",
    }
    for name, why in reasons.items():
        with pytest.raises(TicketError, match=why):
            ticket.save(tmp_path / name)
    assert listing(tmp_path) == ["file", "folder"]
    assert listing(tmp_path / "folder") == []


def test_a_ticket_file_has_ordinary_permissions(ticket, tmp_path):
    (tmp_path / "ordinary").touch()
    ticket.save(tmp_path / "a.gem")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "a.gem")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("value", ["\ud800", float("nan")])
def test_info_that_cannot_be_read_back_is_not_saved(value, ticket, tmp_path):
    info = INFO.model_copy(deep=True)
    info.recipe["density"] = value  # plain data inside a frozen model can still be changed
    with pytest.raises(TicketError, match="would not read back"):
        replace(ticket, info=info).save(tmp_path / "a.gem")
    assert listing(tmp_path) == []
