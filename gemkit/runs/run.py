"""`gemkit.run` and `gemkit.resume`: search, measure, fine-tune, measure, compare with controls."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gemkit import rundir
from gemkit.checks import check_fit
from gemkit.compaction.tracing import traced
from gemkit.data.fingerprint import check_same
from gemkit.environment import environment
from gemkit.errors import DataError, OptionError, StorageError, UnknownNameError
from gemkit.limits import MOST_PARAMETERS
from gemkit.models.blocks import Shape
from gemkit.models.custom import model_data
from gemkit.parts import ModelPart, Observer
from gemkit.phase import Listener
from gemkit.plugins import load_plugins
from gemkit.preset import Preset
from gemkit.registry import Registry
from gemkit.rundir import RunDir
from gemkit.runs.bench import Bench, Build, open_fabric, place_for, set_up, together
from gemkit.runs.checking import lab_of, make_checks
from gemkit.runs.config import RunConfig
from gemkit.runs.failures import explained
from gemkit.runs.job import Job, data_in, job_of, recorded_job
from gemkit.runs.networks import at_most
from gemkit.runs.progress import Progress
from gemkit.runs.result import RunResult, result_from
from gemkit.runs.session import Session
from gemkit.runs.specs import title_of


def run(
    config: RunConfig | str,
    out: Path | str | None = None,
    *,
    model: str | None = None,
    observers: Sequence[Listener] = (),
    progress: Progress | None = None,
    registry: Registry | None = None,
    download: bool = False,
) -> RunResult:
    """Search for a ticket, measure it, fine-tune it, measure it again, and make its checks.

    Args:
        config: what to run, or the name of a preset such as `"demo/gem_miner"`.
        out: the folder for its files: new, empty, or with this very run, which is then resumed. By
            default a new one, named after the run, in `runs`.
        model: the network once more, as after `--model`, if `config` names it in a table that may
            come from a file, and it runs code of yours or takes weights from elsewhere.
        observers: functions called with every event of the run, beside those that it names.
        progress: what to report to, beside events; nothing by default.
        registry: the parts to choose from, if not those of the installed plugins; for example
            `load_plugins(files=["mine.py"])`.
        download: fetch the data set first, unless it is there.
    """
    registry = registry or load_plugins()
    if isinstance(config, str):
        config = registry.preset(config).thing
    job = job_of(registry, config, model)
    folder = None if out is None else Path(out)
    if folder is not None:
        rundir.check_free(folder)
    return _carry_out(registry, job, folder, observers, progress or Progress(), download=download)


def resume(
    folder: Path | str,
    *,
    model: str | None = None,
    data_dir: Path | str | None = None,
    checkpoint_minutes: float | None = None,
    plugins: Sequence[Path] = (),
    observers: Sequence[Listener] = (),
    progress: Progress | None = None,
) -> RunResult:
    """Resume the run in a folder from its last checkpoint; the folder is untrusted input.

    Args:
        folder: the folder of the run.
        model: the network once more, if it runs code of yours or takes weights from elsewhere.
        data_dir: where data sets are kept, if they have moved.
        checkpoint_minutes: the longest time between two checkpoints, if it should be another.
        plugins: the plugin files that the run was started with.
        observers: functions called with every event of the run, beside those that it names.
        progress: what to report to, beside events; nothing by default.
    """
    registry = load_plugins(files=plugins)
    run_dir = RunDir(Path(folder))
    config = run_dir.config()
    run_dir.check_plain()
    job = _recorded(registry, config, model, plugins)
    other = {
        "data_dir": None if data_dir is None else str(data_dir),
        "checkpoint_minutes": checkpoint_minutes,
        "plugins": [str(file) for file in plugins],
    }
    job = job.with_settings(**{name: value for name, value in other.items() if value is not None})
    build = None if model else partial(_within_bounds, job.model)
    return _carry_out(registry, job, run_dir.path, observers, progress or Progress(), build=build)


def load_preset(name: str) -> Preset:
    """Return a preset of the installed plugins: a `RunConfig` to run, or to change with `replace`.

    `gemkit presets` lists them.
    """
    return load_plugins().preset(name).thing


def _carry_out(
    registry: Registry,
    job: Job,
    out: Path | None,
    observers: Sequence[Listener],
    progress: Progress,
    *,
    download: bool = False,
    build: Build | None = None,
) -> RunResult:
    """Carry a job out in a folder, from its beginning or from where it was interrupted.

    `build` makes the network instead of the job's model.
    """
    listeners = [_observer(registry, name) for name in job.settings.observers]
    controls = make_checks(registry, job.settings.checks)
    fabric = open_fabric(job.runtime)
    with progress.processes(fabric), place_for(fabric, out) as place:
        progress.starting(job)
        bench = set_up(
            job.model,
            job.dataset,
            job.seed,
            job.runtime,
            fabric,
            data_dir=job.settings.folder,
            download=download,
            build=build,
        )
        job = job.decided(bench.data)
        if job.runtime.compact:
            traced(bench.model, bench.data.shape, training=True)  # or it says, in time, why not
        lab = lab_of(job, bench, registry, [progress.controls()])
        check_fit(controls, lab)
        run_dir = rundir.create(place, job.name)
        if place is None:
            _note_unfinished(run_dir, job.name, progress)
        with explained("nothing else was changed"), run_dir.locked():
            with together(fabric):
                _enter(run_dir, job, bench, progress)
            session = Session(job, bench, run_dir, progress)
            own = [part.listen(run_dir.path) for part in listeners]
            data = session.result([*own, *observers])
            if controls:
                data["checks"] = session.checked(data, controls, lab)
            run_dir.finish()
    return result_from(data)


def _recorded(
    registry: Registry, config: dict[str, Any], model: str | None, plugins: Sequence[Path]
) -> Job:
    """Make the job of a run's folder; plugin files that it names are never loaded for it."""
    try:
        return recorded_job(registry, config, model)
    except UnknownNameError as error:
        files = _plugins_in(config)
        if not files or plugins:
            raise
        words = " ".join(f"--plugin {file}" for file in files)
        raise UnknownNameError(
            f"{error}\nthe run was started with {words}; a file alone runs no code, so if you "
            "trust that one, give it again"
        ) from error


