"""`gemkit report STUDY`: every file is written, and its numbers are those of the stages."""

import csv
import json
import math
import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from cli_runs import answer, commands_in
from studies import TINY, cells_of, driven

from gemkit.study.stage_store import StageStore

SEEDS = 4
T = 3.182446305284263
"""The 97.5 % quantile of Student's t with 3 degrees of freedom, from a printed table."""
FIGURES = ("accuracy", "controls", "layers", "convergence", "lambda", "cost")
RATES = (0.1, 0.2)


def outcomes(rng, **ranges):
    """Invent the results of more stages than there are."""
    return [{name: rng.uniform(*ends) for name, ends in ranges.items()} for _ in range(50)]


def searches(rng):
    """Invent searches, with curves and freezes."""
    curve = [
        {"epoch": epoch, "metric": 0.2 * epoch, "density": 0.5**epoch, "strength": 1e-4 * epoch}
        for epoch in (1, 2, 3)
    ]
    layers = [("conv.weight", 3, 60), ("head.weight", 2, 40)]
    own = {"curve": curve, "layers": layers, "bound": [(2, 0.05)], "epochs": 3, "after": None}
    return [one | own for one in outcomes(rng, before=(0.1, 0.5))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a study of two pruners, two rates and four seeds, and its report."""
    path, rng = tmp_path_factory.mktemp("studies"), random.Random(0)
    grid = {"pruner": ["gem_miner", "snip"], "search.lr": list(RATES)}
    cells = cells_of(TINY, checks=["shuffle"], grid=grid, seeds=SEEDS)
    script = {
        "search": searches(rng),
        "finetune": [
            one | {"before": None, "curve": [{"epoch": 1, "metric": 0.5, "density": 0.05}]}
            for one in outcomes(rng, after=(0.6, 0.9))
        ],
        "shuffle": outcomes(rng, before=(0.1, 0.2), after=(0.5, 0.6)),
    }
    driven(cells, path / "mine", script)
    StageStore(path / "mine").write_cells("mine", [cell.info for cell in cells])
    with pytest.MonkeyPatch.context() as patch:
        done = commands_in(path, patch)("report", "mine")
    assert done.exit_code == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "mine/report/report.html"
    assert second.startswith("16 of 16 results: 4 methods × 1 density × 4 seeds on conv4 · fake")
    return path


def stored(folder):
    """Read the results of the study from its files: (pruner, rate) -> field -> seed -> value."""
    study = json.loads((folder / "mine" / "study.json").read_text())
    found = {}
    for cell in study["cells"]:
        stages = {"search": cell["search"], "finetune": cell["finetune"], **cell["checks"]}
        results = {
            kind: json.loads((folder / "mine" / "stages" / stage / "result.json").read_text())
            for kind, stage in stages.items()
        }
        own = found.setdefault((cell["pruner"], cell["axes"]["search.lr"]), {})
        for field, kind, value in (
            *(("before", "search", "before"), ("after", "finetune", "after")),
            ("shuffle", "shuffle", "after"),
        ):
            own.setdefault(field, {})[cell["seed"]] = results[kind][value]
    return found


def interval(values):
    """Return mean and half of the interval, by the textbook."""
    numbers = np.array(list(values))
    assert len(numbers) == SEEDS
    error = math.sqrt(((numbers - numbers.mean()) ** 2).sum() / (SEEDS - 1) / SEEDS)
    return numbers.mean(), T * error


def rows(folder, name):
    with (folder / "mine" / "report" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def labelled(pruner, rate):
    return f"{pruner}, search.lr {rate}"


def test_all_files_are_written(folder):
    report = folder / "mine" / "report"
    files = {path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file()}
    pictures = {f"figures/{name}.{end}" for name in FIGURES for end in ("svg", "pdf", "png")}
    texts = {"report.html", "records.csv", "groups.csv", "records.jsonl"}
    texts |= {"tables.md", "tables.tex"}
    assert files == texts | pictures | {"figures/captions.md"}
    for name in FIGURES:
        assert (report / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (report / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")
        assert ElementTree.parse(report / f"figures/{name}.svg").getroot().tag.endswith("svg")


def test_every_figure_and_table_has_a_caption_with_network_data_metric_and_seeds(folder):
    report = folder / "mine" / "report"
    parts = (report / "figures" / "captions.md").read_text().split("\n\n")[1:]
    assert [part.partition(".")[0] for part in parts] == [f"**{name}" for name in FIGURES]
    for part in parts:
        assert "conv4 on fake. " in part
        assert part.rstrip().endswith("4 seeds.")
    assert "Test accuracy in percent" in parts[0]
    assert "Bars are the 95 % confidence interval of the mean over seeds" in parts[0]
    for name in ("tables.md", "tables.tex"):
        text = (report / name).read_text().replace("{-}", "-").replace("\\%", "%")
        assert "conv4 on fake: test accuracy in percent before" in text
        assert "is half the 95 % confidence interval of the mean over seeds" in text
        assert "; 4 seeds. " in text


def test_the_records_are_those_of_the_stages(folder):
    expected, found = stored(folder), rows(folder, "records.csv")
    assert len(found) == 4 * SEEDS
    for one in found:
        own = expected[one["pruner"], float(one["axis search.lr"])]
        seed = int(one["seed"])
        assert one["study"] == "mine"
        assert one["series"] == labelled(one["pruner"], one["axis search.lr"])
        assert float(one["before"]) == own["before"][seed]
        assert float(one["after"]) == own["after"][seed]
        assert float(one["shuffle after"]) == own["shuffle"][seed]
        assert (one["kept"], one["prunable"], one["state"]) == ("5", "100", "done")


def test_the_means_and_intervals_are_those_of_the_stages(folder):
    expected, found = stored(folder), rows(folder, "groups.csv")
    assert [one["series"] for one in found] == [labelled(*key) for key in expected]
    for one, own in zip(found, expected.values(), strict=True):
        for moment in ("before", "after"):
            mean, half = interval(own[moment].values())
            assert float(one[f"{moment} mean"]) == pytest.approx(mean, rel=1e-12)
            assert float(one[f"{moment} half 95 %"]) == pytest.approx(half, rel=1e-9)
            assert int(one[f"{moment} n"]) == SEEDS
        drops = [own["after"][seed] - own["shuffle"][seed] for seed in range(SEEDS)]
        mean, half = interval(drops)
        assert float(one["shuffle worse by"]) == pytest.approx(mean, rel=1e-12)
        assert float(one["shuffle low 95 %"]) == pytest.approx(mean - half, rel=1e-9)
        assert one["shuffle verdict"] == ("passes" if mean - half > 0.01 else "undecided")


def best_of(expected):
    means = {key: interval(own["after"].values())[0] for key, own in expected.items()}
    return max(means, key=means.__getitem__)


def test_markdown_and_latex_have_the_same_numbers(folder):
    expected, report = stored(folder), folder / "mine" / "report"
    markdown, latex = ((report / f"tables.{end}").read_text() for end in ("md", "tex"))
    for key, own in expected.items():
        label = labelled(*key).replace("_", r"\_")
        (before, _), (after, half) = (interval(own[name].values()) for name in ("before", "after"))
        first, mean, around = (f"{100 * value:.1f}" for value in (before, after, half))
        bold = key == best_of(expected)
        [line] = re.findall(rf"^\| {re.escape(label)} \| (.*)", markdown, re.MULTILINE)
        text = f"**{mean} ± {around}**" if bold else f"{mean} ± {around}"
        assert line.startswith(f"{first} → {text}")
        [line] = re.findall(rf"^    {re.escape(label)} & (.*?) ?\\\\$", latex, re.MULTILINE)
        text = rf"\textbf{{{mean}}}" if bold else mean
        assert line.startswith(rf"{first} $\to$ {text} {{\scriptsize$\pm${around}}}")


def test_the_page_has_the_same_numbers(folder):
    text = (folder / "mine" / "report" / "report.html").read_text()
    [script] = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text)
    data = json.loads(script)
    for one, own in zip(data["groups"], stored(folder).values(), strict=True):
        mean, half = interval(own["after"].values())
        shown = [pytest.approx(100 * value, rel=1e-5) for value in (mean, half)]
        assert one["a"] == [*shown, SEEDS]


def test_the_command_lists_what_it_wrote(folder, monkeypatch):
    gemkit = commands_in(folder, monkeypatch)
    data = answer(gemkit("report", "mine", "--out", "again", "--format", "csv,md", "--json"))
    assert data["files"] == [f"again/{name}" for name in ("records.csv", "groups.csv", "tables.md")]
    for name in ("records.csv", "tables.md"):
        assert Path("again", name).read_bytes() == Path("mine", "report", name).read_bytes()
