"""`gemkit.run` and `gemkit.resume`: search, measure, fine-tune, measure, check."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gemkit.compaction.tracing import traced
from gemkit.core.atomic_io import named_path
from gemkit.core.errors import DataError, OptionError, PluginError, UnknownNameError
from gemkit.core.limits import MAX_PARAMETERS
from gemkit.core.memory import memory_explained
from gemkit.models.blocks import Shape
from gemkit.models.custom import model_data
from gemkit.models.part import ModelPart
from gemkit.parts.observer import Observer
from gemkit.plugins.current import in_use
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset
from gemkit.pruning.feasible import check_network
from gemkit.runs import directory as rundir
from gemkit.runs.checking import make_checks, run_context
from gemkit.runs.config import RunConfig
from gemkit.runs.directory import RunDir
from gemkit.runs.failures import explained
from gemkit.runs.former import check_same_run, finished, note_unfinished
from gemkit.runs.lost import check_config, check_tickets, lost_levels
from gemkit.runs.machine import environment
from gemkit.runs.networks import at_most
from gemkit.runs.progress import Progress
from gemkit.runs.read_config import config_from
from gemkit.runs.resolved import ResolvedRun, resolve, resolve_recorded
from gemkit.runs.result import RunResult, result_from
from gemkit.runs.runner import Runner
from gemkit.runs.setup import (
    Build,
    Setup,
    open_fabric,
    output_folder,
    set_up,
    together,
    with_threads,
)
from gemkit.runs.shown import chosen
from gemkit.runs.specs import model_argument
from gemkit.sanity.trials import check_fit
from gemkit.training.loop import Listener


def run(
    config: RunConfig | Mapping[str, Any] | str,
    out: Path | str | None = None,
    *,
    model: str | None = None,
    observers: Sequence[Listener] = (),
    progress: Progress | bool = True,
    registry: Registry | None = None,
    download: bool = False,
    new: bool = True,
) -> RunResult:
    """Search for a ticket, measure it, fine-tune it, measure it again, and check it.

    Args:
        config: the run, as a `RunConfig` or a table with its fields, or the name of a preset such
            as `"demo/gem_miner"`.
        out: the folder for its files: new, empty, or with the same run, which is then resumed. By
            default a new folder in `runs`, named after the run.
        model: the network again, as after `--model`, to confirm one that `config` names in a table
            and that runs code or loads weights; a table may come from a file.
        observers: functions called with every event, in addition to those of the configuration.
        progress: whether to show a bar on a terminal or in a notebook; or an object that receives
            everything that is reported besides events.
        registry: the available parts, if not those of the installed plugins; for example
            `load_plugins(files=["mine.py"])`.
        download: fetch the data set first, unless it is there.
        new: without `out`, always make a new folder; otherwise a finished run of the same
            configuration in `runs` is not repeated, and its result is returned.
    """
    registry = registry or load_plugins()
    if isinstance(config, str):
        config = registry.preset(config).thing
    if isinstance(config, Mapping):
        config = config_from(config)
    if not isinstance(config, RunConfig):
        raise OptionError(
            f"gemkit.run takes a RunConfig, a table or the name of a preset, not {config!r:.80}"
        )
    resolved = resolve(registry, config, model)
    named = dict.fromkeys([*resolved.settings.plugins, *registry.files])  # for `gemkit resume`
    resolved = resolved.with_settings(plugins=list(named))
    folder = None if out is None else named_path(out)
    if folder is not None:
        check_config(RunDir(folder))
        rundir.check_free(folder)
    return _execute(
        registry, resolved, folder, observers, chosen(progress), download=download, new=new
    )


def resume(
    folder: Path | str,
    *,
    model: str | None = None,
    data_dir: Path | str | None = None,
    checkpoint_minutes: float | None = None,
    plugins: Sequence[Path | str] = (),
    observers: Sequence[Listener] = (),
    progress: Progress | bool = True,
    registry: Registry | None = None,
) -> RunResult:
    """Resume the run in a folder from its last checkpoint; the folder is untrusted input.

    Args:
        folder: the folder of the run.
        model: the network again, to confirm one that runs code or loads weights.
        data_dir: where data sets are kept, if they have moved.
        checkpoint_minutes: another longest time between two checkpoints.
        plugins: the plugin files that the run was started with.
        observers: functions called with every event, in addition to those of the configuration.
        progress: whether to show a bar on a terminal or in a notebook; or an object that receives
            everything that is reported besides events.
        registry: the available parts, as for `run`; it replaces `plugins`.
    """
    if registry is not None and plugins:
        raise OptionError(
            "both plugins and a registry are given; load_plugins(files=plugins) "
            "makes a registry of the files, so leave out plugins"
        )
    registry = registry or load_plugins(files=plugins)
    run_dir = RunDir(named_path(folder))
    check_config(run_dir)
    run = _recorded(registry, run_dir, model)
    run_dir.check_plain()
    changes = {
        "data_dir": None if data_dir is None else str(data_dir),
        "checkpoint_minutes": checkpoint_minutes,
        "plugins": list(registry.files),
    }
    run = run.with_settings(**{name: value for name, value in changes.items() if value is not None})
    build = None if model else partial(_within_bounds, run.model)
    return _execute(registry, run, run_dir.path, observers, chosen(progress), build=build)


def load_preset(name: str) -> Preset:
    """Return a preset of the installed plugins: a `RunConfig` to run, or to change with `replace`.

    `gemkit presets` lists them.
    """
    return load_plugins().preset(name).thing


@memory_explained("nothing was changed")
def _execute(
    registry: Registry,
    run: ResolvedRun,
    out: Path | None,
    observers: Sequence[Listener],
    progress: Progress,
    *,
    download: bool = False,
    build: Build | None = None,
    new: bool = True,
) -> RunResult:
    """Carry out a run in a folder, from the start or from its last checkpoint.

    `build` replaces the `build` of the run's model.
    """
    observers = _functions(observers)
    listeners = [_observer(registry, name) for name in run.settings.observers]
    controls = make_checks(registry, run.settings.checks)
    fabric = open_fabric(run.runtime)
    with (
        progress.processes(fabric),
        output_folder(fabric, out) as folder,
        in_use(registry),
        with_threads(run.runtime.threads),
    ):
        progress.starting(run)
        setup = set_up(
            run.model,
            run.dataset,
            run.seed,
            run.runtime,
            fabric,
            data_dir=run.settings.folder,
            download=download,
            build=build,
            task=run.task,
        )
        run = run.with_learning_rates(setup.data)
        if run.runtime.compact:  # a network that cannot be compacted is an error now, not later
            traced(setup.model, setup.data.shape, training=True)
        check_network(run.recipe, setup.model, density=run.density, on_collapse=run.on_collapse)
        context = run_context(run, setup, registry, [progress.controls()])
        check_fit(controls, context)
        if folder is None and not new:
            folder = finished(run, setup, progress)
        run_dir = rundir.create(folder, run.name)
        if folder is None:
            note_unfinished(run_dir, run.name, progress)
        with explained("nothing else was changed"), run_dir.locked():
            with together(fabric):
                _prepare_folder(run_dir, run, setup, progress)
            runner = Runner(run, setup, run_dir, progress)
            own = [_listener(part, run_dir.path) for part in listeners]
            data = runner.result([*own, *observers])
            if controls:
                data["checks"] = runner.check(data, controls, context)
            run_dir.finish()
    return result_from(data)


def _recorded(registry: Registry, run_dir: RunDir, model: str | None) -> ResolvedRun:
    """Resolve the configuration in a run's folder; plugin files that it names are not loaded."""
    config = run_dir.config()
    try:
        return resolve_recorded(registry, config, model, run_dir.path / "config.toml")
    except UnknownNameError as error:
        files = _plugins_in(config)
        if not files or registry.files:
            raise
        words = " ".join(f"--plugin {file}" for file in files)
        raise UnknownNameError(
            f"{error}\nthe run was started with {words}; a file alone runs no code, so if you "
            "trust that one, give it again"
        ) from error