def _plugins_in(config: Mapping[str, object]) -> list[str]:
    """Name the plugin files that the run says it was started with."""
    own = config.get("run")
    files = own.get("plugins") if isinstance(own, dict) else None
    return [str(file) for file in files] if isinstance(files, list) else []


def _within_bounds(model: ModelPart, shape: Shape, classes: int) -> nn.Module:
    """Build a network that nothing but the run's folder asks for."""
    too_large = (
        f"the run's folder asks for a network of more than {MOST_PARAMETERS:,} parameters; if you "
        f"trust it and have the memory, give --model {title_of(model_data(model))}"
    )
    with at_most(MOST_PARAMETERS, too_large):
        return model.build(shape, classes)


def _observer(registry: Registry, name: str) -> Observer:
    """Build the observer of this name."""
    part = registry.build("observers", name)
    assert isinstance(part, Observer)
    return part


def _note_unfinished(run_dir: RunDir, name: str, progress: Progress) -> None:
    """Note that a run of this name was interrupted, before another one is done instead."""
    former = RunDir(run_dir.path.with_name(name))
    with suppress(StorageError):  # an odd file in another run's folder is no concern of this one
        if former != run_dir and former.is_run() and former.state() == "interrupted":
            progress.note(
                f"{former.path} was interrupted, and this is a new run in {run_dir.path}; "
                f"`gemkit resume {former.path}` would go on with that one"
            )


def _enter(run_dir: RunDir, job: Job, bench: Bench, progress: Progress) -> None:
    """Record what is run and on which data, or check that the folder holds just that."""
    if run_dir.is_run():
        config = run_dir.config()
        try:
            _check_same_run(run_dir.path, config, job, bench)
        except (OptionError, DataError):
            if not run_dir.is_bare():
                raise
            run_dir.start_over()
            note = "held another run, which had saved nothing; this one takes its place"
        else:
            note = "is finished" if run_dir.result() else "holds this run; going on with it"
        progress.note(f"{run_dir.path} {note}")
    data = bench.data.fingerprint.model_dump()
    run_dir.write_config({**job.to_data(), "data": data, "run": job.settings.to_data()})
    if changed := run_dir.note_environment(environment(bench.fabric.device)):
        progress.note(
            f"this is not where the run was started ({'; '.join(changed)}), so its result "
            "may differ in the last bits"
        )
    progress.started(job)


def _check_same_run(folder: Path, config: Mapping[str, Any], job: Job, bench: Bench) -> None:
    """Refuse a folder whose configuration is another one, or the same on other data."""
    there = {name: value for name, value in config.items() if name not in {"data", "run"}}
    known, now = data_in(config), bench.data.fingerprint
    if other := rundir.differences(there, job.to_data()):
        # Settings that were left open, as the learning rate, may differ because the data do.
        other += [f"data: {words}" for words in (known.differences(now) if known else ())]
        raise OptionError(
            f"{folder} holds another run, and nothing was changed there:\n  - "
            + "\n  - ".join(other)
            + "\ngive another --out, or what that run was started with"
        )
    check_same(
        known,
        now,
        f"the run in {folder} began with",
        "restore them, name the folder they moved to with --data-dir, or start another run",
    )
