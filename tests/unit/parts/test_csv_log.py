"""`--observer csv`: a row for every epoch, once, also after a resume."""

import csv

import pytest

from gemkit.builtin.csv_log import CsvLog
from gemkit.core.events import EpochEnded, Froze
from gemkit.parts.observer import numbers


def epoch(number, phase="search", loss=1.0, **fields):
    values = {"value": 0.5, "density": 0.25, "lr": 0.1, "seconds": 2.0} | fields
    return EpochEnded(phase=phase, epoch=number, loss=loss, **values)


def rows(folder):
    with (folder / "epochs.csv").open(newline="") as file:
        return [(row["phase"], row["epoch"], row["loss"]) for row in csv.DictReader(file)]


def test_every_epoch_is_a_row(tmp_path):
    listen = CsvLog().listen(tmp_path)
    for event in (epoch(1), Froze(1, 0.5, 5, 5, 10), epoch(2), epoch(1, "finetune")):
        listen(event)
    assert rows(tmp_path) == [
        ("search", "1", "1.0"),
        ("search", "2", "1.0"),
        ("finetune", "1", "1.0"),
    ]


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(tmp_path):
    before = CsvLog().listen(tmp_path)
    for event in (epoch(1), epoch(2), epoch(3), epoch(1, "finetune")):
        before(event)
    CsvLog().listen(tmp_path)(epoch(2, loss=7.0))
    assert rows(tmp_path) == [("search", "1", "1.0"), ("search", "2", "7.0")]


@pytest.mark.parametrize("other", [b"a,b\n1,2\n\xff\xfe", b"\rphase,epoch\n", b"a" * 200_000])
def test_a_file_of_something_else_is_replaced(other, tmp_path):
    (tmp_path / "epochs.csv").write_bytes(other)
    CsvLog().listen(tmp_path)(epoch(1))
    assert rows(tmp_path) == [("search", "1", "1.0")]


def test_numbers_of_events_have_the_names_of_phase_and_metric():
    found = numbers(epoch(3, "finetune", metric="r2", strength=None))
    assert found == {
        "finetune/epoch": 3.0,
        "finetune/loss": 1.0,
        "finetune/r2": 0.5,
        "finetune/density": 0.25,
        "finetune/lr": 0.1,
    }
    assert numbers(epoch(1, strength=0.5))["search/strength"] == 0.5
    assert numbers(epoch(1, metric="loss", value=2.0))["search/metric"] == 2.0
    assert numbers(Froze(4, 0.5, 6, 5, 10)) == {
        "freeze/step": 4.0,
        "freeze/target": 0.5,
        "freeze/alive": 0.6,
        "freeze/kept": 0.5,
    }
