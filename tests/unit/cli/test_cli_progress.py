"""Progress: a bar on a terminal, a few lines in a log."""

import io
import re

import pytest
from rich.console import Console

from gemkit.cli.progress import Bars, Lines, columns, progress
from gemkit.core.events import Collapsed, EpochEnded, Froze, PhaseStarted, StepEnded


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
