"""A ticket as data and as text."""

from typing import Any

from gemkit.core.text import number_of
from gemkit.report.tables import facts, layer_table
from gemkit.tickets.ticket import Ticket


def ticket_data(ticket: Ticket) -> dict[str, Any]:
    """Return everything but the tensors."""
    return {
        **ticket.info.model_dump(mode="json"),
        "density": ticket.density,
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "sha256": ticket.digest(),
        "layers": [layer._asdict() for layer in ticket.layers],
    }


def ticket_text(ticket: Ticket) -> str:
    """Return a ticket as text: a summary, its origin, and a table of layers."""
    info = ticket.info
    recipe = info.recipe or {}
    parts = [
        f"{role} {spec['name']}"
        for role, spec in recipe.items()
        if isinstance(spec, dict) and "name" in spec
    ]
    rows = {
        "recipe": ", ".join(parts) or info.pruner,
        "model": _spec_text(info.model),
        "dataset": _spec_text(info.dataset),
        "search": "elsewhere"
        if info.recipe is None
        else f"{number_of(info.epochs, 'epoch')}, {number_of(len(info.history), 'freeze')}, "
        f"seed {info.seed}",
        "versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "sha256": ticket.digest(),
    }
    rewind = recipe.get("rewind")
    if isinstance(rewind, dict):
        rows["rewind"] = _spec_text(rewind)
    if info.alive not in (None, ticket.kept):
        rows["alive"] = f"{info.alive:,} weights were never frozen, {ticket.kept:,} are kept"
    return f"{ticket.summary()}\n\n{facts(rows)}\n\n{layer_table(ticket)}"


def _spec_text(spec: dict[str, Any] | None) -> str:
    """Return a part as `name (field value, …)`."""
    if spec is None:
        return "not recorded"
    fields = ", ".join(f"{name} {value}" for name, value in spec.items() if name != "name")
    name = str(spec.get("name", ""))
    return f"{name} ({fields})" if name and fields else name or fields
