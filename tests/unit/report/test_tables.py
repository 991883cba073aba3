"""Tables for papers and spreadsheets, and the escaping of names in them."""

import csv
import html
import io
import json
import re
import shutil
import string
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reports import HOSTILE, METHODS, record, study, unfinished

from gemkit.report.groups import group
from gemkit.report.judged import judged
from gemkit.report.page.data import page_data
from gemkit.report.paper import latex_tables, markdown_tables, tables
from gemkit.report.quoting import latex, markdown, plot, script, sheet
from gemkit.report.records import records_from
from gemkit.report.sheets import group_sheet, record_sheet


def grouped(records):
    return group(records_from(records))


# --- what cells say -------------------------------------------------------------------------------


def cells(records):
    [table] = tables(grouped(records))
    return {
        (label, density): cell
        for label, row in table.rows
        for density, cell in zip(table.densities, row, strict=True)
    }


def test_the_best_mean_is_bold_and_what_is_not_shown_to_be_worse_has_a_dagger():
    afters = {
        "gem_miner": (0.90, 0.95, 0.92),
        "snip": (0.89, 0.94, 0.91),
        "synflow": (0.8, 1.0, 0.93),
    }
    records = [
        record(method, seed=seed, after=after)
        for method, own in afters.items()
        for seed, after in enumerate(own)
    ]
    ranks = {label: cell.rank for (label, _), cell in cells(records).items()}
    assert ranks == {"gem_miner": "best", "snip": "", "synflow": "near"}
    text = markdown_tables(grouped(records), [], "title")
    assert "→ **92.3 ± 6.3**" in text
    assert re.search(r"synflow \|.*91.0 ± 25.2†", text)
    assert r"\textbf{92.3} {\scriptsize$\pm$6.3}" in latex_tables(grouped(records), [], "title")


def test_the_lowest_error_is_the_best():
    values = {"gem_miner": 3.0, "snip": 1.0}
    records = [
        record(method, after=value, before=value, metric="mean_squared_error", controls={})
        for method, value in values.items()
    ]
    assert [cell.rank for cell in cells(records).values()] == ["near", "best"]


def test_collapsed_seeds_are_counted_beside_the_mean_of_the_others():
    lost = {"before": None, "after": None, "controls": {}, "collapse": "'conv1' lost every weight"}
    records = [record(seed=seed, **(lost if seed > 2 else {})) for seed in range(5)]
    groups = grouped([*records, record("snip", **lost), record("synflow", collapse="narrowly")])
    text = markdown_tables(groups, [], "title")
    assert re.search(r"gem\\_miner \|.*\(n 3, 2 collapsed\) \|", text)
    assert "| snip | – (1 collapsed) |" in text
    assert re.search(r"synflow \|.*→ \d.*\(n 1, 1 collapsed, measured\) \|", text)
    text = latex_tables(groups, [], "title")
    assert "2 collapsed" in text
    assert r"{\scriptsize 1 collapsed}" in text
    drawn = page_data(groups, [])["groups"]
    assert [one["q"] for one in drawn] == ["2 collapsed", "1 collapsed", "1 collapsed, measured"]
    [first, *_] = csv.DictReader(io.StringIO(group_sheet(groups, [])))
    assert (first["done"], first["collapsed"]) == ("3", "2")


def test_one_method_alone_is_not_the_best():
    assert [cell.rank for cell in cells([record()]).values()] == [""]


def test_an_actual_density_far_from_the_target_is_named():
    text = markdown_tables(grouped([record(kept=130)]), [], "")
    assert "keeps 10 %" in text
    assert "keeps" not in markdown_tables(grouped([record()]), [], "")


def test_what_is_missing_is_marked():
    text = markdown_tables(grouped(unfinished()), [], "")
    assert "(n 1, " not in text, "the number of seeds is the same in all cells"
    assert "1 missing, 1 failed, 1 partial" in text
    assert "1 missing, 1 failed, 1 partial" in latex_tables(grouped(unfinished()), [], "")


def test_one_seed_is_one_seed():
    text = markdown_tables(grouped([record()]), [], "")
    assert "; 1 seed. " in text
    assert "1 seeds" not in text


def test_the_number_of_seeds_is_said_once_or_in_every_cell():
    same = markdown_tables(grouped(study()), [], "")
    assert "5 seeds" in same
    assert "(n 5" not in same
    mixed = markdown_tables(grouped(study()[1:]), [], "")
    assert "(n 4" in mixed
    assert "(n 5" in mixed


# --- CSV ------------------------------------------------------------------------------------------


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_sheets_have_a_row_for_each_seed_and_each_group():
    groups = grouped(study())
    controls = judged(groups)
    seeds, means = rows(record_sheet(groups)), rows(group_sheet(groups, controls))
    assert (len(seeds), len(means)) == (60, 12)
    afters = [
        float(one["after"]) for one in seeds if (one["pruner"], one["density"]) == ("snip", "0.1")
    ]
    [mean] = [one for one in means if (one["pruner"], one["target_density"]) == ("snip", "0.1")]
    assert float(mean["after mean"]) == pytest.approx(sum(afters) / 5)
    assert mean["after n"] == "5"
    assert mean["shuffle verdict"] == "passes"
    assert float(seeds[0]["shuffle after"]) == study()[0]["controls"]["shuffle"]["after"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "=cmd|' /C calc'!A0"])
