"""The body of `gemkit check`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from gemkit.cli.command import Answer, load_registry
from gemkit.cli.configure import sort_fields
from gemkit.cli.progress import only_first_prints
from gemkit.cli.reporting import Report, report_text
from gemkit.cli.tickets import FOUND, parts_of, ticket_in
from gemkit.core.errors import OptionError, Stopped
from gemkit.core.memory import during
from gemkit.pruning.finetune import finetune_plan
from gemkit.runs import signals
from gemkit.runs.checkfile import NAME, CheckFile, alone_in
from gemkit.runs.checking import make_checks, run_checks
from gemkit.runs.directory import RunDir
from gemkit.runs.failures import explained
from gemkit.runs.networks import network_of
from gemkit.runs.setup import load_data, open_fabric, together
from gemkit.runs.specs import validated
from gemkit.sanity.context import context_of
from gemkit.training.plan import Plan, Runtime
from gemkit.training.task import task_of


def start(
    source: Path,
    *,
    names: str,
    seeds: int,
    margin: float,
    finetune_epochs: int | None,
    fields: Sequence[str],
    world: Mapping[str, Any],
    machine: Mapping[str, Any],
    out: Path | None,
    force: bool,
    plugins: Sequence[Path],
) -> Answer:
    """Resolve and check all options before loading data and computing."""
    registry = load_registry(plugins)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    kinds = [name.partition(":")[0] for name in wanted]
    given = sort_fields(fields, (*kinds, "model", "dataset", "finetune"))
    checks = make_checks(registry, wanted, given)
    if not checks:
        raise OptionError(
            "--checks names none; see `gemkit parts checks` and `gemkit parts measurements`"
        )
    file = ticket_in(source, FOUND)
    ticket = file.load()
    task = task_of(ticket.info, registry)
    plan = _plan(file.path.parent, finetune_epochs, given["finetune"])
    runtime = validated(Runtime, machine, "machine")
    model, dataset = parts_of(ticket, registry, world, given, weights=True)
    fabric, report = open_fabric(runtime), Report()
    with only_first_prints(fabric) as nowhere:
        images = load_data(dataset, fabric, world["data_dir"], download=world["download"])
        typed = world["model"] is not None
        outputs = task.outputs(images)
        with during("building the network"):
            ticket.check_fit(network_of(ticket, model, images.shape, outputs, typed=typed))
        context = context_of(
            ticket,
            data=images,
            build=partial(model.build, images.shape, outputs),
            registry=registry,
            runtime=runtime,
            fabric=fabric,
            observers=[report.controls()],
            finetune_plan=plan,
        )
        new = CheckFile.new(ticket, context, model, dataset)
        folder = nowhere or out or file.path.parent
        with _saying_how_to_resume(folder / NAME), ExitStack() as held:
            with together(fabric):
                held.enter_context(alone_in(folder))
                saved = new.resumed(folder, force=force)
            data = run_checks(ticket, checks, seeds, context, saved, margin, report)
    return Answer(data, report_text(data))


@contextmanager
def _saying_how_to_resume(file: Path) -> Iterator[None]:
    """Add to a signal or a full disk how to resume, and to a signal what is in the file."""
    again = "run the same command again to resume"
    try:
        with explained(again), signals.raised():
            yield
    except Stopped as stop:
        saved = f"all finished results are in {file.name}" if file.exists() else "nothing is saved"
        words = f"stopped by {Signals(stop.signal).name}; {saved}; {again}"
        raise Stopped(stop.signal, words) from stop


def _plan(folder: Path, epochs: int | None, fields: Mapping[str, Any]) -> Plan:
    """Return the fine-tuning plan of the run, if there is one, with the given changes."""
    run_dir, own = RunDir(folder), {}
    if run_dir.is_run():
        try:
            own = dict(run_dir.config()["finetune"])
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(
                f"{folder / 'config.toml'} does not say how the run fine-tuned: {error}"
            ) from error
    other = {} if epochs is None else {"epochs": epochs}
    return finetune_plan(validated(Plan, {**own, **other, **fields}, "finetune"))
