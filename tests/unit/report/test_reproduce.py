"""Tables of the paper: their runs, scaling, ledger, tables and figures."""

import json
import os
import re
import sys
from itertools import chain
from pathlib import Path

import pytest
from cli_runs import commands_in

from gemkit import load_plugins
from gemkit.cli.reproduce import describe
from gemkit.core.errors import DataError, GemkitError, OptionError, UnknownNameError
from gemkit.presets.preset import preset_from
from gemkit.report.pages import with_results
from gemkit.reproduce.comparison import comparison
from gemkit.reproduce.figures import CAPTIONS, draw_figures, links, origin
from gemkit.reproduce.results import results_of
from gemkit.reproduce.scale import Scale, scaled
from gemkit.reproduce.synthetic import TRY
from gemkit.reproduce.table import FIGURES, KEYS, run_of, table_of, tables
from gemkit.reproduce.trial import measure
from gemkit.runs.checking import make_checks
from gemkit.runs.resolved import resolve
from gemkit.study.store import Ledger

ROOT = Path(__file__).parents[3]
REGISTRY = load_plugins(only=())
TABLES = tables()
FULL, SMALL = Scale(), Scale(time=0.1, width=0.5)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_can_be_run_in_full_and_scaled_down(name):
    narrow = Scale(width=0.5 if name != "fig4-caltech101" else 1)  # a library's network
    for scale in (FULL, Scale(time=0.1), narrow, TRY):
        for line, preset in TABLES[name].settings(REGISTRY, scale):
            resolve(REGISTRY, preset)
            make_checks(REGISTRY, line.checks)


@pytest.mark.parametrize("name", TABLES)
def test_what_a_table_prints_is_what_its_presets_expect(name):
    for line in TABLES[name].rows:
        expected = REGISTRY.preset(line.preset).thing.expected
        own = line.preset.startswith(("rare_gems/", "baselines/")) and not line.tuning
        if expected and own and line.paper.after:
            assert line.paper.after == expected.after, line


def test_there_is_a_table_for_every_experiment():
    rows = {name: [line.paper for line in table.rows] for name, table in TABLES.items()}
    assert [row.after for row in rows["table4-long-gm"]] == [77.89, 79.5, 74.52, 80.21]
    assert [row.before for row in rows["table3-ep-to-gm"]] == [19.57, 22.22, 31.56, 19.67, 45.3]
    assert [row.checks for row in rows["table2-prospr"]] == [
        {"shuffle": 82.15, "reinit": 81.64},
        {"shuffle": 78.73, "reinit": 78.6},
    ]
    with pytest.raises(UnknownNameError, match="unknown table 'long'"):
        table_of("long")


# --- scale ---------------------------------------------------------------------------------------


def small(name, scale=SMALL):
    return resolve(REGISTRY, scaled(REGISTRY.preset(name).thing, scale, REGISTRY))


def test_a_scaled_search_lasts_whole_periods_and_finds_its_own_learning_rate():
    resolved = small("rare_gems/resnet20-cifar10-1.44@code")
    assert (resolved.search.epochs, resolved.recipe.schedule.every, resolved.finetune.epochs) == (
        16,
        2,
        15,
    )
    assert (resolved.model.width, resolved.dataset.limit) == (8, 5_000)
    assert (resolved.search.lr, resolved.finetune.lr) == (None, 0.01)
    assert resolved.recipe.schedule.freezes(0.0144, 16, 1)[-1].step < 16
    assert resolved.recipe.regularizer.weight == 1e-4


def test_what_adam_learns_keeps_its_learning_rate():
    assert small("rare_gems/vgg16-cifar10-5@code").search.lr == 0.01


def test_rounds_and_rewinding_scale_together():
    long, short = (
        small(f"baselines/imp_{one}_warm-resnet20-cifar10-1.44") for one in ("long", "short")
    )
    assert long.search.epochs == 15
    assert long.recipe.schedule.every is None
    assert long.recipe.rewind.weights == pytest.approx(0.256)
    assert short.recipe.schedule.every == 2


@pytest.mark.parametrize("schedule", ["linear", {"name": "linear"}, {"name": "linear", "end": 0.5}])
def test_a_scaled_schedule_stays_the_one_that_was_named(schedule):
    preset = preset_from("tiny", TINY | {"recipe": {"schedule": schedule}})
    recipe = scaled(preset, Scale(time=0.5), REGISTRY).made(REGISTRY)
    assert recipe.schedule.name == "linear"
    assert recipe.schedule.end == preset.made(REGISTRY).schedule.end