def test_a_spreadsheet_computes_no_name(name):
    [row] = rows(record_sheet(grouped([record(model=name, axes={name: name})])))
    for value in (row["model"], next(row[key] for key in row if "axis" in key)):
        assert not value.startswith(("=", "+", "-", "@", "\t"))
    assert sheet(-1.5) == -1.5


def test_a_sheet_keeps_every_character_of_a_name():
    [row] = rows(record_sheet(grouped([record(model='a"b,c;d')])))
    assert row["model"] == 'a"b,c;d'


# --- escaping -------------------------------------------------------------------------------------

PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]))


@given(PLAIN)
@example(HOSTILE + string.punctuation + "_x")
@example("_x$")
def test_latex_has_no_special_character_of_a_name(text):
    """Take away what the escapes are made of; nothing that LaTeX acts on is left."""
    rest = re.sub(
        r"\\text[a-z]+\{\}|\\texttt\{(?:U\+[0-9A-F]+|\\char34)\}|\\ldots\{\}|\{[-\[\]*]\}",
        "",
        latex(text),
    )
    rest = re.sub(
        r"\$(?:\\times|\\[lg]e|\\cdot|\\lambda|\\to|\\pm|-|\^\\dagger)\$|\\[{}$&#_%]|--", "", rest
    )
    assert not set(rest) & set("\\{}$&#_%~^<>|\"'`-*[]")
    assert all(letter.isascii() or "\u00c0" <= letter <= "\u017f" for letter in rest)


def compiled(folder, text):
    """Compile a document with the default fonts, and return what pdflatex complains about."""
    (folder / "doc.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"{text}\n\\end{{document}}\n"
    )
    words = ["pdflatex", "-draftmode", "-interaction=nonstopmode", "-no-shell-escape", "doc.tex"]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    printed = done.stdout.decode(errors="replace")
    lines = [one for one in printed.splitlines() if one.startswith("!") or "Missing char" in one]
    return lines or ([] if done.returncode == 0 else [printed])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
def test_latex_tables_compile_with_any_name(tmp_path):
    letters = "".join(map(chr, range(0xA0, 0x180)))
    names = (
        HOSTILE,
        string.punctuation,
        letters,
        "λ ± 0.5 → † · … – − ≤ ≥ × 中 😀",
        "?`!`--- ``''",
    )
    records = [
        record(name[:200], model=name[:200], seed=seed, controls={name[:40]: {"after": 0.5}})
        for name in names
        for seed in range(3)
    ]
    groups = grouped([*records, *study(3), *unfinished()])
    text = latex_tables(groups, judged(groups), HOSTILE)
    assert compiled(tmp_path, text) == []
    assert compiled(tmp_path, "Ħ") != [], "a letter that is not escaped is noticed"


def test_letters_that_the_default_fonts_lack_are_numbers():
    """What pdflatex of TeX Live 2022 refuses without the package fontenc."""
    assert latex("ŁéŽ") == "ŁéŽ"
    assert latex("ŋ") == r"\texttt{U+014B}"
    assert latex('"') == r"\texttt{\char34}", "\\textquotedbl is in T1 alone"


def test_every_brace_of_the_latex_tables_is_closed():
    records = [record(HOSTILE, model=HOSTILE, seed=seed) for seed in range(3)] + study(3)
    groups = grouped(records)
    text = latex_tables(groups, judged(groups), HOSTILE)
    bare = re.sub(r"\\[{}]", "", text)
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"(?<!\\)%", text)) == 1, "the comment at the top"
    for block in re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL):
        widths = {len(re.findall(r"(?<!\\)&", line)) for line in block.strip().splitlines()}
        assert len(widths) == 1
    for name in METHODS:
        assert latex(name) in text


@given(PLAIN)
@example(HOSTILE + string.punctuation + "_x")
@example("_x$")
def test_markdown_shows_a_name_as_it_is(text):
    shown = re.sub(r"\\([\\`*_{}\[\]|$~#])", r"\1", markdown(text))
    assert html.unescape(shown) == html.unescape(text) or html.unescape(shown) == text
    assert not re.search(
        r"(?<!\\)(?:\\\\)*[|`<]", markdown(text).replace("\\|", "").replace("\\`", "")
    )


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_script_element_cannot_be_left(data):
    text = script(data)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == data


@given(PLAIN)
@example(HOSTILE + string.punctuation + "_x")
@example("_x$")
def test_a_figure_reads_no_mathematics(text):
    assert not re.search(r"(?<!\\)\$", plot(text))
    assert not plot(text).startswith("_")
