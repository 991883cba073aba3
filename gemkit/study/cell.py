"""Cells: one configuration with one seed, and the stages that it consists of."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gemkit.core.bounded import Density, Name, Seed, Spec
from gemkit.core.errors import GemkitError, OptionError
from gemkit.models.custom import Custom
from gemkit.parts.fit import needs_training, unsettled
from gemkit.parts.part import Part
from gemkit.plugins.registry import Registry
from gemkit.plugins.titles import pruner_title
from gemkit.runs.checking import Checks, make_checks
from gemkit.runs.config import RunConfig
from gemkit.runs.read_config import config_from
from gemkit.runs.resolved import ResolvedRun, resolve
from gemkit.runs.specs import model_argument
from gemkit.study.grid import Point
from gemkit.study.keys import THREADS, check_data, finetune_data, key_of, search_data
from gemkit.study.levels import linked, shared_levels

StageKind = Literal["search", "finetune", "check"]
_STAGE = r"^(search|finetune|check)-[0-9a-f]{16}$"


@dataclass(frozen=True)
class Stage:
    """A piece of work whose result is cached: a search, a fine-tuning, or one check of a ticket.

    `task` is what a worker is given, plain data; `about` is what the result is recorded with. A
    search with `levels` may continue from those of the stage it comes `after`, of its own `family`.
    `note` is what a user should know before it runs.
    """

    kind: StageKind
    key: str
    about: Mapping[str, Any]
    task: Mapping[str, Any]
    needs: str | None = None
    check: str | None = None
    label: str = ""
    levels: tuple[float, ...] = ()
    family: str = ""
    after: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.kind}-{self.key}"

    @property
    def title(self) -> str:
        """What it does, for people."""
        return f"{self.check or self.kind} {self.label}"


class CellInfo(BaseModel):
    """A cell as study.json records it; the file is untrusted."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    variant: Name | None = None
    axes: dict[str, JsonValue] = {}
    pruner: Name
    density: Density
    model: Name
    dataset: Name
    seed: Seed
    metric: Name
    higher_is_better: bool
    config: Spec
    search: str = Field(pattern=_STAGE)
    finetune: str = Field(pattern=_STAGE)
    checks: dict[Name, str] = {}
    study: Name = Field(
        default="",
        exclude_if=lambda name: not name,
        description="the study that it was merged from",
    )

    def stages(self) -> list[str]:
        """Return the names of its stages, the search first."""
        return [self.search, self.finetune, *self.checks.values()]

    def titles(self) -> dict[str, str]:
        """Return what each of its stages does, for people."""
        label = f"{self.variant or self.pruner} {self.density:g} s{self.seed}"
        stages = {"search": self.search, "finetune": self.finetune, **self.checks}
        return {stage: f"{kind} {label}" for kind, stage in stages.items()}


@dataclass(frozen=True)
class Cell:
    """A cell with the stages that measure it, by the name of their folder."""

    info: CellInfo
    stages: Mapping[str, Stage]


def make_cells(
    registry: Registry,
    points: Iterable[Point],
    checks: Sequence[str],
    *,
    data_dir: Path | None,
    confirmed: Collection[str] | None = None,
) -> list[Cell]:
    """Look up all cells and check that everything in them fits together.

    `confirmed` are networks that the user named, if the others come from a file: those of a file
    alone run no code and load no weights. None means that the user named all of them.
    Cells that are the same are listed once: the dense network has no other density than 1.
    """
    cells: dict[tuple[Any, ...], Cell] = {}
    made: dict[tuple[str, ...], Checks] = {}
    for point in points:
        config = _config(point, confirmed)
        names = tuple(dict.fromkeys([*config.run.checks, *checks]))
        if names not in made:
            made[names] = make_checks(registry, names)
        try:
            cell = _cell(registry, config, point, made[names], data_dir)
        except GemkitError as error:
            where = ", ".join(f"{axis} {value}" for axis, value in point.axes.items())
            raise type(error)(f"cell {where or len(cells)}: {error}") from error
        cells.setdefault((point.variant, *cell.info.stages()), cell)
    stages = linked(stage for cell in cells.values() for stage in cell.stages.values())
    return [
        Cell(cell.info, {name: stages[name] for name in cell.stages}) for cell in cells.values()
    ]


