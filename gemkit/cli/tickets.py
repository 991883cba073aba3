"""`gemkit ticket`, and what all commands on a ticket share: its file, its network, its data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from gemkit.cli.command import (
    Answer,
    Decorator,
    Function,
    SectionedCommand,
    answers_json,
    echo,
    load_registry,
)
from gemkit.cli.paths import PathType
from gemkit.core.errors import GemkitError, PluginError, TicketError, UnknownNameError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from gemkit.cli.configure import Fields
    from gemkit.data.part import DatasetPart
    from gemkit.models.part import ModelPart
    from gemkit.plugins.registry import Registry
    from gemkit.runs.setup import Setup
    from gemkit.tickets.ticket import Ticket
    from gemkit.training.plan import Runtime
    from gemkit.training.task import Task

FOUND = "ticket.safetensors"
TRAINED = "finetuned.safetensors"


class TicketPath(NamedTuple):
    """The path of a ticket file, and the folder it was found in if only that was typed.

    The name that a user types may be a link; a file found in a folder may not.
    """

    path: Path
    folder: Path | None = None

    def load(self) -> Ticket:
        """Read the ticket."""
        from gemkit.tickets.ticket import Ticket

        return Ticket.load(self.path, within=self.folder)

    def __str__(self) -> str:
        return str(self.path)


def ticket_argument(*names: str) -> Decorator:
    """Define TICKET|RUN; of a run's folder the command gets the first of these files there is."""

    def decorate(command: Function) -> Function:
        @click.argument("file", metavar="TICKET|RUN", type=PathType())
        @wraps(command)
        def with_file(*, file: Path, **values: Any) -> Any:  # noqa: ANN401
            found = ticket_in(file, *names)
            if found.folder:
                echo(f"note: taking {found}", err=True)
            return command(file=found, **values)

        return with_file

    return decorate


def ticket_in(path: Path, *names: str) -> TicketPath:
    """Return the first of these files in a folder; a path that is no folder is the file itself."""
    other = "give a ticket file, or the folder of a run; `gemkit runs` lists runs"
    try:
        there = path.exists()
    except OSError as error:
        raise TicketError(f"{path} cannot be read: {error.strerror}; {other}") from error
    if not there:
        raise TicketError(f"{path} does not exist; {other}")
    if not path.is_dir():
        return TicketPath(path)
    for name in names:
        if os.path.lexists(path / name):
            return TicketPath(path / name, path)
        if lost := _lost_in(path):
            raise TicketError(f"{path} is a finished run that {lost}, with `gemkit resume {path}`")
    raise TicketError(f"{path} is a folder without {' or '.join(names)}; {_way_out(path) or other}")


def _lost_in(path: Path) -> str | None:
    """Say what a finished run has lost; another ticket would give other numbers."""
    from gemkit.runs.directory import RunDir
    from gemkit.runs.lost import lost_tickets

    run = RunDir(path)
    return lost_tickets(run) if run.is_run() else None


def _way_out(path: Path) -> str | None:
    """Say how to get the ticket of a run that has none; None if the folder is no run."""
    from gemkit.runs.directory import RunDir

    run = RunDir(path)
    if not run.is_run():
        return None
    if run.state() == "failed":
        return (
            f"its search failed (see {run.log}); `gemkit resume {path}` tries again from the last "
            "checkpoint, or start another run"
        )
    return f"its search is not done: `gemkit resume {path}` resumes it"


def rebuild(
    ticket: Ticket,
    registry: Registry,
    world: Mapping[str, Any],
    fields: Fields,
    seed: int,
    runtime: Runtime,
    fabric: Fabric,
    task: Task,
) -> Setup:
    """Build the network and load the data that a ticket names, or those given instead.

    The weights come from the ticket, so the network loads none.
    """
    from gemkit.runs.networks import network_of
    from gemkit.runs.setup import set_up

    model, dataset = parts_of(ticket, registry, world, fields, weights=False)
    return set_up(
        model,
        dataset,
        seed,
        runtime,
        fabric,
        data_dir=world["data_dir"],
        download=world["download"],
        build=partial(network_of, ticket, model, typed=world["model"] is not None),
        task=task,
    )