def _plugins_in(config: Mapping[str, object]) -> list[str]:
    """Return the plugin files in a run's configuration."""
    own = config.get("run")
    files = own.get("plugins") if isinstance(own, dict) else None
    return [str(file) for file in files] if isinstance(files, list) else []


def _within_bounds(model: ModelPart, shape: Shape, classes: int) -> nn.Module:
    """Build a network that only the run's folder names, within bounds."""
    too_large = (
        f"the run's folder asks for a network of more than {MAX_PARAMETERS:,} parameters; if you "
        f"trust it and have the memory, give --model {model_argument(model_data(model))}"
    )
    with at_most(MAX_PARAMETERS, too_large):
        return model.build(shape, classes)


def _functions(observers: Sequence[Listener] | None) -> list[Listener]:
    """Return the observers of the caller; None means none."""
    own = () if observers is None else observers
    if isinstance(own, str) or not isinstance(own, Sequence) or not all(map(callable, own)):
        raise OptionError(f"observers={observers!r:.80} should be a list of functions, as [print]")
    return list(own)


def _observer(registry: Registry, name: str) -> Observer:
    """Build the observer of this name."""
    part = registry.build("observers", name)
    assert isinstance(part, Observer)
    return part


def _listener(part: Observer, folder: Path) -> Listener:
    """Return what takes the events; a plugin may forget to return it."""
    listener = part.listen(folder)
    if not callable(listener):
        raise PluginError(
            f"observer '{part.name}': listen has to return a function that takes events, and "
            f"returned {type(listener).__name__}; correct the plugin"
        )
    return listener


def _prepare_folder(run_dir: RunDir, run: ResolvedRun, setup: Setup, progress: Progress) -> None:
    """Record the configuration and the data, or check that the folder holds the same run."""
    if run_dir.is_run():
        config = run_dir.config()
        try:
            check_same_run(run_dir.path, config, run, setup)
        except (OptionError, DataError):
            if not run_dir.has_nothing_saved():
                raise
            run_dir.clear()
            note = "held another run, which had saved nothing; this one takes its place"
        else:
            check_tickets(run_dir)
            known = run_dir.result()
            if known and (lost := lost_levels(run_dir, known["ladder"])):
                progress.warn(lost)
            note = "is finished" if known else "holds this run; resuming it"
        progress.note(f"{run_dir.path} {note}")
    data = setup.data.fingerprint.model_dump()
    run_dir.write_config({**run.to_data(), "data": data, "run": run.settings.to_data()})
    if changed := run_dir.add_environment(environment(setup.fabric.device)):
        progress.note(
            f"this is not where the run was started ({'; '.join(changed)}), so its result "
            "may differ in the last bits"
        )
    progress.started(run)