def test_scaling_has_lower_bounds():
    resolved = small("rare_gems/resnet20-cifar10-1.44", Scale(time=0.001, width=0.01))
    assert (resolved.search.epochs, resolved.finetune.epochs) == (4, 4)
    assert (resolved.dataset.limit, resolved.model.width) == (1_000, 4)


def test_at_full_scale_nothing_changes():
    preset = REGISTRY.preset("baselines/imp_short_cold-resnet20-cifar10-1.44").thing
    assert scaled(preset, FULL, REGISTRY) == preset


def test_a_network_without_a_width_says_so():
    with pytest.raises(OptionError, match="--width does not apply to model 'torchvision'"):
        small("rare_gems/resnet50-caltech101-5")


# --- one run -------------------------------------------------------------------------------------

TINY = {
    "help": "tiny",
    "pruner": "gem_miner",
    "density": 0.3,
    "model": {"name": "conv4", "width": 4},
    "dataset": {"name": "fake", "samples": 60},
    "search": {"epochs": 4, "batch_size": 18},
    "finetune": {"epochs": 3, "batch_size": 18},
    "on_collapse": "warn",
}


def run(**changes):
    setting = {key: value for key, value in TINY.items() if key != "help"}
    return {"setting": setting | changes, "seed": 2, "checks": [], "data_dir": None, "plugins": []}


def test_a_row_holds_configuration_results_and_machine(tmp_path):
    planned = run() | {"checks": ["shuffle", "reinit"], "data_dir": str(tmp_path)}
    row = json.loads(json.dumps(measure(planned), allow_nan=False))
    assert {key: row.get(key) for key in KEYS} == {key: planned.get(key) for key in KEYS}
    assert str(tmp_path) not in json.dumps(row), "the path of the data is not recorded"
    assert row["recipe"]["pruner"] == "gem_miner"
    assert row["search"]["lr"] > 0, "what was left open is written out"
    assert {"gemkit", "torch"} <= set(row["versions"])
    assert row["host"]["device"] == "cpu" or row["host"]["device"].startswith(("cuda", "mps"))
    assert sum(kept for _, kept, _ in row["layers"]) == row["kept"] <= row["prunable"]
    assert [len(row["curves"][phase]) for phase in ("search", "finetune")] == [4, 3]
    assert row["curves"]["finetune"][-1][1] == pytest.approx(
        row["kept"] / row["prunable"], abs=1e-6
    )
    assert set(row["controls"]) == {"shuffle", "reinit"}
    assert row["search_epochs"] == 4
    assert row["cpu_seconds"] >= row["cpu_seconds_search"] > 0


def test_a_collapsed_network_is_recorded():
    harsh = {"regularizer": {"weight": 10.0}}
    row = measure(run(recipe=harsh, search={"epochs": 6, "batch_size": 18, "lr": 2.0}))
    assert "collapse" in row
    assert "after" not in row


# --- the ledger ----------------------------------------------------------------------------------


