"""The page: complete, without requests, safe, and the same bytes for the same records."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import pytest
from reports import HOSTILE, METHODS, record, study, unfinished

from gemkit.core.errors import GemkitError, OptionError
from gemkit.report.written import FORMATS, formats_of, write_report


class Reader(HTMLParser):
    """Collects elements, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.texts, self.scripts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        (self.scripts if self.elements[-1:] == ["script"] else self.texts).append(data)


def written(tmp_path, records, **options):
    formats = options.pop("formats", ["html"])
    report = write_report(
        records, tmp_path, tmp_path / "out", title="T", formats=formats, **options
    )
    return report, (tmp_path / "out" / "report.html").read_text()


def test_a_title_of_two_lines_stays_a_comment(tmp_path):
    title = "a\n\\input{b}"
    write_report([record()], tmp_path, tmp_path, title=title, formats=["tex", "md"])
    comment, empty, *_ = (tmp_path / "tables.tex").read_text().splitlines()
    assert comment.startswith("% Tables of a")
    assert "input" in comment
    assert empty == ""
    assert (tmp_path / "tables.md").read_text().splitlines()[1] == ""


def test_the_page_has_every_section_and_number(tmp_path):
    report, text = written(tmp_path, study(), expects={"permute": "same"})
    page = Reader(text)
    found = {value for tag, name, value in page.attributes if (tag, name) == ("section", "id")}
    assert found == {
        *("results", "accuracy", "scatter", "controls", "measurements", "layers", "convergence"),
        *("strength", "cost", "groups", "settings"),
    }
    data = json.loads(page.scripts[0])
    assert data["series"] == list(METHODS)
    assert len(data["groups"]) == 12
    assert {one["a"][2] for one in data["groups"]} == {5}
    assert sum(bool(one["bound"]) for one in data["groups"]) == 4
    assert sum(bool(one["lam"]) for one in data["groups"]) == 4
    assert "passes (same)" in text
    assert report.summary.startswith("60 of 60 results: 3 methods × 4 densities × 5 seeds on conv4")


def test_the_page_refers_to_nothing_outside(tmp_path):
    _, text = written(tmp_path, study(3))
    assert not re.search(r"https?:|//[a-z]|url\((?!#)|@import|<link|<iframe|<object", text)
    sources = {name for _, name, _ in Reader(text).attributes}
    assert not sources & {"src", "srcset", "data", "action", "background", "poster"}
    links = [value for _, name, value in Reader(text).attributes if name == "href"]
    assert all(link.startswith("#") for link in links)


def test_the_policy_allows_the_script_and_style_of_the_page_alone(tmp_path):
    _, text = written(tmp_path, study(3))
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        [inline] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy.replace("&#39;", "'")
    assert not [
        name for _, name, _ in Reader(text).attributes if name.startswith("on") or name == "style"
    ]


def hostile(**changes):
    return record(
        HOSTILE,
        model=HOSTILE,
        dataset=HOSTILE,
        variant=HOSTILE,
        study=HOSTILE,
        axes={HOSTILE: HOSTILE},
        config={HOSTILE: HOSTILE, "search": {"lr": HOSTILE}},
        unmade={HOSTILE: HOSTILE},
        measurements={HOSTILE: {HOSTILE: 1.0}},
        collapse=HOSTILE,
        problem=HOSTILE,
        ticket=HOSTILE,
        key=HOSTILE,
        **{"controls": {HOSTILE: {"before": 0.1, "after": 0.2}}, "layers": [[HOSTILE, 1, 2]]}
        | changes,
    )


def test_no_name_becomes_an_element_or_an_attribute(tmp_path):
    plain = [record("x", seed=seed, layers=[["y", 1, 2]]) for seed in range(3)]
    names = {"collapse": "x", "problem": "x", "unmade": {"x": "x"}, "ticket": "../x"}
    plain = [one | names | {"model": "m", "dataset": "d", "variant": "v"} for one in plain]
    plain += [plain[0] | {"seed": 3, "state": "failed"}, plain[0] | {"pruner": "y"}]
    hurt = [hostile(seed=seed) for seed in range(3)] + [hostile(seed=3, state="failed")]
    _, text = written(tmp_path, hurt, expects={HOSTILE: "same"})
    _, safe = written(tmp_path, plain)
    assert set(Reader(text).elements) <= set(Reader(safe).elements)
    assert Reader(text).elements.count("script") == 2
    assert "<img" not in text
    assert "alert(1)" in "".join(Reader(text).texts), "the name is shown"


