"""`gemkit compact`, `bench` and `finetune --compact`: smaller, the same, and honest about gains."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, answer, commands_in
from compacting import randomize_norms_, ticket_of
from tiny import tiny_data
from torch import nn

from gemkit import Plan, Runtime, finetune
from gemkit.cli.bench import _about, _text
from gemkit.compaction import compact, compact_network, load_compact, save_compact
from gemkit.compaction.macs import count_macs
from gemkit.compaction.sparse import SparseLinear, csr_bytes, sparse_where_faster
from gemkit.compaction.timing import Times, time_interleaved
from gemkit.core.errors import TicketError
from gemkit.models.mobilenet import MobileNetV2
from gemkit.models.small import Conv4, LeNet300
from gemkit.tickets.ticket import Ticket

SPARSE = (
    "--pruner",
    "synflow",
    *TINY,
    "--density",
    "0.05",
    "--finetune-epochs",
    "2",
    "--out",
    "RUN",
)
TICKET = "RUN/ticket.safetensors"


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    run = commands_in(tmp_path, monkeypatch)
    assert run("run", *SPARSE).exit_code == 0
    return run


def test_compact_reports_sizes_and_writes_a_file_that_loads(gemkit):
    reported = answer(gemkit("compact", TICKET, "--json"))
    assert reported["error"] < 1e-9
    assert reported["multiplications"]["compact"] < reported["multiplications"]["masked"]
    assert reported["parameters"]["compact"] < reported["parameters"]["masked"]
    assert [layer["name"] for layer in reported["layers"]] == list(Ticket.load(TICKET).mask)
    model = Conv4(width=4).build((3, 8, 8), 4)
    small, images = load_compact(reported["compact"], model), torch.randn(5, 3, 8, 8)
    masked = Ticket.load(TICKET).apply(model)
    assert torch.allclose(small.eval()(images), masked.eval()(images), atol=1e-5)
    assert small.conv2.out_channels < 8 == masked.conv2.out_channels


def test_compact_prints_text_and_overwrites_only_with_force(gemkit):
    shown = gemkit("compact", TICKET)
    assert "× fewer" in shown.stdout
    assert "largest error" in shown.stdout
    again = gemkit("compact", TICKET)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert gemkit("compact", TICKET, "--force").exit_code == 0


def test_no_gain_is_reported(gemkit, tmp_path):
    assert (
        gemkit("run", "--pruner", "dense", *TINY, "--finetune-epochs", "0", "--out", "D").exit_code
        == 0
    )
    assert gemkit("compact", "D/ticket.safetensors").stdout.count("no gain") == 2


def test_fine_tuning_compact_is_fine_tuning(gemkit):
    masked = answer(gemkit("finetune", TICKET, "--epochs", "2", "--out", "M.safetensors", "--json"))
    small = answer(
        gemkit("finetune", TICKET, "--epochs", "2", "--compact", "--out", "C.safetensors", "--json")
    )
    assert (masked["compact"], small["compact"]) == (False, True)
    assert small["accuracy_after"] == masked["accuracy_after"]
    assert small["density"] == masked["density"] == Ticket.load(TICKET).density
    one, other = Ticket.load("M.safetensors"), Ticket.load("C.safetensors")
    assert one.info == other.info
    assert all(torch.equal(one.mask[name], other.mask[name]) for name in one.mask)
    model = Conv4(width=4).build((3, 8, 8), 4).train()
    images = torch.randn(16, 3, 8, 8)
    assert torch.allclose(one.apply(model)(images), other.apply(model)(images), atol=1e-3)


def test_bench_reports_time_size_and_work_of_every_form(gemkit):
    reported = answer(
        gemkit("bench", TICKET, "--turns", "3", "--batch", "100", "--threads", "1", "--json")
    )
    forms = reported["forms"]
    assert list(forms)[:3] == ["dense", "masked", "compact"]
    assert forms["masked"]["times_masked"] == 1
    assert forms["compact"]["multiplications"] < forms["dense"]["multiplications"]
    assert forms["compact"]["bytes"] < forms["dense"]["bytes"]
    assert all(one["milliseconds"] > 0 for one in forms.values())
    assert "images at a time" in gemkit("bench", TICKET, "--turns", "1").stdout


@pytest.mark.parametrize(("ratio", "word"), [(0.5, "faster"), (0.94, "faster"), (0.97, "no gain")])
def test_a_gain_is_one_only_where_three_of_four_turns_show_it(ratio, word):
    masked, own = Times((1.0, 1.0, 1.0, 1.0)), Times((ratio,) * 4)
    sizes = {"bytes": 1, "multiplications": 1}
    about = _about(own, masked, 8) | sizes
    data = {"batch": 8, "threads": 1, "turns": 4, "sparse_layers": [], "bytes_as_csr": 1}
    forms = {"masked": _about(masked, masked, 8) | sizes, "compact": about}
    assert word in _text(data | {"forms": forms})
    shaky = _about(Times((0.5, 0.5, 1.5, 1.5)), masked, 8)
    assert not shaky["gain"]


@pytest.mark.parametrize(("high", "reported"), [(1.2, False), (1.4, True)])
def test_a_busy_machine_is_reported(gemkit, monkeypatch, high, reported):
    times = Times((1.0, 1.0, high, high))
    monkeypatch.setattr(
        "gemkit.compaction.timing.time_interleaved",
        lambda forms, turns: dict.fromkeys(forms, times),
    )
    said = gemkit("bench", TICKET).stdout
    assert ("1.4 times as long" in said) == reported


def test_a_race_gives_every_contender_as_many_turns():
    ran = []
    times = time_interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 6)
    assert ran.count("a") == ran.count("b") == 8
    assert ran[::2] != ["a"] * 8, "the order is random"
    assert [len(own.turns) for own in times.values()] == [6, 6]
    assert Times((2.0, 4.0)).ratio(Times((1.0, 1.0))) == 3.0


# --- sparse layers, counting, files --------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 30), (2, 3, 30)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_sparse_linear_layer_is_the_dense_one(shape, bias):
    layer = nn.Linear(30, 7, bias=bias).double()
    layer.weight.data *= torch.rand(7, 30) < 0.1
    images = torch.randn(shape, dtype=torch.float64)
    assert torch.allclose(SparseLinear(layer)(images), layer(images), atol=1e-12)


@pytest.mark.parametrize("fast", [True, False])
def test_a_layer_is_sparse_only_where_that_was_measured_to_be_faster(fast, monkeypatch):
    def staged(contenders, turns):
        assert set(contenders) == {"dense", "sparse"}
        return {"dense": Times((1.0,)), "sparse": Times((0.5 if fast else 0.95,))}

    monkeypatch.setattr("gemkit.compaction.sparse.time_interleaved", staged)
    model, images = LeNet300().build((1, 4, 4), 3), torch.randn(5, 1, 4, 4)
    sparse, names = sparse_where_faster(model, images)
    assert count_macs(sparse, (1, 4, 4)).total == count_macs(model, (1, 4, 4)).nonzero
    assert names == (["fc1", "fc2", "classifier"] if fast else [])
    assert torch.allclose(sparse(images), model(images), atol=1e-6)
    assert type(model.fc1) is nn.Linear


def test_work_counts_multiplications_and_those_with_kept_weights():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    model[2].weight.data[1:] = 0
    assert count_macs(model, (2, 4, 4)) == (4 * 36 + 48, 4 * 36 + 16)
    model[2] = SparseLinear(model[2])
    assert count_macs(model, (2, 4, 4)).total == 4 * 36 + 16


def test_bytes_of_kept_weights_and_their_places():
    model = nn.Sequential(nn.Linear(10, 2))
    ticket = ticket_of(model, 1.0, shape=(10, 1, 1))
    ticket.mask["0.weight"][:] = False
    ticket.mask["0.weight"][0, :3] = True
    assert csr_bytes(ticket) == 3 * 8 + 3 * 4 + 2 * 4


def small_mobilenet():
    torch.manual_seed(0)
    model = randomize_norms_(MobileNetV2(width=8).build((3, 8, 8), 10))
    return model, compact(ticket_of(model, 0.1), model)


def test_a_compact_network_comes_back_from_its_file(tmp_path):
    model, small = small_mobilenet()
    save_compact(small, tmp_path / "small.safetensors")
    loaded = load_compact(tmp_path / "small.safetensors", model).eval()
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(loaded(images), small.model.eval()(images))


def test_a_compact_network_is_not_taken_for_a_ticket(tmp_path):
    _, small = small_mobilenet()
    save_compact(small, tmp_path / "small.safetensors")
    with pytest.raises(TicketError, match=r"is a compact network, not a ticket; .*load_compact"):
        Ticket.load(tmp_path / "small.safetensors")


def test_a_file_is_not_trusted(tmp_path):
    model, small = small_mobilenet()
    path = tmp_path / "small.safetensors"
    small.original.save(path)
    with pytest.raises(TicketError, match="not a compact network"):
        load_compact(path, model)
    save_compact(small, path)
    with pytest.raises(TicketError, match="another architecture"):
        load_compact(path, nn.Linear(3, 3))
    for name, size in (("forward", 3), ("groups", -1), ("groups", True)):
        small.settings["conv1"] = {name: size}
        save_compact(small, path)
        with pytest.raises(TicketError, match="not a compact network"):
            load_compact(path, model)
    small.settings["conv1"] = {"out_channels": 3, "in_channels": 77, "groups": 1}
    save_compact(small, path)
    with pytest.raises(TicketError, match="other sizes than their weights: 'conv1'"):
        load_compact(path, model)


def test_a_run_can_fine_tune_compact_and_records_it(gemkit):
    again = [word if word != "RUN" else "SMALL" for word in SPARSE]
    assert gemkit("run", *again, "--compact").exit_code == 0
    one, other = (json.loads(Path(run, "result.json").read_text()) for run in ("RUN", "SMALL"))
    assert one["accuracy_after"] == other["accuracy_after"]
    assert tomllib.loads(Path("SMALL/config.toml").read_text())["runtime"]["compact"]
    assert not tomllib.loads(Path("RUN/config.toml").read_text())["runtime"]["compact"]


UNSTEADY = """
from torch import nn


