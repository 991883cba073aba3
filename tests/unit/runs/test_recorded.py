"""The folder of a run as records."""

import json
import os
import shutil
from pathlib import Path

import pytest
from cli_runs import TINY, commands_in

from gemkit.core.errors import OptionError
from gemkit.report.groups import group
from gemkit.report.records import records_from
from gemkit.runs.listing import runs_data
from gemkit.runs.recorded import bound_of, curves_of, name_of, run_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a run that has checks of two seeds."""
    path = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        gemkit = commands_in(path, patch)
        words = ("--check", "shuffle", "--check", "permute", "--check-seeds", "2")
        done = gemkit("run", *TINY, "--epochs", "4", *words, "--out", "one")
        assert done.exit_code == 0, done.stderr
    return path


def test_a_run_is_a_record_with_curves_strength_and_bound(folder):
    own, other = run_records(folder / "one")
    result = json.loads((folder / "one" / "result.json").read_text())
    assert own["before"] == result["before"]
    assert own["after"] == result["after"]
    assert own["kept"] == result["kept"]
    assert own["ticket"] == "ticket.safetensors"
    assert (own["pruner"], own["model"], own["dataset"]) == ("gem_miner", "conv4", "fake")
    assert [one["epoch"] for one in own["curves"]["search"]] == [1, 2, 3, 4]
    assert all(one["strength"] > 0 for one in own["curves"]["search"])
    [[epochs, alive]] = own["bound"]
    assert (epochs, round(alive, 3)) == (3, 0.3), "one freeze, after the third of four epochs"
    assert set(own["controls"]) == {"shuffle", "permute"}
    assert (other["seed"], set(other["controls"])) == (1, {"shuffle", "permute"})
    trials = json.loads((folder / "one" / "checks.json").read_text())["trials"]
    [ticket] = [one for one in trials if (one["check"], one["seed"]) == ("ticket", 0)]
    assert (ticket["before"], ticket["after"]) == (own["before"], own["after"])


def test_all_seeds_of_a_run_are_one_group(folder):
    [one] = group(records_from(run_records(folder)))
    assert [own.seed for own in one.records] == [0, 1]
    assert one.records[0].ticket == "one/ticket.safetensors"


def test_the_density_stays_below_its_bound(folder):
    [one] = group(records_from(run_records(folder)))
    bound = dict(one.bound())
    for epoch, spread in one.curve("search", lambda moment: moment.density):
        allowed = min(share for start, share in bound.items() if start < epoch)
        assert spread.mean <= allowed + 1 / one.records[0].prunable, "counts are rounded"


def test_the_command_reports_a_run(folder, monkeypatch):
    gemkit = commands_in(folder, monkeypatch)
    done = gemkit("report", "one", "--format", "html,csv,md,tex")
    assert done.exit_code == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "one/report/report.html"
    assert second.startswith("2 of 2 results: 1 method × 1 density × 2 seeds on conv4 · fake")
    assert "passes (same)" not in (folder / "one/report/report.html").read_text()
    assert gemkit("runs", "one").exit_code == 0, "a report does not hurt a run"
    data = json.loads(gemkit("report", ".", "--out", "all", "--format", "csv", "--json").stdout)
    assert [Path(file).name for file in data["files"]] == ["records.csv", "groups.csv"]


def test_records_in_a_file_give_the_same_report(folder, monkeypatch):
    gemkit = commands_in(folder, monkeypatch)
    words = ("--format", "csv,jsonl,md,tex")
    assert gemkit("report", "one", "--out", "first", *words).exit_code == 0
    done = gemkit("report", "first/records.jsonl", *words)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("first/records-report/records.csv\n")
    for name in ("records.csv", "groups.csv", "records.jsonl"):
        own = (folder / "first/records-report" / name).read_bytes()
        assert own == (folder / "first" / name).read_bytes(), name


def test_a_last_record_without_an_end_counts_and_a_cut_one_is_refused(folder, monkeypatch):
    gemkit = commands_in(folder, monkeypatch)
    assert gemkit("report", "one", "--out", "whole", "--format", "jsonl").exit_code == 0
    text = Path("whole/records.jsonl").read_text().rstrip("\n")
    Path("short.jsonl").write_text(text)
    assert gemkit("report", "short.jsonl", "--format", "csv").stdout.splitlines()[1][:6] == "2 of 2"
    Path("short.jsonl").write_text(text[:-9])
    done = gemkit("report", "short.jsonl", "--format", "csv")
    assert done.exit_code == 2
    assert "short.jsonl: line 2 is no result" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("one/config.toml",), "one/config.toml is no file of records"),
        (("one/ticket.safetensors",), "is no file of records"),
        (("none",), "there is no folder none"),
        (("empty",), "has no results to report"),
        (("one", "--format", "htm"), "unknown format 'htm'; did you mean 'html'"),
        (("one", "--out", "one/config.toml"), "cannot write to one/config.toml"),
    ],
)
def test_mistakes_get_one_sentence(folder, monkeypatch, words, message):
    gemkit = commands_in(folder, monkeypatch)
    Path("empty").mkdir(exist_ok=True)
    done = gemkit("report", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_cannot_be_read_is_marked_among_others(folder, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.toml").write_text("not toml")
    [one] = run_records(tmp_path)
    assert one["state"] == "failed"
    assert "config.toml cannot be read" in one["problem"]
    with pytest.raises(OptionError, match="cannot be read"):
        run_records(broken)


def test_a_run_that_no_report_takes_is_marked_among_others(folder, tmp_path):
    shutil.copytree(folder / "one", tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").write_text("density = 1e999\n")
    *sound, bad = run_records(tmp_path)
    assert not any("problem" in one and one["problem"] for one in sound)
    assert len(sound) == 2
    assert bad["state"] == "failed"
    assert f"{tmp_path / 'b'}: record 1 cannot be reported: density: " in bad["problem"]
    group(records_from([*sound, bad]))
    with pytest.raises(OptionError, match="b: record 1 cannot be reported: density"):
        run_records(tmp_path / "b")


def test_a_name_that_is_not_utf8_is_escaped(folder, tmp_path, monkeypatch):
    odd, broken = (tmp_path / os.fsdecode(name) for name in (b"\xff\xfe", b"broken\xff"))
    shutil.copytree(folder / "one", odd)
    broken.mkdir()
    (broken / "config.toml").write_text("not toml")
    first, last = (records_from(run_records(tmp_path))[place] for place in (0, -1))
    assert r"broken\udcff/config.toml cannot be read" in first.problem
    assert last.after is not None
    done = commands_in(tmp_path, monkeypatch)("report", ".", "--format", "html,csv,jsonl,md,tex")
    assert done.exit_code == 0, done.stderr
    assert r"\udcff\udcfe/ticket.safetensors" in Path("report/records.csv").read_text()
    again = commands_in(tmp_path, monkeypatch)("report", "report/records.jsonl", "--format", "csv")
    assert again.exit_code == 0, again.stderr


def test_a_seed_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "config.toml").write_text("seed = [1]\n")
    with pytest.raises(OptionError, match=r"the seed in its config.toml is \[1\]"):
        run_records(tmp_path)


@pytest.mark.parametrize("layers", [None, 3, {"name": 1}, [3, {"name": "a"}]])
def test_layers_that_are_no_list_are_left_out(layers, folder, tmp_path):
    shutil.copytree(folder / "one", tmp_path / "one")
    file = tmp_path / "one" / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layers": layers}))
    assert run_records(tmp_path / "one")[0]["layers"] == []


def test_an_interrupted_run_is_partial(tmp_path):
    (tmp_path / "config.toml").write_text('density = 0.5\nseed = 3\n[recipe]\npruner = "p"\n')
    line = {"event": "epoch", "phase": "search", "epoch": 1, "accuracy": 0.5, "density": 0.4}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n" + '{"event": "ep')
    [one] = run_records(tmp_path)
    assert (one["state"], one["seed"], one["model"]) == ("partial", 3, "?")
    assert len(one["curves"]["search"]) == 1


def test_a_long_error_does_not_block_a_report(tmp_path):
    (tmp_path / "config.toml").write_text('density = 0.5\n[recipe]\npruner = "p"\n')
    lines = [{"event": one, "message": "why " * 5_000} for one in ("collapse", "error")]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    [one] = records_from(run_records(tmp_path))
    assert one.state == "failed"
    assert one.problem.startswith("why why")
    assert one.collapse.startswith("why why")


RECORDED = """
density = 0.5
seed = {seed}
[recipe]
pruner = "p"
[data]
names = "{data}"
[versions]
gemkit = "{gemkit}"
torch = "{gemkit}"
"mine.py" = "{plugin}"
"""


@pytest.mark.parametrize(
    ("change", "groups"),
    [({}, 1), ({"gemkit": "2.0"}, 1), ({"data": "cd"}, 2), ({"plugin": "sha256:2"}, 2)],
)
def test_seeds_are_pooled_if_data_and_plugins_are_the_same(tmp_path, change, groups):
    usual = {"data": "ab", "gemkit": "1.0", "plugin": "sha256:1"}
    for seed, own in enumerate(({}, change)):
        (tmp_path / str(seed)).mkdir()
        text = RECORDED.format(seed=seed, **usual | own)
        (tmp_path / str(seed) / "config.toml").write_text(text)
    assert len(group(records_from(run_records(tmp_path)))) == groups
    assert len({one["group"] for one in runs_data(tmp_path)}) == groups


def test_freezes_count_epochs_also_when_the_clock_is_rewound():
    epoch = {"event": "epoch", "phase": "search"}
    freeze = [{"event": "freeze", "alive": one, "prunable": 100} for one in (80, 64)]
    damaged = [
        {"event": "freeze"},
        {"event": "freeze", "alive": "1", "prunable": 0},
        {"event": "freeze", "alive": 10**400, "prunable": 1},
        {"event": "epoch", "phase": [], "epoch": 7},
    ]
    lines = [epoch, epoch, freeze[0], epoch, *damaged, freeze[1]]
    assert bound_of(lines) == [[2, 0.8], [3, 0.64]]
    assert bound_of([{**epoch, "epoch": "x"}, {**epoch, "epoch": None}, *freeze]) == [
        [2, 0.8],
        [2, 0.64],
    ]
    unknown = [{"event": "epoch", "phase": phase} for phase in ("x", [], None)]
    assert curves_of([*unknown, *freeze]) == {"search": [], "finetune": []}


def test_networks_are_named_in_full():
    assert name_of({"name": "timm", "network": "resnet18"}) == "timm:resnet18"
    assert name_of({"custom": "mine.py:net", "width": 3}) == "mine.py:net"
    assert name_of(None) == "?"
