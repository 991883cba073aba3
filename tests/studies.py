"""What tests of studies share: cells without a study, and tiny ones that run in a moment."""

from collections import Counter
from concurrent.futures import Executor, Future

from gemkit import load_plugins
from gemkit.study.cell import make_cells
from gemkit.study.driver import Board, Driver, StudyView
from gemkit.study.grid import grid_from
from gemkit.study.stage_store import StageResult, StageStore

REGISTRY = load_plugins(only=())
TINY = {
    "model": {"name": "conv4", "width": 4},
    "dataset": {"name": "fake", "samples": 60},
    "search": {"epochs": 4, "batch_size": 16},
    "runtime": {"device": "cpu"},
}


def cells_of(base, checks=(), registry=None, **axes):
    """Make the cells of a base and axes."""
    points = grid_from({"base": base, **axes}).points()
    return make_cells(registry or REGISTRY, points, checks, data_dir=None)


def pretended(stage, **changes):
    """Return a result for a stage that never ran."""
    found = {"before": 0.25, "kept": 5, "prunable": 100, "ticket": "pretended", "after": 0.75}
    own = {"stage": stage, "metric": "accuracy", "higher_is_better": True, **found, **changes}
    return StageResult(**{"seconds": 2.0, "cpu_seconds": 1.0, **own})


class Here(Executor):
    """Run tasks in this process when they are submitted; `script` says how a stage ends.

    It maps the name of a check or kind to a list of outcomes, one for each try: an exception, an
    outcome, or changes of the result. `ran` counts the tries.
    """

    def __init__(self, store, script=None):
        self.store = store
        self.script = {name: list(own) for name, own in (script or {}).items()}
        self.ran = Counter()

    def submit(self, fn, /, task):
        future = Future()
        name, kind = f"{task['kind']}-{task['key']}", task["check"] or task["kind"]
        self.ran[name] += 1
        outcomes = self.script.get(kind) or [{}]
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif "state" in outcome:
            future.set_result(outcome)
        else:
            self.store.folder(name).path.mkdir(parents=True, exist_ok=True)
            self.store.begin(name, task["about"])
            self.store.write_result(pretended(name, **outcome))
            future.set_result({"state": "done"})
        return future


class Seen(StudyView):
    """Remember what a driver says."""

    def __init__(self):
        self.notes, self.order, self.closed = [], [], False

    def ended(self, stage, seconds):
        self.order.append(stage.title)

    def note(self, text):
        self.notes.append(text)

    def close(self):
        self.closed = True


def driven(cells, folder, script=None, jobs=2):
    """Run cells with a script of outcomes, and return the board, the view and the executor."""
    store = StageStore(folder)
    store.make()
    board, view, executor = Board.of("tried", cells, store), Seen(), Here(store, script)
    Driver(board, store, view).run(executor, jobs)
    return board, view, executor
