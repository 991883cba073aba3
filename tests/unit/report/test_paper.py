"""Every figure and table of the paper has an entry, which can be tried without data."""

import re
from pathlib import Path

import pytest
from cli_runs import answer, commands_in
from test_reproduce import REGISTRY, ROOT, TABLES, invented

from docs.tools import paper as paper_page
from gemkit.core.errors import FitError, OptionError
from gemkit.report.plots import canvas, styles_of
from gemkit.reproduce import trial
from gemkit.reproduce.comparison import SYNTHETIC, comparison
from gemkit.reproduce.curves import bound, draw_lambda
from gemkit.reproduce.datasets import DATASETS
from gemkit.reproduce.figures import CAPTIONS, draw_figures
from gemkit.reproduce.paper import Item, paper
from gemkit.reproduce.properties import finetunable, passes_checks, prunes_at_init
from gemkit.reproduce.results import Index, check_kind, results_of
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.synthetic import TRY
from gemkit.reproduce.table import KEYS, by_name, table_of
from gemkit.runs.resolved import resolve
from gemkit.study.store import Ledger

FULL = Scale()

# The figures and tables in the paper's source, in the order of its text, with their numbers.
LABELS = {
    "fig:GemMiner": "Figure 1",
    "table:lits_of_pruning_algos": "Table 1",
    "fig:EP_GM": "Figure 2",
    "fig:cifar10": "Figure 3",
    "fig:img_lang": "Figure 4",
    "fig:epoch_vs_acc": "Figure 5",
    "table:prospr_comparison": "Table 2",
    "fig:cifar10_before_ft": "Figure 6",
    "fig:cifar11": "Figure 7",
    "table:EP_to_GM": "Table 3",
    "table:long_GM": "Table 4",
    "arch:resnet-typed": "Table 5",
    "arch:vgg": "Table 6",
    "arch:mobilenet": "Table 7",
    "table:hyperparam_resnet20_cifar10": "Table 8",
    "table:hyperparam_mobilenet_cifar10": "Table 9",
    "table:hyperparam_vgg16_cifar10": "Table 10",
    "table:hyperparam_wideresnet_cifar10": "Table 11",
    "table:hyperparam_resnet18_tinyimagenet": "Table 12",
    "table:hyperparam_resnet50_tinyimagenet": "Table 13",
    "table:hyperparam_resnet50_caltech": "Table 14",
    "tab:hyperparameter": "Table 15",
    "fig:additional_exp": "Figure 8",
    "table:SRvsGM": "Table 16",
    "fig:pre_vs_post": "Figure 9",
    "fig:different_IMP": "Figure 10",
}

FORMER = (
    *("prospr", "ep-to-gm", "long-gm", "smart-ratio", "computation", "cifar10-small", "demo"),
    *(f"sweep-{net}" for net in ("resnet20", "mobilenet_v2", "vgg16", "wide_resnet28_2")),
    *("sweep-resnet18-tiny", "sweep-resnet50-tiny", "sweep-caltech101"),
)


# --- the list ------------------------------------------------------------------------------------


def test_every_figure_and_table_has_an_entry_or_a_reason():
    assert {item.label: item.number for item in paper()} == LABELS
    assert [item.label for item in paper()] == list(LABELS), "in the paper's order"
    names = by_name(TABLES)
    for item in paper():
        assert all(entry in names for entry in item.entries), item
        assert bool(item.entries) != bool(item.instead)


def test_every_entry_belongs_to_the_paper_and_says_where():
    names = by_name(TABLES)
    places = {}
    for item in paper():
        for entry in item.entries:
            places.setdefault(names[entry].source, set()).add(item.number)
    own = {table.source for table in TABLES.values()} - {"not in the paper"}
    assert {source for source in own if not source.startswith("after")} == set(places)
    for source, numbers in places.items():
        digits = {number.split()[1] for number in numbers}
        assert digits == {word for word in source.replace(",", "").split() if word.isdigit()}


