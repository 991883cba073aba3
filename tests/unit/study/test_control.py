"""The control of a check is made once, however often its stage is interrupted."""

import os
import pickle
import signal
from dataclasses import replace

import pytest
from studies import TINY, cells_of

from gemkit.core.events import EpochEnded
from gemkit.runs.metrics import Log
from gemkit.study import work
from gemkit.study.stage_store import StageStore
from gemkit.study.work import carry_out, fair_control
from gemkit.tickets.ticket import Ticket

[CELL] = cells_of(TINY | {"pruner": "random", "density": 0.3}, checks=["shuffle"])
SEARCH, _, CHECK = CELL.stages.values()


class Makes:
    """Make another control every time, as a search on another device does."""

    def __init__(self):
        self.seeds = []

    def __call__(self, check, ticket, context):
        self.seeds.append(context.seed + len(self.seeds))
        return fair_control(check, ticket, replace(context, seed=self.seeds[-1]))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study whose check is stopped by a signal while it fine-tunes, and what makes controls."""
    monkeypatch.setattr(work, "fair_control", made := Makes())
    store, listen = StageStore(tmp_path / "study"), Log.__call__

    def stops(log, event):
        listen(log, event)
        if isinstance(event, EpochEnded) and event.phase == "finetune" and event.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert carried_out(SEARCH, store) == "done"
    monkeypatch.setattr(Log, "__call__", stops)
    assert carried_out(CHECK, store) == "stopped"
    monkeypatch.setattr(Log, "__call__", listen)
    return store, made


def carried_out(stage, store):
    """Carry out a stage, and return how it ended."""
    return carry_out({**stage.task, "store": str(store.path), "cwd": str(store.path.parent)})[
        "state"
    ]


def log_of(store):
    return store.folder(CHECK.name).log.read_text()


def search_again(store):
    """Give the search another ticket, with the same mask."""
    file, result = store.folder(SEARCH.name).ticket, store.result(SEARCH.name)
    ticket = Ticket.load(file)
    next(iter(ticket.state.values())).add_(1)
    ticket.save(file)
    store.write_result(result.model_copy(update={"ticket": Ticket.load(file).digest()}))


def kept(store):
    """Return the file of the control."""
    [file] = store.folder(CHECK.name).checkpoints.glob("control-*")
    return file


def test_fine_tuning_resumes_with_the_control_it_began_with(study, tmp_path, monkeypatch):
    store, made = study
    assert carried_out(CHECK, store) == "done", log_of(store)
    assert made.seeds == [0]
    assert "resumed in finetune" in log_of(store)
    assert not store.folder(CHECK.name).checkpoints.exists(), "the control is removed as well"
    monkeypatch.setattr(work, "fair_control", Makes())
    straight = StageStore(tmp_path / "straight")
    assert [carried_out(stage, straight) for stage in (SEARCH, CHECK)] == ["done", "done"]
    assert store.result(CHECK.name).measured() == straight.result(CHECK.name).measured()


@pytest.mark.parametrize("loss", ["missing", "damaged", "of another ticket", "another density"])
def test_without_its_control_a_check_starts_again(loss, study):
    store, made = study
    file = kept(store)
    if loss == "missing":
        file.unlink()
    elif loss == "damaged":
        file.write_bytes(file.read_bytes()[:-1])
    elif loss == "of another ticket":
        search_again(store)
    else:
        control = Ticket.load(file)
        next(iter(control.mask.values())).fill_(True)
        Ticket(control.mask, control.state, control.info).save(file)
    assert carried_out(CHECK, store) == "done", log_of(store)
    assert made.seeds == [0, 1]
    assert "its control is lost or damaged, so fine-tuning starts again" in log_of(store)
    assert [one.epoch for one in store.result(CHECK.name).curve] == [1, 2, 3, 4]


def test_a_ticket_can_be_sent_to_other_processes(study):
    control = Ticket.load(kept(study[0]))
    assert pickle.loads(pickle.dumps(control)).digest() == control.digest()
