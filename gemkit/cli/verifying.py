"""The body of `gemkit ticket verify`."""

from gemkit.cli.screen import echo
from gemkit.cli.ticket_argument import TicketPath
from gemkit.data.fake import Fake
from gemkit.errors import GemkitError, PluginError, TicketError, UnknownNameError
from gemkit.plugins import load_plugins
from gemkit.registry import Registry
from gemkit.runs.networks import network_of
from gemkit.runs.specs import dataset_part, model_part
from gemkit.ticket import Ticket


def verify(file: TicketPath) -> str:
    """Check a ticket file, and that its recipe, data and network are what gemkit can make.

    Nothing is searched, loaded or fetched. Parts of plugins that are not installed are noted.
    """
    ticket, registry = file.load(), load_plugins()
    for check in (_check_recipe, _check_dataset, _check_network):
        try:
            check(ticket, registry)
        except (UnknownNameError, PluginError) as error:
            echo(f"note: not all of it was checked: {error}", err=True)
        except GemkitError as error:
            raise TicketError(f"{file} is no sound ticket: {error}") from error
    return f"{file} is sound: {ticket.summary()}"


def _check_recipe(ticket: Ticket, registry: Registry) -> None:
    registry.recipe(ticket.info.recipe)


def _check_dataset(ticket: Ticket, registry: Registry) -> None:
    if ticket.info.dataset is not None:
        part = dataset_part(registry, ticket.info.dataset, {})
        if isinstance(part, Fake):  # others read files that are there, and load nothing here
            part.check_size()


def _check_network(ticket: Ticket, registry: Registry) -> None:
    """Build the network, within the bounds of the ticket, and compare names and shapes."""
    info = ticket.info
    if info.model is None or info.shape is None or info.classes is None:
        return
    if "custom" in info.model:
        echo("note: whether it fits was not checked: a file alone runs no code", err=True)
        return
    model = model_part(registry, info.model, {})
    ticket.check_fit(network_of(ticket, model, info.shape, info.classes, typed=False))
