"""What people see of a study: lines, a table, and the page about it."""

import io
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import reports
from rich.console import Console
from studies import TINY, Here, cells_of, driven

from gemkit import Study
from gemkit.report.groups import group
from gemkit.report.paper import tables
from gemkit.report.records import records_from
from gemkit.runs.metrics import Log
from gemkit.study.driver import Board, Driver
from gemkit.study.grid import grid_from, read_grid
from gemkit.study.records import record_of
from gemkit.study.stage_store import StageStore
from gemkit.study.status import Status
from gemkit.study.view import (
    _QUIET,
    Lines,
    LiveTable,
    duration,
    group_table,
    mean_text,
    measure_text,
    shown,
)

PAGE = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
CELLS = cells_of(TINY, checks=["shuffle"], grid={"pruner": ["snip", "random"]}, seeds=2)


def run_with(view, folder, script=None):
    store = StageStore(folder)
    store.make()
    board = Board.of("tried", CELLS, store)
    Driver(board, store, view).run(Here(store, script), 2)
    return board


def test_lines_say_what_ends_and_what_is_left(tmp_path, capsys):
    script = {"shuffle": [{"state": "failed", "reason": "no \x1b[31m luck"}, {"unmade": "why"}]}
    run_with(Lines(), tmp_path, script)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "4 cells, 12 stages: 0 there already, 12 to run, 2 at once"
    assert len(lines) == 13
    text = "\n".join(lines)
    assert re.search(r"\[\d+/12\] search snip 0.05 s0: before 25.0 %, after 75.0 % \(2.0 s\)", text)
    assert r"failed: no \x1b[31m luck" in text, "control characters are escaped"
    assert "not made: why" in text
    assert "left" in lines[-2]


def test_the_table_fills_on_a_terminal(tmp_path):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    view = LiveTable(console)
    board = run_with(view, tmp_path)
    drawn = Console(file=(text := io.StringIO()), width=100)
    drawn.print(view._picture())
    assert "random" in text.getvalue()
    assert "12 of 12 stages done" in text.getvalue()
    words = " ".join(text.getvalue().split())
    assert measure_text("accuracy").partition("± is ")[2] in words
    assert "with 3 seeds or more" in words
    records = [record_of("", cell, board.results, board.failures) for cell in board.cells]
    assert group_table(records).splitlines() == [
        "pruner  density  seeds  before  after  shuffle",
        "snip    0.05       2/2    25.0   75.0     75.0",
        "random  0.05       2/2    25.0   75.0     75.0",
    ]


# --- progress within stages ---


@contextmanager
def at_work(folder):
    """Pretend that a stage runs: hold its lock, and yield a board that has it, and its log."""
    store = StageStore(folder)
    store.make()
    board = Board.of("tried", CELLS, store)
    stage = CELLS[0].info.finetune
    board.running.add(stage)
    own = store.folder(stage)
    own.path.mkdir()
    with own.locked():
        yield board, Log(own.log)


def test_lines_say_how_far_a_stage_is_once_a_minute_if_it_is_further(tmp_path, capsys):
    times = [0.0]
    with at_work(tmp_path) as (board, log):
        lines = Lines(lambda: times[0])
        lines.begin(board)
        capsys.readouterr()
        printed = []
        for second, said in enumerate(["begun", "finetune 1/2: \x1b[31mred", "", "", "", "2/2"]):
            if said:
                log.say(said)
            times[0] += 40
            lines.tick()
            printed.append((second, capsys.readouterr().err))
    title = "finetune snip 0.05 s0"
    assert printed == [
        (0, ""),
        (1, f"  {title}: finetune 1/2: \\x1b[31mred\n"),
        (2, ""),
        (3, ""),
        (4, ""),
        (5, f"  {title}: 2/2\n"),
    ]


def test_the_table_has_how_far_stages_are_below(tmp_path, monkeypatch):
    monkeypatch.setitem(_QUIET, "table", -1.0)
    out = io.StringIO()
    view = LiveTable(Console(file=out, force_terminal=True, width=100, color_system=None))
    with at_work(tmp_path) as (board, log):
        view.begin(board)
        for said in ("finetune 1/2", "finetune 2/2"):
            log.say(said)
            view._drawn = 0.0
            view.tick()
        view.close()
    assert "finetune snip 0.05 s0: finetune 1/2" in out.getvalue()
    assert "finetune snip 0.05 s0: finetune 2/2" in out.getvalue()


