"""Rows of results say what is needed to judge them, and to measure again."""

import importlib
import json
import platform
from pathlib import Path

import pytest

from benchmarks import compact_learning, compaction, digits, methods, newer, tasks
from benchmarks.trial import measure
from gemkit import Plan
from gemkit.core.errors import OptionError
from gemkit.data.embedded import Digits
from gemkit.report.pages import with_results
from gemkit.runs.machine import host
from gemkit.study.store import Ledger

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", sorted(path.stem for path in ROOT.glob("benchmarks/*.py")))
def test_every_benchmark_has_what_it_imports(module):
    assert importlib.import_module(f"benchmarks.{module}").__doc__ or module == "__init__"


def test_a_row_holds_plans_versions_and_host():
    run = {"pruner": "gem_miner", "density": 0.5, "seed": 3, "epochs": 4, "finetune_epochs": 4}
    run |= {"model": "conv4", "dataset": {"name": "digits"}, "batch_size": 64}
    row = json.loads(json.dumps(measure(run), allow_nan=False))
    assert {key: row[key] for key in run} == run
    for name in ("plan", "finetune_plan"):
        plan = Plan.model_validate_json(json.dumps(row[name]))
        assert plan.epochs == 4
        assert plan.lr is not None, "what was left open is written out"
        assert plan.weight_decay is not None
    assert row["plan"]["lr"] > row["finetune_plan"]["lr"]
    assert {"gemkit", "torch"} <= set(row["versions"])
    assert row["host"] == host()


def test_a_host_is_described_but_not_named():
    described = host()
    assert described["cores"] >= described["threads"] >= 1
    assert described["cpu"]
    assert platform.node() not in described.values()


def double(run):
    return run | {"twice": 2 * run["seed"]}


def test_a_run_that_is_there_is_not_repeated(tmp_path, capsys):
    ledger = Ledger(tmp_path / "results.jsonl", ("seed",))
    ledger.path.write_text('{"seed": 1, "twice": "as it was"}\n')
    ledger.complete([{"seed": seed} for seed in (0, 1, 2)], double, jobs=1)
    rows = {row["seed"]: row["twice"] for row in ledger.rows()}
    assert rows == {0: 0, 1: "as it was", 2: 4}
    assert sorted(line.split()[2] for line in capsys.readouterr().err.splitlines()) == ["0", "2"]


def fail(run):
    raise ValueError("no result")


def test_a_ledger_is_left_as_it_was_where_no_run_succeeds(tmp_path):
    there, absent = tmp_path / "there.jsonl", tmp_path / "new" / "absent.jsonl"
    there.touch()
    for path in (there, absent):
        with pytest.raises(ValueError, match="no result"):
            Ledger(path, ("seed",)).complete([{"seed": 0}], fail, jobs=1)
    assert there.exists()
    assert not absent.exists()


def test_a_ledger_that_cannot_be_written_is_told_before_any_run(tmp_path):
    with pytest.raises(OptionError, match=r"cannot write results to .* name another file"):
        Ledger(tmp_path, ("seed",)).check_writable()


def test_the_readmes_table_is_made_of_the_results():
    page = (ROOT / "README.md").read_text()
    assert with_results(page, "digits", digits.table(digits.LEDGER.rows())) == page


@pytest.mark.parametrize("protocol", methods.protocols(None))
def test_the_tables_of_methods_are_made_of_the_results(protocol):
    page = methods.PAGE.read_text()
    table = methods.table(methods.ledger(protocol).rows())
    assert with_results(page, f"methods-{protocol}", table) == page


@pytest.mark.parametrize("protocol", newer.protocols(None))
def test_the_tables_of_newer_methods_are_made_of_the_results(protocol):
    page = newer.PAGE.read_text()
    table = newer.table(protocol, newer.ledger(protocol).rows())
    assert with_results(page, f"newer-{protocol}", table) == page


@pytest.mark.parametrize("protocol", newer.protocols(None))
def test_newer_methods_are_compared_at_equal_epochs(protocol):
    planned = list(newer.runs(protocol, newer.protocols(None)[protocol]))
    assert len({row["epochs"] + row["finetune_epochs"] for row in planned}) == 1
    assert len({json.dumps([row[key] for key in newer.KEYS]) for row in planned}) == len(planned)


def test_an_interval_is_students_and_differences_are_taken_by_seed():
    assert newer.interval([0.5, 0.7, 0.6]) == "60.0 ± 24.8"  # 4.303 · 10 / √3
    assert newer.interval([0.5]) == "50.0"
    found = {"before": 0.1, "empty_layers": 0, "kept": 5, "prunable": 100}
    found |= {"density": 0.05, "epochs": 8, "finetune_epochs": 8}
    rows = [
        {"method": method, "seed": seed, "after": after, **found}
        for method, results in {"rigl": (0.9, 0.8, 0.7), "set": (0.8, 0.7, 0.6, 0.1)}.items()
        for seed, after in enumerate(results)
    ]
    lines = newer.table("cifar10", rows).splitlines()
    assert "| `rigl` | 8 + 8 | 10.0 ± 0.0 → 80.0 ± 24.8 |" in lines
    assert "| `rigl` − `set` | +10.0 ± 0.0 |" in lines
    assert "| `rigl` | 8 + 8 | 10.0 → 90.0 (1 of 3 seeds) |" in newer.table("cifar10", rows[:1])


def test_a_row_may_name_a_plugin_and_change_the_recipe():
    run = {"pruner": "ac_dc", "plugin": "gemkit-ac-dc", "density": 0.5, "seed": 0, "epochs": 2}
    run |= {"finetune_epochs": 0, "model": "conv4", "dataset": {"name": "digits"}}
    row = measure(run | {"batch_size": 512, "options": {"schedule.last": 0.5}})
    assert row["recipe"]["schedule"] == {
        "name": "alternate",
        "warmup": 0.1,
        "phase": 0.05,
        "last": 0.5,
    }
    assert row["before"] == row["after"]


@pytest.mark.parametrize(
    ("place", "benchmark"), [("compaction", compaction), ("learned", compact_learning)]
)
def test_the_tables_of_compaction_are_made_of_the_results(place, benchmark):
    page = compaction.PAGE.read_text()
    assert with_results(page, place, benchmark.table(benchmark.LEDGER.rows())) == page


def test_a_compact_network_is_timed_and_trained_beside_the_masked_one():
    row = json.loads(
        json.dumps(compact_learning.row_of("conv4", 0, compaction.few(Digits().load(None))))
    )
    assert set(row["accuracy"]) == set(row["cpu_seconds"]) == {"masked", "compact"}
    assert "| `conv4` | `gem_miner` | digits | 20 | 1 |" in compact_learning.table([row])


def test_the_tables_of_tasks_are_made_of_the_results():
    page = tasks.PAGE.read_text()
    assert with_results(page, "tasks", tasks.tables(tasks.results())) == page
    page = tasks.DATA_PAGE.read_text()
    assert with_results(page, "task-data", tasks.data_table(tasks.results("tuning"))) == page


def test_a_task_is_judged_by_pairs_of_a_seed_once_all_seeds_are_there():
    rows = [
        {"task": "table", "arm": "snip", "density": 0.1, "seed": seed, "kept": 1, "prunable": 10}
        | {"before": 0.2, "after": 0.8 + seed / 100}
        | {"controls": {"shuffle": {"before": 0.2, "after": 0.7 + seed / 100}}}
        for seed in tasks.SEEDS
    ]
    assert "| `table` | `snip` | 0.1 | +10.0 ± 0.0, passes |  |  |" in tasks.tables(rows)
    assert "+10.0 ± 0.0, 2 of 5 seeds" in tasks.tables(rows[:2])
    assert "| 0.1, 0.1000 | 5 | 20.0 ± 0.0 → 82.0 ± 2.0 |" in tasks.tables(rows)


def test_settings_of_tasks_are_chosen_on_other_seeds_and_without_the_test_split():
    planned = {run["seed"] for run in tasks.runs()}
    assert planned.isdisjoint(run["seed"] for run in tasks.tuning())
    assert {row["split"] for row in tasks.results("tuning") if "split" in row} == {"validation"}


def row(pruner, density, seed, **found):
    return {"pruner": pruner, "density": density, "seed": seed, **found}


def test_the_table_of_methods_tells_collapse_and_spread():
    found = {"before": 0.5, "empty_layers": 0, "search_epochs": 3, "cpu_seconds_search": 1.2}
    found |= {"kept": 199, "prunable": 1000}
    rows = [
        row("snip", 0.2, 0, after=0.8, **found),
        row("snip", 0.2, 1, after=0.9, **found),
        row("snip", 0.05, 0, after=0.7, **found | {"empty_layers": 2, "kept": 30}),
        row("snip", 0.05, 1, collapse="no weight"),
        row("snip", 0.014, 0, collapse="no weight"),
    ]
    [line] = methods.table(rows).splitlines()[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["`snip`", "3", "1"]
    assert cells[3] == "50.0 ± 0.0 → 85.0 ± 7.1"
    assert cells[4] == "50.0 → 70.0 ¹ (keeps 0.030) (1 of 2 collapsed)"
    assert cells[5] == "collapsed"


def test_an_empty_place_is_filled_and_its_neighbours_left_alone():
    page = "<!-- results: {} -->\n{}<!-- end of results -->\n"
    before = page.format("a", "") + page.format("b", "old\n")
    assert with_results(before, "a", "new") == page.format("a", "new\n") + page.format("b", "old\n")


def test_a_page_without_a_place_for_results_is_told():
    with pytest.raises(OptionError, match="no place for the results 'mine'"):
        with_results("# Page", "mine", "| table |")
    with pytest.raises(OptionError, match=r"no end of 'mine'; write .*<!-- end of results -->"):
        with_results("<!-- results: mine -->", "mine", "| table |")
