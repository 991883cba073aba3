"""Progress: a bar on a terminal, a few lines in a log."""

import io
import re

import pytest
from rich.console import Console

from gemkit.cli.progress import Bars, Lines, columns, progress
from gemkit.core.events import (
    Collapsed,
    EpochEnded,
    Froze,
    Noted,
    PhaseStarted,
    Scoring,
    StepEnded,
)
from gemkit.report.progress import Slow


def phase(epochs, name="search", steps=4):
    """Return the events of a phase."""
    yield PhaseStarted(name, epochs, epochs * steps)
    for epoch in range(1, epochs + 1):
        for step in range(steps):
            yield StepEnded(name, (epoch - 1) * steps + step + 1)
        yield Froze(epoch * steps, 0.5, 5, 5, 10)
        yield EpochEnded(name, epoch, 0.125, 0.75, 1 / epoch, 0.1, float(epoch))


@pytest.mark.parametrize(
    ("epochs", "lines"), [(0, 0), (1, 1), (3, 3), (10, 10), (11, 10), (95, 10), (300, 10)]
)
def test_a_phase_writes_at_most_ten_lines_and_always_the_last(capsys, epochs, lines):
    listener = Lines()
    for event in phase(epochs):
        listener(event)
    shown = capsys.readouterr()
    assert shown.out == ""
    written = shown.err.splitlines()
    assert len(written) == lines
    if epochs:
        assert written[-1].startswith(f"search {epochs}/{epochs}  density ")
        assert written[-1].endswith("loss 0.125  accuracy 75.0 %  0 s left")


def test_lines_show_the_time_left(capsys):
    listener = Lines()
    for event in phase(20):
        listener(event)
    assert capsys.readouterr().err.splitlines()[0].endswith("18 s left")


@pytest.fixture
def screen():
    """Return a terminal that records its output."""
    return Console(
        file=io.StringIO(), force_terminal=True, width=100, color_system=None, markup=False
    )


def drawn(screen, *events):
    with columns(screen) as bars:
        listener = Bars(bars)
        for event in events:
            listener(event)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())


def test_a_bar_shows_phase_epoch_density_loss_and_accuracy(screen):
    picture = drawn(screen, *phase(4), *phase(2, "finetune"))
    search, finetune = picture.rstrip().splitlines()[-2:]
    assert "search" in search
    assert "4/4 density 0.250  loss 0.125  accuracy 75.0 %" in search
    assert "fine-tune" in finetune
    assert "2/2" in finetune


def test_a_bar_is_as_long_as_the_phase_has_steps():
    """A rewound search has fewer ends of epochs than its steps would make."""
    with columns(Console(file=io.StringIO())) as bars:
        listener = Bars(bars)
        listener(PhaseStarted("search", 7, 25))
        listener(StepEnded("search", 5))
        [task] = bars.tasks
        assert (task.completed, task.total) == (5, 25)


def test_a_phase_without_training_has_no_bar(screen):
    assert "search" not in drawn(screen, *phase(0))


def test_warnings_are_above_the_bar_and_in_the_log(screen, capsys):
    event = Collapsed(7, ("conv1.weight",), "collapse at step 7: [b] lost every weight")
    warning = f"warning: {event.message}"
    assert warning in drawn(screen, PhaseStarted("search", 2, 4), event)
    Lines()(event)
    assert capsys.readouterr().err.strip() == warning


@pytest.mark.parametrize(
    ("tty", "term", "expected"),
    [(True, "xterm", Bars), (True, "dumb", Lines), (False, "xterm", Lines)],
)
def test_bars_are_only_for_terminals(monkeypatch, tty, term, expected):
    class Stream(io.StringIO):
        def isatty(self):
            return tty

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", Stream())
    with progress() as listener:
        assert type(listener) is expected


# --- scoring, and many phases --------------------------------------------------------------------


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def rounds(count, batches=0, passes=1):
    """Return the events of a search that trains nothing."""
    yield PhaseStarted("search", 0, 0)
    for freeze in range(1, count + 1):
        yield from (Scoring(freeze, count, one, batches) for one in range(1, passes + 1))
        yield Froze(0, 0.5, 100 - freeze, 100 - freeze, 100)


def test_rounds_of_scoring_print_ten_lines_with_the_time_left(capsys):
    clock = Clock()
    listener = Lines(clock)
    for event in rounds(100):
        clock.time += isinstance(event, Froze)
        listener(event)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "scoring 10/100  density 0.900  90 s left"


def test_resumed_rounds_estimate_from_what_they_did(capsys):
    clock, listener = Clock(), None
    listener = Lines(clock)
    listener(PhaseStarted("search", 0, 0))
    listener(Scoring(9, 10, 1, 0))
    clock.time = 5.0
    listener(Froze(0, 0.5, 9, 9, 10))
    assert capsys.readouterr().err.endswith("  5 s left\n")


def test_long_scoring_says_now_and_then_how_far_it_is(capsys):
    clock = Clock()
    listener = Lines(clock)
    listener(PhaseStarted("search", 3, 12))
    for one in range(1, 201):
        listener(Scoring(1, 2, one, 100))
        clock.time += 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "scoring 1/2: 60 of 100 passes",
        "scoring 1/2: 120 of 200 passes",
        "scoring 1/2: 180 of 200 passes",
    ]


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        (rounds(4), ["scoring", "4/4", "density 0.960"]),
        (rounds(1, batches=3, passes=3), ["scoring", "2/3"]),
        (rounds(1, batches=1), []),
        (rounds(1), []),
    ],
)
def test_scoring_has_a_bar_if_it_has_rounds_or_batches(screen, events, shown):
    picture = drawn(screen, *events)
    assert all(words in picture for words in shown)
    assert ("scoring" in picture) == bool(shown)


def test_of_many_phases_one_bar_is_shown_and_warnings_are_left_to_others(screen):
    with columns(screen, many=True) as bars:
        listener = Bars(bars, many=True)
        for event in (*phase(2), *rounds(3), *phase(4, "finetune")):
            listener(event)
            assert len(bars.tasks) <= 1
        listener(Noted("a control is odd"))
        assert bars.tasks[0].description == "fine-tune"
    assert "odd" not in screen.file.getvalue()


def test_a_trial_of_checks_prints_a_line_now_and_then():
    clock, lines = Clock(), []
    listener = Slow(lines.append, clock)
    for event in phase(3, steps=50):
        clock.time += isinstance(event, StepEnded)
        listener(event)
    assert lines == [
        "search: step 60/150  density 1.000  loss 0.125  accuracy 75.0 %",
        "search: step 120/150  density 0.500  loss 0.125  accuracy 75.0 %",
    ]