class Unsteady(nn.Sequential):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def network(shape, classes):
    return Unsteady(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


def test_a_network_that_cannot_be_compacted_is_refused_before_the_search(gemkit, monkeypatch):
    Path("unsteady.py").write_text(UNSTEADY)
    monkeypatch.syspath_prepend(".")
    words = (
        "run",
        "--model",
        "unsteady:network",
        "--dataset",
        "digits",
        "--compact",
        "--out",
        "own",
    )
    shown = gemkit(*words)
    assert shown.exit_code == 2
    assert "cannot be traced" in shown.stderr
    assert "without --compact" in shown.stderr
    assert not Path("own").exists()


def test_fine_tuning_is_compact_only_where_the_runtime_asks_for_it(monkeypatch):
    sizes = []
    real = compact_network.compact
    monkeypatch.setattr(
        "gemkit.compaction.finetuning.compact",
        lambda *what, **how: sizes.append(how) or real(*what, **how),
    )
    torch.manual_seed(0)
    model = Conv4(width=4).build((2, 6, 6), 3)
    ticket = ticket_of(model, 0.1, shape=(2, 6, 6))
    plan, cpu = Plan(epochs=1, batch_size=16), {"device": "cpu"}
    masked = finetune(ticket, model, tiny_data(), plan=plan, runtime=Runtime(**cpu))
    assert sizes == []
    compacted = finetune(
        ticket, model, data=tiny_data(), plan=plan, runtime=Runtime(**cpu, compact=True)
    )
    assert sizes == [{"training": True, "shape": (2, 6, 6)}]
    assert compacted.info == masked.info
    assert compacted.state.keys() == masked.state.keys()