def _config(point: Point, confirmed: Collection[str] | None) -> RunConfig:
    """Return the configuration of a cell; only plain data can be sent to other processes.

    A ticket that collapses is measured like any other, unless the study says otherwise: leaving
    such seeds out would flatter a method.
    """
    config = config_from({"on_collapse": "warn", **point.data})
    if confirmed is not None and isinstance(config.model, str) and config.model not in confirmed:
        config = config.replace(model={"name": config.model})
    functions = [
        name
        for name, value in {
            "objective": config.objective,
            "search.optimizer": config.search.optimizer,
            "search.lr_schedule": config.search.lr_schedule,
            "finetune.optimizer": config.finetune.optimizer,
            "finetune.lr_schedule": config.finetune.lr_schedule,
        }.items()
        if callable(value)
    ]
    if functions:
        raise OptionError(
            f"{functions[0]} is a function, and the runs of a study are carried out by other "
            "processes, which take plain data; name a part, for example of a plugin file"
        )
    return config


def _cell(
    registry: Registry, config: RunConfig, point: Point, checks: Checks, data_dir: Path | None
) -> Cell:
    typed = model_argument(config.model)
    run = resolve(registry, config, typed if isinstance(config.model, str) else None)
    pruner = pruner_title(run.recipe.to_data(), registry) or run.recipe.pruner
    label = _label(pruner, run, point)
    folder = config.run.data_dir if data_dir is None else str(data_dir)
    task = {
        "config": _sendable(config, run),
        "model": typed,
        "data_dir": folder,
        "plugins": list(registry.files),
    }
    search = replace(_stage("search", run, registry, task, label), note=_note(run))
    if levels := shared_levels(run):
        family = key_of("levels", {**search_data(run, registry), "density": None})
        search = replace(search, levels=levels, family=family)
    finetune = _stage("finetune", run, registry, task, label, search=search.key)
    if run.density == 1:
        checks = {}  # controls of the dense network compare nothing
    own = {
        name: _stage("check", run, registry, task, label, search.key, name, check)
        for name, check in checks.items()
    }
    info = CellInfo(
        variant=point.variant,
        axes=point.axes | ({"density": run.density} if "density" in point.axes else {}),
        pruner=pruner,
        density=run.density,
        model=_title(run.model),
        dataset=_title(run.dataset),
        seed=run.seed,
        metric=run.task.metric.name,
        higher_is_better=run.task.metric.higher_is_better,
        config=_recorded(config),
        search=search.name,
        finetune=finetune.name,
        checks={name: stage.name for name, stage in own.items()},
    )
    return Cell(info, {stage.name: stage for stage in (search, finetune, *own.values())})


def _stage(
    kind: StageKind,
    run: ResolvedRun,
    registry: Registry,
    task: Mapping[str, Any],
    label: str,
    search: str = "",
    name: str | None = None,
    check: Any = None,  # noqa: ANN401 - a check or a measurement, for a check stage
) -> Stage:
    def data(full: bool) -> dict[str, Any]:
        if kind == "search":
            return search_data(run, registry, full=full)
        if kind == "finetune":
            return finetune_data(run, search, full=full)
        return check_data(run, search, check, registry, full=full)

    key, about = key_of(kind, data(False)), data(True)
    own = {**task, "kind": kind, "key": key, "search": search or None, "check": name}
    needs = f"search-{search}" if search else None
    return Stage(kind, key, about, {**own, "about": about}, needs, name, label)


def _note(run: ResolvedRun) -> str | None:
    """Return what a user should know about a search before it runs."""
    recipe, epochs = run.recipe, run.search.epochs
    if not needs_training(recipe):
        return None
    return unsettled(recipe, recipe.schedule.freezes(run.density, epochs, 1), epochs)


def _sendable(config: RunConfig, run: ResolvedRun) -> dict[str, Any]:
    """Return a configuration as plain data, with the threads that a study runs it with."""
    data = config.model_dump(mode="json", exclude_unset=True)
    runtime = {**data.get("runtime", {}), "threads": run.runtime.threads or THREADS}
    return {**data, "runtime": runtime}


def _recorded(config: RunConfig) -> dict[str, Any]:
    data = config.to_data()
    data.pop("run", None)
    return data


def _label(pruner: str, run: ResolvedRun, point: Point) -> str:
    """Name a cell: pruner, density, other axes, and the seed at the end."""
    shown = {"pruner", "density", "seed"}
    others = [
        text
        for axis, one in point.axes.items()
        if axis not in shown and (text := f"{axis.rpartition('.')[2]} {one}") not in pruner
    ]
    words = [pruner, f"{run.density:g}", *([point.variant] if point.variant else [])]
    return f"{' '.join([*words, *others])} s{run.seed}"


def _title(part: Part) -> str:
    """Return what to type for a network or a data set."""
    if isinstance(part, Custom):
        return part.function
    return f"{part.name}:{getattr(part, part.argument)}" if part.argument else part.name