def test_hostile_names_reach_every_format(tmp_path):
    hurt = hostile(controls={}, layers=[], curves={}) | {"metric": "odd_%$metric"}
    report, _ = written(tmp_path, [hurt], formats=["html", "csv", "md", "tex", "svg"])
    assert all(file.stat().st_size for file in report.files)
    assert {file.stem for file in report.files if file.suffix == ".svg"} == {"accuracy", "cost"}
    assert "<script>" not in (tmp_path / "out" / "tables.md").read_text()


def test_a_partial_study_shows_what_there_is_and_marks_the_rest(tmp_path):
    report, text = written(tmp_path, unfinished(), formats=["html", "csv", "md", "tex"])
    assert "Of 5 results, 1 missing, 1 failed, 1 partial." in text
    words = " ".join(Reader(text).texts)
    for why in ("the loss is not finite", "no weights to draw", "lost every weight"):
        assert why in words
    assert report.summary.startswith("1 of 5 results")


def test_nothing_measured_at_all_is_a_page_too(tmp_path):
    nothing = dict.fromkeys(("before", "after", "kept", "prunable", "seconds", "cpu_seconds"))
    empty = {"controls": {}, "curves": {}, "bound": [], "layers": [], "state": "missing"}
    report, _ = written(tmp_path, [record(**nothing, **empty)], formats=FORMATS)
    assert report.summary == "0 of 1 result: 1 method × 1 density × 1 seed on conv4 · digits."


def test_an_empty_study_is_one_sentence(tmp_path):
    with pytest.raises(OptionError, match="has no results to report; run something first"):
        write_report([], tmp_path, tmp_path / "out", title="T")
    assert not (tmp_path / "out").exists()


def test_the_same_records_give_the_same_bytes(tmp_path):
    first, _ = written(tmp_path, study(3), formats=["html", "csv", "md", "tex"])
    before = [file.read_bytes() for file in first.files]
    written(tmp_path, study(3), formats=["html", "csv", "md", "tex"])
    assert [file.read_bytes() for file in first.files] == before


def test_figures_are_drawn_for_every_kind_of_result_and_are_the_same_bytes(tmp_path):
    records = [record(seed=seed) for seed in range(3)]
    report, _ = written(tmp_path, records, formats=["html", "svg"])
    drawn = {file.name: file.read_bytes() for file in report.files if file.suffix == ".svg"}
    kinds = ("accuracy", "controls", "layers", "convergence", "lambda", "cost")
    assert set(drawn) == {f"{kind}.svg" for kind in kinds}
    written(tmp_path, records, formats=["html", "svg"])
    assert {name: (tmp_path / "out" / "figures" / name).read_bytes() for name in drawn} == drawn


def test_without_matplotlib_all_but_the_figures_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = write_report(study(3), tmp_path, tmp_path / "out", title="T")
    assert {file.suffix for file in report.files} == {".html", ".csv", ".jsonl", ".md", ".tex"}
    assert "no figures were drawn: a picture needs matplotlib" in report.note
    with pytest.raises(GemkitError, match="needs matplotlib"):
        write_report(study(3), tmp_path, tmp_path / "two", title="T", formats=["pdf"])
    assert not (tmp_path / "two").exists()


def test_formats_are_a_list_of_names():
    assert formats_of("HTML, csv,html") == ("html", "csv")
    with pytest.raises(OptionError, match="unknown format 'htm'; did you mean 'html'"):
        formats_of("htm")
    with pytest.raises(OptionError, match="at least one format"):
        formats_of(" ,")


def test_many_cells_stay_a_small_page(tmp_path):
    records = [
        record("snip", density=0.001 * (1 + cell), seed=seed)
        for cell in range(100)
        for seed in range(5)
    ]
    _, text = written(tmp_path, records)
    assert len(text) < 600_000
