"""The body of `gemkit run`, and of `gemkit resume`."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gemkit import rundir
from gemkit.checks import check_fit
from gemkit.cli.answers import Answer
from gemkit.cli.bench import Bench, Build, only_first_speaks, open_fabric, set_up, together
from gemkit.cli.checking import lab_of, make_checks, report_text
from gemkit.cli.job import Job, data_in, resolve
from gemkit.cli.manner import Manner
from gemkit.cli.mishaps import explained
from gemkit.cli.screen import echo
from gemkit.cli.session import Session
from gemkit.compaction.tracing import traced
from gemkit.compose import needs_training
from gemkit.data.fingerprint import check_same
from gemkit.environment import environment
from gemkit.errors import DataError, OptionError, StorageError
from gemkit.parts import Observer
from gemkit.plugins import load_plugins
from gemkit.registry import Registry
from gemkit.report.results import result_text
from gemkit.rundir import RunDir
from gemkit.wording import number_of


def start(
    *,
    observers: Sequence[str],
    out: Path | None,
    density_given: bool,
    epochs_given: bool,
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    plugins: Sequence[Path],
    checks: Sequence[str],
    check_seeds: int,
    checkpoint_minutes: float,
    **choices: Any,  # noqa: ANN401 - the rest of what `resolve` takes
) -> Answer:
    """Resolve what was asked for, check it, and only then load data, make files and compute."""
    registry = load_plugins(files=plugins)
    job = resolve(registry, world=world, training=training, **choices)
    manner = Manner(
        data_dir=str(world["data_dir"]) if world["data_dir"] else None,
        observers=list(observers),
        checks=list(checks),
        check_seeds=check_seeds,
        checkpoint_minutes=checkpoint_minutes,
        plugins=[str(file) for file in plugins],
    )
    if out is not None:
        rundir.check_free(out)
    remark = partial(
        say_what_is_ignored,
        job,
        density=training["density"] if density_given else None,
        epochs=training["epochs"] if epochs_given else None,
        lr=training["lr"],
    )
    return conduct(registry, job, manner, out, download=world["download"], remark=remark)


def conduct(
    registry: Registry,
    job: Job,
    manner: Manner,
    out: Path | None,
    *,
    download: bool = False,
    remark: Callable[[], None] = lambda: None,
    build: Build | None = None,
) -> Answer:
    """Carry a job out in a folder, from its beginning or from where it was interrupted.

    `build` makes the network instead of the job's model.
    """
    listeners = [_observer(registry, name) for name in manner.observers]
    controls = make_checks(registry, manner.checks)
    fabric = open_fabric(job.runtime)
    with only_first_speaks(fabric) as nowhere:
        remark()
        world = {"data_dir": manner.folder, "download": download}
        bench = set_up(job.model, job.dataset, world, job.seed, job.runtime, fabric, build=build)
        job = job.decided(bench.data)
        if job.runtime.compact:
            traced(bench.model, bench.data.shape, training=True)  # or it says, in time, why not
        lab = lab_of(job, bench, registry)
        check_fit(controls, lab)
        run_dir = rundir.create(nowhere or out, job.name)
        if out is None and not nowhere:
            _say_what_is_unfinished(run_dir, job.name)
        with explained("nothing else was changed"), run_dir.locked():
            with together(fabric):
                _enter(run_dir, job, manner, bench)
            session = Session(job, manner, bench, run_dir)
            data = session.result([part.listen(run_dir.path) for part in listeners])
            text = result_text(data, next_command(data, manner))
            if controls:
                data["checks"] = session.checked(data, controls, lab)
                text = f"{text}\n\n{report_text(data['checks'])}"
            run_dir.finish()
    return Answer(data, text)


def _say_what_is_unfinished(run_dir: RunDir, name: str) -> None:
    """Note that a run of this name was interrupted, before another one is done instead."""
    former = RunDir(run_dir.path.with_name(name))
    with suppress(StorageError):  # an odd file in another run's folder is no concern of this one
        if former != run_dir and former.is_run() and former.state() == "interrupted":
            echo(
                f"note: {former.path} was interrupted, and this is a new run in {run_dir.path}; "
                f"`gemkit resume {former.path}` would go on with that one",
                err=True,
            )


def _enter(run_dir: RunDir, job: Job, manner: Manner, bench: Bench) -> None:
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
        echo(f"note: {run_dir.path} {note}", err=True)
    data = bench.data.fingerprint.model_dump()
    run_dir.write_config({**job.to_data(), "data": data, "run": manner.to_data()})
    if changed := run_dir.note_environment(environment(bench.fabric.device)):
        echo(
            f"note: this is not where the run was started ({'; '.join(changed)}), so its result "
            "may differ in the last bits",
            err=True,
        )
    echo(job.recipe.to_toml())


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


def say_what_is_ignored(
    job: Job, *, density: float | None, epochs: int | None = None, lr: float | None = None
) -> None:
    """Note which options the pruner overrules or has no use for, of those that were given."""
    pruner, rounds = job.recipe.pruner, job.recipe.schedule.round_epochs
    if density is not None and density != job.density:
        echo(
            f"note: pruner '{pruner}' insists on density {job.density:g}; "
            f"--density {density:g} is ignored",
            err=True,
        )
    if epochs is not None and rounds is not None and rounds != epochs:
        echo(
            f"note: pruner '{pruner}' trains rounds of {number_of(rounds, 'epoch')} "
            f"(schedule.every); "
            f"--epochs {epochs} does not change that",
            err=True,
        )
    if lr is not None and not needs_training(job.recipe):
        echo(
            f"note: the search of pruner '{pruner}' trains nothing, so --lr {lr:g} is ignored; "
            "--finetune-lr is that of fine-tuning",
            err=True,
        )


def _observer(registry: Registry, name: str) -> Observer:
    """Build the observer of this name."""
    part = registry.build("observers", name)
    assert isinstance(part, Observer)
    return part


def next_command(data: Mapping[str, Any], manner: Manner) -> str:
    """Suggest what to try with the ticket: does another order of the data make a difference?"""
    words = ["gemkit", "finetune", data["ticket"], "--seed", str(data["seed"] + 1)]
    words += [word for file in manner.plugins for word in ("--plugin", file)]
    words += ["--data-dir", manner.data_dir] if manner.data_dir else []
    words += ["--model", data["model"]["custom"]] if "custom" in data["model"] else []
    return shlex.join(words)