def test_an_incomplete_line_is_ignored_and_replaced(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    ledger.path.write_text('{"seed": 0}\n{"seed": 1, "aft')
    assert ledger.rows() == [{"seed": 0}]
    ledger.append({"seed": 2})
    assert ledger.path.read_text() == '{"seed": 0}\n{"seed": 2}\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"seed": 0\n', "line 1 is no result"),
        (b'{"seed": 0}\n3\n', "line 2 is no result .*not 3.; remove that line"),
        (b"[" * 100_000 + b"\n", "line 1 is no result"),
        (b'{"seed": "\xff"}\n', "is no ledger .*utf-8.*; name another file"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(content, words, tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    ledger.path.write_bytes(content)
    with pytest.raises(OptionError, match=words):
        ledger.rows()
    with pytest.raises(OptionError, match=r"is no ledger .*directory"):
        Ledger(tmp_path, ("seed",)).rows()


def killed(run):
    os._exit(9)


def test_a_killed_process_is_reported_and_nothing_is_lost(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    ledger.path.write_text('{"seed": 0}\n')
    with pytest.raises(GemkitError, match=r"was killed.*continues from there"):
        ledger.complete([{"seed": 1}], killed, jobs=1)
    assert ledger.rows() == [{"seed": 0}]


def test_data_sets_are_fetched_before_anything_runs(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    result = gemkit("reproduce", "cifar10-small", "--download")
    assert result.exit_code == 2
    assert "imagefolder" in result.stderr
    assert not Path("reproduction.jsonl").exists()


def test_missing_data_are_an_error_before_anything_runs(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    monkeypatch.setattr(Ledger, "complete", None)  # calling it would be a TypeError
    result = gemkit("reproduce", "cifar10-small")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot list" in result.stderr
    assert "--data-dir" in result.stderr
    assert "runs to do" not in result.stderr
    assert list(Path().iterdir()) == []


def double(run):
    if run["seed"] == 3:
        raise DataError("no images")
    return run | {"twice": 2 * run["seed"]}


def test_a_ledger_without_a_row_is_not_left_behind(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    with pytest.raises(DataError, match="no images"):
        ledger.complete([{"seed": 3}], double, jobs=1)
    ledger.complete([], double, jobs=1)
    assert not ledger.path.exists()


def test_a_ledger_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path):
    (tmp_path / "file").touch()
    ledger = Ledger(tmp_path / "file" / "l.jsonl", ("seed",))
    with pytest.raises(OptionError, match=r"cannot write results to .*; name another file"):
        ledger.complete([{"seed": 3}], double, jobs=1)


def test_without_a_terminal_every_run_that_ends_is_a_line(tmp_path, capsys):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    ledger.complete([{"seed": 1}, {"seed": 2}], double, 1, lambda row: f"got {row['twice']}")
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert (shown.out, len(lines)) == ("", 2)
    assert {line.split("  ")[0][6:] for line in lines} == {"got 2", "got 4"}
    assert lines[1].startswith("[2/2] ")
    assert lines[1].endswith("  0 s left")


def test_progress_describes_a_run_and_its_result():
    row = run() | {"before": 0.25, "after": 0.5}
    start = "gem_miner at density 0.3, seed 2: "
    assert describe(row) == f"{start}25.0 % before fine-tuning, 50.0 % after"
    assert describe(run() | {"collapse": "no weight is left"}) == f"{start}collapsed"


def test_a_changed_preset_is_run_again():
    line = TABLES["demo"].rows[0]
    preset = preset_from("tiny", TINY)
    ledger_rows = [run_of(line, preset, 0)]
    reworded = preset_from("tiny", TINY | {"help": "other words", "note": "and a note"})
    other = preset_from("tiny", TINY | {"density": 0.2})
    assert run_of(line, reworded, 0) in ledger_rows, "texts change nothing"
    assert run_of(line, other, 0) not in ledger_rows
    assert run_of(line, preset, 1) not in ledger_rows


# --- reports -------------------------------------------------------------------------------------


def invented(planned, number):
    """Invent a result for a run."""
    setting = planned["setting"]
    kept = round(1000 * setting["density"])
    searched = 0 if setting["pruner"] in ("random", "dense", "snip", "smart_ratio") else 3
    return planned | {
        "kept": kept,
        "prunable": 1000,
        "empty_layers": 0,
        "layers": [["one", kept // 2, 500], ["two", kept - kept // 2, 500]],
        "before": 0.1 + number / 100,
        "after": 0.6 + number / 100,
        "controls": {check: {"before": 0.1, "after": 0.5} for check in planned["checks"]},
        "curves": {"search": [[0.2, 1.0]] * searched, "finetune": [[0.4, 0.5]] * 4},
        "search_epochs": searched,
    }


@pytest.fixture
def filled(tmp_path):
    planned = TABLES["demo"].runs(REGISTRY, FULL, 2)
    rows = [invented(one, number) for number, one in enumerate(planned)]
    rows[1] = {key: rows[1].get(key) for key in KEYS} | {"collapse": "no weight is left"}
    del rows[-1]  # dense, seed 1
    path = tmp_path / "filled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_our_results_are_beside_the_papers_with_all_differences(filled):
    table = TABLES["demo"]
    results = results_of(table, REGISTRY, FULL, 2, Ledger(filled, KEYS))
    text = comparison(table, results, Scale(0.1, 0.5))
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert lines[2] == ["Gem-Miner", "0.05", "0.0500", "12.0 ± 2.8", "62.0 ± 2.8", "50.0 ± 0.0",
                        "50.0 ± 0.0", "3", "2"]  # fmt: skip
    assert lines[3][-1] == "1, 1 collapsed"
    assert lines[5][-1] == "1"
    notes = [line for line in text.splitlines() if line.startswith("* ")]
    assert (
        notes[0] == "* a network of four convolutions on 8 × 8 digits: no experiment of the paper"
    )
    assert notes[1].startswith("* scale 0.1: ")
    assert notes[2].startswith("* width 0.5: ")


def test_a_published_number_is_in_parentheses(tmp_path):
    table = TABLES["table4-long-gm"]
    results = results_of(table, REGISTRY, FULL, 1, Ledger(tmp_path / "none.jsonl", KEYS))
    assert "| Long Gem-Miner | 0.0144 | – | – | – (79.5) |" in comparison(table, results, FULL)


def test_the_command_reports_without_running(filled, tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- results: demo -->\nold\n<!-- end of results -->\nbelow\n")
    words = ("reproduce", "demo", "--no-runs", "--seeds", "2", "--ledger", filled)
    result = gemkit(*words, "--page", page, "--figures", "figures", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert len(data["rows"]) == 7
    above, *table, below = page.read_text().splitlines()
    assert (above, below) == ("above", "below")
    assert any(line.startswith("| Gem-Miner | 0.05 | 0.0500 |") for line in table)
    files = [Path(file) for file in data["figures"]]
    assert {file.stem for file in files} == {f"demo-{what}" for what in FIGURES}
    assert "![Tickets and their controls after fine-tuning](figures/demo-sanity.svg)" in table
    before = [file.read_bytes() for file in files]
    gemkit(*words, "--figures", "figures")
    assert [file.read_bytes() for file in files] == before, "the same results, the same bytes"
    assert "the page gets no figures" in gemkit(*words, "--page", page).stderr
    nothing = gemkit("reproduce", "demo", "--no-runs", "--ledger", "none", "--figures", "none")
    assert "nothing of this table is measured yet" in nothing.stderr
    assert not Path("none").exists()
    assert "cifar10-small" in gemkit("reproduce").stdout
    assert gemkit("reproduce", "dem").exit_code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"# Page\n", "no place for the results 'demo'"), (b"\xff", "page.md cannot be read")],
)
def test_a_page_without_markers_is_refused_before_anything_runs(
    content, words, tmp_path, monkeypatch
):
    gemkit = commands_in(tmp_path, monkeypatch)
    Path("page.md").write_bytes(content)
    monkeypatch.setattr(Ledger, "complete", None)  # calling it would be a TypeError
    result = gemkit("reproduce", "demo", "--page", "page.md")
    assert result.exit_code == 2
    assert words in result.stderr
    assert Path("page.md").read_bytes() == content


def test_figures_that_cannot_be_drawn_are_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(Ledger, "complete", None)  # calling it would be a TypeError
    gemkit = commands_in(tmp_path, monkeypatch)
    result = gemkit("reproduce", "demo", "--figures", "figures")
    assert result.exit_code == 2
    assert "needs matplotlib" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_figures_record_what_they_were_drawn_from(filled, tmp_path):
    results = results_of(TABLES["demo"], REGISTRY, FULL, 2, Ledger(filled, KEYS))
    [svg, *_] = draw_figures(results, tmp_path, "demo")
    assert origin(results) in svg.read_text()
    assert origin(results[:1]) != origin(results)
    assert draw_figures([], tmp_path / "none", "demo") == []


# --- the page ------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "reproduction.md").read_text()
COMMANDS = re.findall(r"gemkit reproduce (\S+) --no-runs --seeds (\d+) --ledger (\S+)", PAGE)


@pytest.mark.parametrize(("name", "seeds", "ledger"), COMMANDS)
def test_tables_and_figures_on_the_page_are_made_of_the_committed_rows(name, seeds, ledger):
    """Where they are not: run the command that the page gives."""
    results = results_of(TABLES[name], REGISTRY, FULL, int(seeds), Ledger(ROOT / ledger, KEYS))
    folder = ROOT / "docs" / "figures"
    drawn = [folder / f"{name}-{what}.svg" for what in CAPTIONS]
    drawn = [file for file in drawn if file.exists()]
    table = comparison(TABLES[name], results, FULL)
    text = "\n\n".join(filter(None, [table, links(drawn, ROOT / "docs" / "page.md")]))
    assert with_results(PAGE, name, text) == PAGE
    for file in chain(drawn, (file.with_suffix(".png") for file in drawn)):
        assert origin(results).encode() in file.read_bytes(), file


def test_the_page_has_a_table_that_can_be_outdated():
    assert [name for name, _, _ in COMMANDS] == ["cifar10-small"]