def test_an_item_needs_an_entry_or_a_reason():
    for entries, instead in (((), ""), (("demo",), "a drawing")):
        with pytest.raises(ValueError, match="give entries or a reason"):
            Item(number="Figure 1", label="fig:x", entries=entries, instead=instead)


@pytest.mark.parametrize("name", FORMER)
def test_former_names_still_work(name):
    assert table_of(name).rows


def test_no_name_means_two_tables():
    names = [*TABLES, *(other for table in TABLES.values() for other in table.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", TABLES)
def test_a_plot_prints_no_accuracy(name):
    table = TABLES[name]
    printed = [line for line in table.rows if line.paper.before or line.paper.after]
    assert not (table.plot_only and printed)
    assert set(table.figures) <= set(CAPTIONS)


def test_the_list_says_what_is_missing(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    (tmp_path / "data" / "cifar-10-batches-py").mkdir(parents=True)
    shown = gemkit("reproduce").stdout.splitlines()
    numbers = [line.split("  ")[0] for line in shown if line.startswith(("Figure", "Table"))]
    assert list(dict.fromkeys(numbers)) == list(LABELS.values())
    [one] = [line for line in shown if " fig2-lambda " in line]
    [two] = [line for line in shown if " fig4-caltech101 " in line]
    assert one.split()[2:5] == ["fig2-lambda", "5", "cifar10"]
    assert "cifar10 ✗" not in one
    assert "caltech101 ✗, weights ✗" in two
    assert "--try" in shown[-1]
    data = answer(gemkit("reproduce", "--data-dir", "elsewhere", "--json"))
    assert set(data["tables"]) == set(TABLES)
    assert [item["label"] for item in data["paper"]] == list(LABELS)
    assert " cifar10 ✗ " in gemkit("reproduce", "--data-dir", "elsewhere").stdout


def test_the_page_has_the_list(tmp_path):
    """Where it has not: python -m docs.tools.paper docs/reproduction.md."""
    text = (ROOT / "docs" / "reproduction.md").read_text()
    page = tmp_path / "page.md"
    page.write_text(text)
    paper_page.main([str(page)])
    assert page.read_text() == text
    assert all(f"`{name}`" in text for name in by_name(TABLES))


# --- rows ----------------------------------------------------------------------------------------


def densities(name, method):
    table = TABLES[name]
    settings = table.settings(REGISTRY, FULL)
    return [preset.density for line, preset in settings if line.method == method]


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith(("fig3", "fig4"))])
def test_all_methods_are_run_at_all_densities(name):
    methods = {line.method for line in TABLES[name].rows} - {"dense"}
    assert methods == {
        *("Gem-Miner", "Edge-Popup", "Smart Ratio", "IMP, warm", "Learning-rate rewinding")
    }
    assert densities(name, "dense") == [1.0]
    own = densities(name, "Gem-Miner")
    assert all(densities(name, method) == own for method in methods)
    checked = [line for line in TABLES[name].rows if line.checks]
    assert [len(line.checks) for line in checked] == [3] * len(own)


def test_learning_rate_rewinding_keeps_the_weights_and_trains_like_imp():
    for name in [name for name in TABLES if name.startswith(("fig3", "fig4", "fig8"))]:
        settings = TABLES[name].settings(REGISTRY, FULL)
        own, imp = (
            next(preset for line, preset in settings if line.method == method)
            for method in ("Learning-rate rewinding", "IMP, warm")
        )
        rewind = own.made(REGISTRY).rewind
        assert (rewind.weights, rewind.clock) == (None, 0)
        assert imp.made(REGISTRY).rewind.weights > 0
        if name != "fig3-resnet20":  # IMP as in the paper's text, 150 epochs a round
            assert (own.search, own.finetune) == (imp.search, imp.finetune)


def test_figure_2_varies_lambda_alone():
    settings = TABLES["fig2-lambda"].settings(REGISTRY, FULL)
    mined = [preset for _, preset in settings if preset.pruner == "gem_miner"]
    weights = [preset.made(REGISTRY).regularizer.weight for preset in mined]
    assert weights == [0, 3e-6, 7e-6, 1.5e-5]
    assert len({preset.search.model_dump_json() for preset in mined}) == 1
    assert mined[0].density == 1, "nothing is frozen"
    assert {preset.made(REGISTRY).finalize for preset in mined} == {"rounded"}


@pytest.mark.parametrize("scale", [FULL, Scale(time=0.1), TRY])
def test_figure_9_has_four_learning_rates_at_every_scale(scale):
    settings = TABLES["fig9-learning-rates"].settings(REGISTRY, scale)
    mined = [resolve(REGISTRY, preset) for _, preset in settings if preset.pruner == "gem_miner"]
    rates = [run.search.lr for run in mined][::2]
    usual = rates[0] or 10 * rates[1]  # left open if the search is shorter
    assert rates[1:] == pytest.approx([usual / 10, usual / 100, usual / 1000])
    assert rates[0] == (0.01 if scale == FULL else None)


def test_a_shorter_search_has_its_own_rate_times_the_rows():
    [_, _, (_, low), *_] = TABLES["fig9-learning-rates"].settings(REGISTRY, Scale(time=0.1))
    scores = low.made(REGISTRY).scores
    steps = low.search.epochs * -(-5000 // 128)
    assert low.search.lr == pytest.approx(0.1 * scores.default_lr(steps))


def test_figure_10_has_four_kinds_of_iterative_pruning():
    settings = TABLES["fig10-imp"].settings(REGISTRY, FULL)
    kinds = {
        (run.recipe.schedule.every, run.recipe.rewind.weights)
        for run in (resolve(REGISTRY, preset) for _, preset in settings)
        if run.recipe.schedule.name == "iterative"
    }
    assert kinds == {(None, 0), (None, 2.56), (8, 0), (8, 2.56)}


def test_versions_4_to_6_of_smart_ratio_are_tuned():
    rows = TABLES["table16-smart-ratio"].rows
    stages = [[stage.by for stage in line.tuning] for line in rows]
    assert stages == [[], [], [], [], ["search"], ["learn"], ["search", "learn"]]
    assert [line.paper.density for line in rows] == [
        *(0.0144, 0.0144, 0.0147, 0.0175, 0.0144, 0.0153, 0.0147)
    ]
    [*_, last] = TABLES["table16-smart-ratio"].settings(REGISTRY, Scale(time=0.1))
    assert [stage.epochs for stage in last[0].tuning] == [1, 15]


# --- the ledger ----------------------------------------------------------------------------------


def planned(name, scale=FULL, seeds=1):
    return list(TABLES[name].runs(REGISTRY, scale, seeds))


def test_a_row_of_several_tables_is_run_once(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", KEYS)
    for run in planned("fig3-resnet20"):
        ledger.append(run | {"after": 0.5})
    assert Index(ledger).missing(planned("fig7-layers")) == []
    assert len(Index(ledger).missing(planned("table4-long-gm"))) == 1, "long Gem-Miner"
    [missing] = [
        run for run in Index(ledger).missing(planned("table1-methods")) if run["setting"]["pruner"]
        == "imp_long_warm"
    ]  # fmt: skip
    assert missing["checks"], "a row without controls does not serve one with them"


def test_a_run_gets_the_row_with_its_own_controls(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", KEYS)
    [run, *_] = planned("fig7-layers")
    for checks in (["shuffle", "reinit"], []):
        ledger.append(run | {"checks": checks, "after": len(checks)})
    assert Index(ledger).row(run)["after"] == 0
    assert Index(ledger).row(run | {"checks": ["reinit"]})["after"] == 2
    assert Index(ledger).row(run | {"checks": ["invert"]}) is None
    assert Index(ledger).row(run | {"tuning": [{"by": "learn", "epochs": 1}]}) is None


def test_runs_that_are_the_same_are_missing_once(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", KEYS)
    runs = planned("table4-long-gm", TRY)
    assert runs[0] == runs[1], "nothing of a long search is left"
    assert len(Index(ledger).missing(runs)) == len(runs) - 1


def test_real_and_synthetic_results_are_never_mixed(tmp_path, monkeypatch):
    real, made_up = (Ledger(tmp_path / name, KEYS) for name in ("real.jsonl", "try.jsonl"))
    real.append(planned("demo")[0] | {"after": 0.5})
    made_up.append(planned("demo", TRY)[0] | {"after": 0.5})
    check_kind(real, synthetic=False)
    check_kind(made_up, synthetic=True)
    with pytest.raises(OptionError, match=r"results on real data.*--ledger"):
        check_kind(real, synthetic=True)
    with pytest.raises(OptionError, match=r"results on synthetic data"):
        check_kind(made_up, synthetic=False)
    gemkit = commands_in(tmp_path, monkeypatch)
    monkeypatch.setattr(Ledger, "complete", None)  # calling it would be a TypeError
    for words in (("--try", "--ledger", "real.jsonl"), ("--ledger", "try.jsonl")):
        result = gemkit("reproduce", "demo", *words)
        assert (result.exit_code, "name another file" in result.stderr) == (2, True)


# --- without data --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_trial_has_the_shape_and_the_classes_of_the_data(name):
    for (_, real), (_, preset) in zip(
        TABLES[name].settings(REGISTRY, FULL), TABLES[name].settings(REGISTRY, TRY), strict=True
    ):
        run = resolve(REGISTRY, preset)
        data = real.dataset if isinstance(real.dataset, str) else real.dataset["name"]
        known = DATASETS[data]
        assert run.dataset.name == "fake"
        assert (run.dataset.size, run.dataset.channels) == (known.size, known.channels)
        assert run.dataset.classes == known.classes
        assert run.model.width == 4
        assert run.recipe.pruner == real.pruner
        assert max(run.search.epochs, run.finetune.epochs) <= 2 or real.pruner == "dense"
        assert (run.density == 1) == (real.density == 1)


def test_trials_keep_the_order_of_densities():
    real, small = (
        [preset.density for _, preset in TABLES["fig3-resnet20"].settings(REGISTRY, scale)]
        for scale in (FULL, TRY)
    )
    assert sorted(range(len(real)), key=real.__getitem__) == sorted(
        range(len(small)), key=small.__getitem__
    )


def try_in_process(self, runs, measure, jobs, describe):
    """Carry out runs without a pool of processes, which takes seconds to start."""
    for run in runs:
        self.append(measure(run))


@pytest.mark.parametrize("name", ["demo", "table3-ep-to-gm"])
def test_an_entry_is_tried_without_data(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "complete", try_in_process)
    gemkit = commands_in(tmp_path, monkeypatch)
    result = gemkit("reproduce", name, "--try")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(SYNTHETIC)
    rows = Ledger(Path("reproduction-try.jsonl"), KEYS).rows()
    assert all(row["synthetic"] is True for row in rows)
    assert not Path("reproduction.jsonl").exists()
    assert len(rows) == len(TABLES[name].rows)
    assert all("after" in row for row in rows)
    again = gemkit("reproduce", name, "--try", "--json")
    assert answer(again)["rows"] == rows, "nothing is run again"


@pytest.mark.parametrize("option", ["--scale", "--width"])
def test_a_trial_has_no_scale(option, tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    result = gemkit("reproduce", "demo", "--try", option, "0.5")
    assert (result.exit_code, "leave out --scale and --width" in result.stderr) == (2, True)
    Path("page.md").write_text("<!-- results: demo -->\n<!-- end of results -->\n")
    page = gemkit("reproduce", "demo", "--try", "--page", "page.md")
    assert (page.exit_code, "leave out --page" in page.stderr) == (2, True)


def tuned_run(version):
    """Return the trial of one version of Smart Ratio, on the smallest network there is."""
    run = planned("table16-smart-ratio", TRY)[version]
    recipe = {"init": "kaiming_normal"}
    if version != 5:  # which starts from the rule
        recipe["allocation"] = {"name": "densities", "densities": [0.9, 0.1, 0.2, 0.3, 0.5]}
    small = {"recipe": recipe, "model": {"name": "conv4", "width": 4}}
    small["dataset"] = run["setting"]["dataset"] | {"samples": 60, "size": 8}
    return run | {"setting": run["setting"] | small, "data_dir": None, "plugins": []}


@pytest.mark.parametrize("version", [4, 5, 6])
def test_tuning_changes_the_layer_densities_that_a_ticket_has(version):
    run = tuned_run(version)
    row = trial.measure(run)
    assert row["tuning"] == run["tuning"]
    assert row["recipe"]["allocation"]["name"] == "densities"
    start = run["setting"]["recipe"].get("allocation", {}).get("densities")
    assert row["recipe"]["allocation"].get("densities") != start
    assert row["search_epochs"] >= len(run["tuning"])
    exact = row["kept"] == round(run["setting"]["density"] * row["prunable"])
    assert exact == (version == 4), "learned rates are free"


def test_a_method_that_does_not_fit_is_recorded_and_the_others_follow(tmp_path, monkeypatch):
    [run] = [
        run
        for run in planned("fig8-mobilenet_v2-tiny", TRY)
        if run["setting"]["pruner"] == "smart_ratio" and run["setting"]["density"] < 0.25
    ]
    lower = run["setting"] | {"density": 0.01, "model": {"name": "conv4", "width": 4}}
    row = trial.measure(run | {"setting": lower, "data_dir": None, "plugins": []})
    assert "layers of fixed density" in row["refused"]
    assert "after" not in row

    def refuse(*_):
        raise FitError("not on this network")

    monkeypatch.setattr(trial, "tuned", refuse)
    monkeypatch.setattr(Ledger, "complete", try_in_process)
    gemkit = commands_in(tmp_path, monkeypatch)
    shown = gemkit("reproduce", "demo", "--try").stdout
    assert "| dense | 1 | – | – | – | – | – | – | refused |" in shown
    assert "* random at density 0.3684 is refused: not on this network" in shown


# --- Table 1 -------------------------------------------------------------------------------------

AFTER = {
    **{"IMP": 0.745, "SNIP": 0.74, "GraSP": 0.75, "SynFlow": 0.76, "Edge-Popup": 0.5},
    **{"Smart Ratio": 0.656, "Learning-rate rewinding": 0.802, "Gem-Miner": 0.779},
}
PASSING = {"IMP", "Gem-Miner"}


def methods_ledger(path, seeds=3, **changes):
    """Invent results like the paper's: controls are as good as the ticket, or 5 points worse."""
    table = TABLES["table1-methods"]
    lines = [line.method for line in table.rows] * seeds
    for number, (method, run) in enumerate(
        zip(lines, table.runs(REGISTRY, FULL, seeds), strict=True)
    ):
        after = AFTER[method] + 0.001 * number
        control = {"before": 0.1, "after": after - (0.05 if method in PASSING else 0) - 1e-4}
        row = invented(run, 0) | {"before": 0.1, "after": after, **changes}
        Ledger(path, KEYS).append(row | {"controls": dict.fromkeys(run["checks"], control)})
    return results_of(table, REGISTRY, FULL, seeds, Ledger(path, KEYS))


def test_table_1_is_computed_from_results(tmp_path):
    results = methods_ledger(tmp_path / "l.jsonl")
    marks = {False: "✗", True: "✓", None: "–", "passes": "✓", "fails": "✗"}
    for one in results:
        found = (prunes_at_init(one), finetunable(one, results), passes_checks(one))
        paper = one.line.paper
        expected = (paper.at_init, paper.finetunable, paper.passes)
        assert [marks[value] for value in found] == [marks[value] for value in expected], one.line
    text = comparison(TABLES["table1-methods"], results, FULL)
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    assert "| ✗ (✗) | ✓ (✓) | ✓ (✓) | 3 (2850) | 150 |" in lines["IMP"]
    assert "| ✓ (✓) | ✗ (✗) | ✗ (✗) |" in lines["Edge-Popup"]
    assert "| ✗ (✗) | – (–) | – (–) |" in lines["Learning-rate rewinding"]


def test_too_few_seeds_decide_no_check(tmp_path):
    results = methods_ledger(tmp_path / "l.jsonl", seeds=2)
    assert {passes_checks(one) for one in results if one.line.checks} == {"undecided"}
    assert "undecided (✓)" in comparison(TABLES["table1-methods"], results, FULL)


def test_a_ticket_that_gains_nothing_is_not_finetunable(tmp_path):
    results = methods_ledger(tmp_path / "l.jsonl", before=0.9)
    by_method = {one.line.method: one for one in results}
    assert finetunable(by_method["Gem-Miner"], results) is False
    assert finetunable(by_method["Gem-Miner"], [by_method["Gem-Miner"]]) is None, "no reference"
    assert finetunable(by_method["Learning-rate rewinding"], results) is None


def test_nothing_is_judged_before_it_is_measured(tmp_path):
    results = results_of(
        TABLES["table1-methods"], REGISTRY, FULL, 3, Ledger(tmp_path / "none", KEYS)
    )
    assert {finetunable(one, results) for one in results} == {None}
    assert {passes_checks(one) for one in results} == {None}
    text = comparison(TABLES["table1-methods"], results, FULL)
    assert "| IMP | 0.0144 | ✗ (✗) | – (✓) | – (✓) | – (2850) | 150 | – | – | 0 |" in text


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("fig2-lambda", ["lambda"]), ("fig5-convergence", ["progress"])],
)
def test_a_figure_of_the_paper_is_drawn(name, kinds, tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", KEYS)
    for number, run in enumerate(planned(name, seeds=2)):
        ledger.append(invented(run, number % 5))
    results = results_of(TABLES[name], REGISTRY, FULL, 2, ledger)
    files = draw_figures(results, tmp_path / "a", name, TABLES[name].figures)
    assert [file.name for file in files] == [
        f"{name}-{kind}.{end}" for kind in kinds for end in ("svg", "png")
    ]
    again = draw_figures(results, tmp_path / "b", name, TABLES[name].figures)
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    stamped = draw_figures(results, tmp_path / "c", name, kinds, "synthetic data")
    assert "synthetic data" in stamped[0].read_text()
    assert "synthetic data" not in files[0].read_text()


def test_the_bound_is_what_the_freezes_allow():
    settings = TABLES["fig2-lambda"].settings(REGISTRY, FULL)
    results = results_of(TABLES["fig2-lambda"], REGISTRY, FULL, 1, Ledger(Path("none.jsonl"), KEYS))
    free, some, *_, popup = results
    assert bound(free) == bound(popup) == []
    limits = dict(bound(some))
    target = settings[1][1].density
    assert list(limits)[:3] == [0, 5, 10]
    assert limits[300] == pytest.approx(100 * target)
    for epoch, density in limits.items():
        assert density == pytest.approx(100 * target ** (epoch / 300)), "e^(-cj) of Algorithm 1"


def test_a_bound_is_drawn_as_steps(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", KEYS)
    for run in planned("fig2-lambda"):
        ledger.append(invented(run, 0))
    results = results_of(TABLES["fig2-lambda"], REGISTRY, FULL, 1, ledger)
    with canvas() as new_figure:
        figure = new_figure(7, 4)
        draw_lambda(figure, results, styles_of(one.line.method for one in results))
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    limits = [limit for one in results if (limit := bound(one))]
    assert len(dotted) == len(limits) > 0
    for line, limit in zip(dotted, limits, strict=True):
        assert line.get_drawstyle() == "steps-post", "a bound holds until the next freeze"
        assert list(zip(*line.get_data(), strict=True)) == [*limit, limit[-1]]


@pytest.mark.parametrize(("name", "wider"), [("fig7-layers", True), ("cifar10-small", False)])
def test_a_figure_is_as_wide_as_the_titles_of_its_panels(name, wider, tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", KEYS)
    for run in planned(name):
        ledger.append(invented(run, 0))
    results = results_of(TABLES[name], REGISTRY, FULL, 1, ledger)
    [svg, _] = draw_figures(results, tmp_path, name, ["layers"])
    points = float(re.search(r'width="([\d.]+)pt"', svg.read_text())[1])
    assert (points > 72 * 7.2 + 1) == wider
