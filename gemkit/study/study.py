"""`gemkit.Study`: many runs, whose results are cached and can be added to."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from gemkit.core.atomic_io import named_path
from gemkit.core.errors import OptionError
from gemkit.core.memory import during, memory_explained
from gemkit.data.fingerprint import Fingerprint, check_same
from gemkit.data.part import DatasetPart
from gemkit.parts.executor import StudyExecutor
from gemkit.parts.recipe import Recipe
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry
from gemkit.runs.config import RunConfig, RunSettings
from gemkit.study.cell import Cell, make_cells
from gemkit.study.driver import Board, Driver, StudyView
from gemkit.study.executors import MANY
from gemkit.study.grid import Grid, Point, grid_from
from gemkit.study.keys import THREADS
from gemkit.study.records import Records, record_of
from gemkit.study.stage_store import StageStore
from gemkit.study.status import Status
from gemkit.study.view import shown
from gemkit.training.plan import Plan, Runtime

Configs = Sequence[RunConfig | Mapping[str, Any]]


class Study:
    """Many runs: a list of configurations, or a base and axes.

    Args:
        configs: the cells, each a `RunConfig` or a table with its fields.
        out: the folder of the study. Stages that it has already are not repeated.
        base: what all cells share: a `RunConfig`, or a table with its fields.
        grid: axes, `{"pruner": ["snip", "gem_miner"], "search.lr": [0.1, 1.0]}`; all are combined.
        zip: tables of axes whose values move together.
        exclude: tables of values; cells with all of them are left out.
        variants: named changes to the base; every cell exists once for each of them.
        seeds: how many seeds, 0 first; short for an axis `seed`.
        checks: controls and measurements of every ticket.
        name: the name of the study; by default that of its folder.
        data_dir: where data sets are kept.
        registry: the available parts, if not those of the installed plugins.
    """

    def __init__(
        self,
        configs: Configs | None = None,
        out: Path | str = "studies/study",
        *,
        base: RunConfig | Mapping[str, Any] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        zip: Sequence[Mapping[str, Sequence[Any]]] = (),
        exclude: Sequence[Mapping[str, Any]] = (),
        variants: Mapping[str, Mapping[str, Any]] | None = None,
        seeds: int | None = None,
        checks: Sequence[str] = (),
        name: str = "",
        data_dir: Path | str | None = None,
        registry: Registry | None = None,
    ) -> None:
        axes = {
            "grid": _plain(grid or {}),
            "zip": [_plain(one) for one in zip],
            "exclude": [_plain(one) for one in exclude],
            "variant": {key: _plain(own) for key, own in (variants or {}).items()},
        }
        own = {"name": name, "checks": list(checks)} | ({} if seeds is None else {"seeds": seeds})
        if configs is not None and base is not None:
            raise OptionError("configs and base both say what runs; give one of them")
        tables = [_plain(base or {})] if configs is None else [_plain(one) for one in configs]
        points = [
            point
            for table in tables
            for point in grid_from({**own, **axes, "base": table}).points()
        ]
        self._set_up(points, list(checks), name, named_path(out), data_dir, registry)

    @classmethod
    def of(
        cls,
        grid: Grid,
        out: Path | str,
        *,
        data_dir: Path | str | None = None,
        registry: Registry | None = None,
        confirmed: Collection[str] | None = (),
    ) -> "Study":
        """Make a study of a grid, for example from `gemkit.study.grid.read_grid`.

        A file alone runs no code: networks that run code or load weights are `confirmed` by name;
        None confirms all.
        """
        study = cls.__new__(cls)
        points = grid.points()
        study._set_up(points, grid.checks, grid.name, Path(out), data_dir, registry, confirmed)
        return study

    def _set_up(
        self,
        points: Sequence[Point],
        checks: Sequence[str],
        name: str,
        out: Path,
        data_dir: Path | str | None,
        registry: Registry | None,
        confirmed: Collection[str] | None = None,
    ) -> None:
        self.registry = registry or load_plugins()
        self.store = StageStore(out)
        self._failures: dict[str, str] = {}
        self.name = name or out.name
        self.data_dir = None if data_dir is None else Path(data_dir)
        self.cells: list[Cell] = make_cells(
            self.registry, points, checks, data_dir=self.data_dir, confirmed=confirmed
        )

    @property
    def threads(self) -> int:
        """The most threads that a cell uses."""
        own = (cell.info.config.get("runtime", {}) for cell in self.cells)
        return max(_number(table, "threads", THREADS) for table in own)

    @property
    def devices(self) -> int:
        """The most devices that a cell uses."""
        own = (cell.info.config.get("runtime", {}) for cell in self.cells)
        return max(_number(table, "devices", 1) for table in own)

    def load_data(self, *, download: bool = False) -> None:
        """Load every data set once, so that a missing one is an error before anything runs.

        Data that finished stages of the study were not measured on are an error too.
        """
        self._load_data(self.board(), download=download)

    @during("loading the data")
    def _load_data(self, board: Board, *, download: bool) -> None:
        loaded: list[tuple[object, str | None, Fingerprint]] = []
        for cell in self.cells:
            spec, folder = cell.info.config["dataset"], _data_folder(cell)
            known = [now for one, place, now in loaded if (one, place) == (spec, folder)]
            if not known:
                part = self.registry.build("datasets", spec)  # type: ignore[arg-type] # validated
                assert isinstance(part, DatasetPart)
                path = None if folder is None else Path(folder)
                if download:
                    part.download(path)
                known = [part.load(path).fingerprint]
                loaded.append((spec, folder, known[0]))
            for stage in cell.stages:
                if stage in board.results:
                    check_same(
                        board.results[stage].data,
                        known[0],
                        f"of data set '{cell.info.dataset}' that finished stages in "
                        f"{self.store.path} were measured on",
                        "restore them, or give another --out",
                    )

    @memory_explained()
    def run(
        self,
        executor: StudyExecutor | str | Executor = "local",
        *,
        jobs: int | None = None,
        progress: StudyView | bool = True,
        download: bool = False,
    ) -> Records:
        """Measure what is missing, and return all records.

        Args:
            executor: the name of a registered executor, as after `--on`; or anything with the
                interface of `concurrent.futures.Executor`, which is shut down at the end.
            jobs: stages at once; by default as many as the executor has room for, or 64 if it does
                not say.
            progress: whether to show a table on a terminal, or lines elsewhere.
            download: fetch data sets first, unless they are there.
        """
        self.store.make()
        board = Board.of(self.name, self.cells, self.store)
        self.store.tidy(board.results)
        if board.missing():
            self._load_data(board, download=download)
        self.store.write_cells(self.name, [cell.info for cell in self.cells])
        view = progress if isinstance(progress, StudyView) else shown(progress)
        if board.missing():
            pool, count = self._started(executor, jobs)
            try:
                Driver(board, self.store, view).run(pool, count)
            finally:
                self._failures = dict(board.failures)
        return self.results()

    def _started(
        self, executor: StudyExecutor | str | Executor, jobs: int | None
    ) -> tuple[Executor, int]:
        """Start an executor, and return it with the number of stages at once."""
        if isinstance(executor, Executor):
            room: int = getattr(executor, "_max_workers", MANY)
            return executor, jobs or room
        part = self.registry.build("executors", executor) if isinstance(executor, str) else executor
        assert isinstance(part, StudyExecutor)
        count = jobs or part.jobs(self.threads, self.devices)
        return part.start(count, self.threads, self.devices), count

    def board(self) -> Board:
        """Read what the store has."""
        return Board.of(self.name, self.cells, self.store)

    def status(self) -> Status:
        """Return which cells and stages are done, running, failed or missing."""
        return Status.of(self.name, [cell.info for cell in self.cells], self.store, self._failures)

    def results(self) -> Records:
        """Return one record for each cell."""
        return records_of(self.status())


class StoredStudy:
    """A study as its folder has it: nothing is looked up, and nothing can run."""

    def __init__(self, path: Path | str) -> None:
        self.store = StageStore(Path(path))
        self.name, self.cells = self.store.cells()

    def status(self) -> Status:
        """Return which cells and stages are done, running, failed or missing."""
        return Status.of(self.name, self.cells, self.store)

    def results(self) -> Records:
        """Return one record for each cell."""
        return records_of(self.status())


def load(path: Path | str) -> StoredStudy:
    """Open the folder of a study, which is untrusted input, to read its results."""
    return StoredStudy(path)


def records_of(status: Status) -> Records:
    """Return one record for each cell."""
    return Records(
        record_of(status.name, cell, status.results, status.failures) for cell in status.cells
    )


def _data_folder(cell: Cell) -> str | None:
    """Return where the stages of a cell look for data sets."""
    [folder] = {stage.task["data_dir"] for stage in cell.stages.values()}
    return None if folder is None else str(folder)


def _number(table: Any, name: str, default: int) -> int:  # noqa: ANN401 - part of a configuration
    value = table.get(name) if isinstance(table, Mapping) else None
    return value if isinstance(value, int) else default


def _plain(data: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as a table of plain data, with the fields that are set."""
    if isinstance(data, RunConfig):
        return {
            name: _value(getattr(data, name))
            for name in data.model_fields_set & set(RunConfig.model_fields)
        }
    return {name: _value(value) for name, value in data.items()}


def _value(value: Any) -> Any:  # noqa: ANN401 - any field of a configuration
    if isinstance(value, Plan | Runtime | RunSettings):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Recipe):
        return value.to_data()
    if callable(value):
        raise OptionError(
            f"{value!r} is a function, and the runs of a study are carried out by other processes, "
            "which take plain data; name a part, for example of a plugin file"
        )
    if isinstance(value, Mapping):
        return {name: _value(one) for name, one in value.items()}
    return [_value(one) for one in value] if isinstance(value, list | tuple | range) else value