def test_the_status_says_how_far_running_stages_are(tmp_path):
    infos = [cell.info for cell in CELLS]
    with at_work(tmp_path) as (_, log):
        assert Status.of("", infos, StageStore(tmp_path)).progress() == ["finetune snip 0.05 s0: "]
        log.say("finetune 1/2: loss 1.2")
        status = Status.of("", infos, StageStore(tmp_path))
    assert status.progress() == ["finetune snip 0.05 s0: finetune 1/2: loss 1.2"]
    assert status.stages["running"] == 1
    assert status.to_data()["progress"] == status.progress()
    assert Status.of("", infos, StageStore(tmp_path)).progress() == [], "its lock is free"


def test_titles_of_recorded_stages_are_those_of_the_study():
    for cell in CELLS:
        assert cell.info.titles() == {name: one.title for name, one in cell.stages.items()}


@pytest.mark.parametrize("content", [b"", b"\n", b"no time", b"t  \x1b[3\xff\n", b"a" * 9999])
def test_a_log_with_anything_in_it_is_printable(tmp_path, content):
    store = StageStore(tmp_path)
    folder = store.folder("search-0123456789abcdef")
    folder.path.mkdir(parents=True)
    assert store.last_said("search-0123456789abcdef") == ""
    folder.log.write_bytes(content)
    said = store.last_said("search-0123456789abcdef")
    assert said.isprintable()
    assert len(said) < 4096
    folder.log.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("20:00  secret")
    folder.log.symlink_to(tmp_path / "elsewhere")
    assert store.last_said("search-0123456789abcdef") == "", "no link is followed"


# --- tables ---


def test_a_table_of_other_axes_has_a_column_for_each(tmp_path):
    cells = cells_of(TINY, grid={"search.lr": [0.1, 0.2]}, variant={"a": {}, "b": {"seed": 3}})
    board, _, _ = driven(cells, tmp_path)
    records = [record_of("", cell, board.results, board.failures) for cell in board.cells]
    head, *rows = group_table(records).splitlines()
    assert head.split()[:4] == ["variant", "pruner", "density", "lr"]
    assert len(rows) == 4


def test_nothing_is_shown_where_nothing_is_wanted(tmp_path, capsys):
    run_with(shown(False), tmp_path)
    assert capsys.readouterr().err == ""
    assert isinstance(shown(True), Lines), "tests have no terminal"


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (720, "12 min"), (12_600, "3.5 h"), (181_440, "2.1 days")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_means_have_a_spread_where_there_are_several():
    assert mean_text([0.5, None], "accuracy") == "50.0"
    assert mean_text([0.5, 0.7], "accuracy") == "60.0", "two seeds have no interval"
    # t = 4.303 with two degrees of freedom; the standard error is 0.1 / √3
    assert mean_text([0.5, 0.6, None, 0.7], "accuracy") == "60.0 ± 24.8"
    assert mean_text([2.0, 4.0, 6.0], "mean_squared_error") == "4 ± 4.968"
    assert mean_text([2.0], "of a plugin") == "2"
    assert mean_text([None], "accuracy") == ""
    assert "95 % confidence interval" in measure_text("accuracy")


def test_a_study_and_its_report_say_the_same():
    records = reports.study(3)
    printed = [line.rstrip() for line in group_table(records).splitlines()]
    [table] = tables(group(records_from(records)))
    for label, row in table.rows:
        for density, cell in zip(table.densities, row, strict=True):
            [line] = [one for one in printed if one.split()[:2] == [label, f"{density:g}"]]
            assert f"  {cell.before.text(table.metric)}  " in line
            assert f"  {cell.after.text(table.metric)}  " in line


# --- the page ---


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_study_file_of_the_page(tmp_path):
    [text] = blocks("toml")
    (tmp_path / "study.toml").write_text(text)
    assert len(read_grid(tmp_path / "study.toml").points()) == 36


def test_the_python_of_the_page_makes_a_study(tmp_path, monkeypatch):
    [code] = blocks("python")
    monkeypatch.chdir(tmp_path)
    made, _, rest = code.partition("records = ")
    exec(made, names := {})
    assert isinstance(names["study"], Study)
    assert len(names["study"].cells) == 12
    assert {"pruner", "before", "after", "controls"} == set(re.findall(r'\["(\w+)"\]', rest))


def test_the_page_names_every_field_of_a_record():
    [cell, *_] = CELLS
    named = set(
        re.findall(r"`(\w+)`", PAGE.partition("| field | content |")[2].partition("\n## ")[0])
    )
    assert set(record_of("", cell.info, {}, {})) <= named


def test_the_commands_of_the_page_parse(tmp_path, monkeypatch):
    import shlex

    from cli_runs import commands_in

    gemkit = commands_in(tmp_path, monkeypatch)
    [first, *_] = "".join(blocks("sh")).splitlines()
    result = gemkit(*shlex.split(first)[1:], "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "30 cells, 120 stages" in result.stdout
    assert grid_from({}).points(), "a study without axes is one cell"