def rebuild_on_cpu(
    ticket: Ticket, world: Mapping[str, Any], fields: Sequence[str], plugins: Sequence[Path]
) -> Setup:
    """Build the network and load the data that a ticket names, for the CPU."""
    from gemkit.cli.configure import sort_fields
    from gemkit.runs.setup import open_fabric
    from gemkit.training.plan import Runtime
    from gemkit.training.task import task_of

    runtime = Runtime(device="cpu")
    own = sort_fields(fields, ("model", "dataset"))
    registry, seed = load_registry(plugins), ticket.info.seed
    task = task_of(ticket.info, registry)
    return rebuild(ticket, registry, world, own, seed, runtime, open_fabric(runtime), task)


def parts_of(
    ticket: Ticket,
    registry: Registry,
    world: Mapping[str, Any],
    fields: Fields,
    *,
    weights: bool,
) -> tuple[ModelPart, DatasetPart]:
    """Return the network and the data set that a ticket names, or those given instead.

    `weights` says whether the network will be built with the weights it starts from.
    """
    from gemkit.runs.specs import dataset_part, recorded_model

    recorded: Mapping[str, Any] = ticket.info.model or {}
    if world["model"] is None and "custom" not in recorded:
        recorded = _recorded(ticket, "model")
    model = recorded_model(registry, recorded, world["model"], fields["model"], weights=weights)
    spec = world["dataset"] or _recorded(ticket, "dataset")
    return model, dataset_part(registry, spec, fields["dataset"], world["train_on"])


def _recorded(ticket: Ticket, what: Literal["model", "dataset"]) -> Mapping[str, Any]:
    """Return what the ticket records of its network or data; refuse a ticket without it."""
    spec: Mapping[str, Any] | None = getattr(ticket.info, what)
    if spec is None or "name" not in spec:
        raise TicketError(f"this ticket does not say which {what} it belongs to; give --{what}")
    return spec


@click.group()
def ticket() -> None:
    """Show and verify ticket files."""


@ticket.command("show", cls=SectionedCommand)
@ticket_argument(FOUND)
@answers_json
def show(file: TicketPath) -> Answer:
    """Show what a TICKET keeps of every layer, and its origin.

    Of a RUN, use the ticket that its search found.
    """
    from gemkit.report.tickets import ticket_data, ticket_text

    loaded = file.load()
    return Answer(ticket_data(loaded), ticket_text(loaded))


@ticket.command("verify", cls=SectionedCommand)
@ticket_argument(FOUND)
def verify(file: TicketPath) -> None:
    """Check that a TICKET file is undamaged and within bounds.

    gemkit must be able to make its recipe, data set and network, and the weights must fit the
    network. Nothing is trained or fetched. Of a RUN, use the ticket that its search found.
    """
    from gemkit.plugins.loader import load_plugins

    loaded, registry = file.load(), load_plugins()
    for check in (_check_recipe, _check_dataset, _check_network):
        try:
            check(loaded, registry)
        except (UnknownNameError, PluginError) as error:
            echo(f"note: not all of it was checked: {error}", err=True)
        except GemkitError as error:
            raise TicketError(f"{file} is no sound ticket: {error}") from error
    echo(f"{file} is sound: {loaded.summary()}")


def _check_recipe(ticket: Ticket, registry: Registry) -> None:
    if ticket.info.recipe is not None:
        registry.recipe(ticket.info.recipe)


def _check_dataset(ticket: Ticket, registry: Registry) -> None:
    from gemkit.data.fake import Fake
    from gemkit.runs.specs import dataset_part

    if ticket.info.dataset is not None:
        part = dataset_part(registry, ticket.info.dataset, {})
        if isinstance(part, Fake):  # other data sets allocate nothing before they are loaded
            part.check_size()


def _check_network(ticket: Ticket, registry: Registry) -> None:
    """Build the network within the bounds of the ticket, and compare names and shapes."""
    from gemkit.runs.networks import network_of
    from gemkit.runs.specs import model_part

    info = ticket.info
    if info.model is None or info.shape is None or info.classes is None:
        return
    if "custom" in info.model:
        echo("note: the network was not checked: a file alone runs no code", err=True)
        return
    model = model_part(registry, info.model, {})
    ticket.check_fit(network_of(ticket, model, info.shape, info.classes, typed=False))
