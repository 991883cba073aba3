"""What a run minimizes and measures: `--objective` and `--metric`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemkit.cli.command import bundle, option

if TYPE_CHECKING:
    from gemkit.parts.objective import Objective
    from gemkit.plugins.registry import Registry
    from gemkit.tickets.ticket import Ticket
    from gemkit.training.task import Task

_METRICS = "docs/runs.md lists them"
metric_option = option(
    "Training",
    "--metric",
    metavar="NAME",
    show_default="the objective's: accuracy for classes",
    help=f"What is measured ({_METRICS}).",
)
task_options = bundle(
    "task",
    {
        "objective": option(
            "Training",
            "--objective",
            metavar="NAME",
            show_default="the ticket's",
            help="What training minimizes; see `gemkit parts objectives`.",
        ),
        "metric": option(
            "Training",
            "--metric",
            metavar="NAME",
            show_default="the ticket's",
            help=f"What is measured ({_METRICS}).",
        ),
    },
)


def ticket_task(
    ticket: Ticket, registry: Registry, task: Mapping[str, Any], fields: Mapping[str, Any]
) -> Task:
    """Return the task of a ticket, or the one given instead."""
    from gemkit.training.task import task_of

    name = task["objective"]
    spec = {"name": name, **fields} if name else None
    if fields and spec is None:
        spec = {**(ticket.info.objective or {"name": "cross_entropy"}), **fields}
    return task_of(ticket.info, registry, spec, task["metric"])


def with_objective(
    registry: Registry, options: Mapping[str, Any], *, typed: bool
) -> dict[str, Any]:
    """Return the options with `--objective` as that of the whole run, where it can be.

    An objective that compares with the dense network stays a part of the recipe, which only the
    search minimizes. Fields of an objective go where the objective is.
    """
    from gemkit.cli.configure import make_recipe
    from gemkit.runs.config import USUAL

    roles, own = options["roles"], options["fields"]["objective"]
    name = roles["objective"] if typed else None
    rest = {**options["fields"], "objective": {}}
    if name is not None:
        if getattr(registry.part("objectives", name.partition(":")[0]).thing, "needs_dense", False):
            return dict(options)
        spec: str | dict[str, Any] = {"name": name, **own}
    elif not own:
        return dict(options)
    else:
        made = make_recipe(registry, options["pruner"], options["recipe_file"], roles, rest)
        if made.objective is not None:
            return dict(options)
        usual = options.get("objective", USUAL)
        spec = {**({"name": usual} if isinstance(usual, str) else usual), **own}
    roles = {**roles, "objective": None} if typed else roles
    return {
        **options,
        "roles": roles,
        "fields": rest,
        "objective": spec,
        "everywhere": typed,
    }


def replaced_objective(registry: Registry, options: Mapping[str, Any]) -> Objective | None:
    """Return the recipe's own objective, if that of the run replaces it."""
    from gemkit.cli.configure import make_recipe

    if not options.get("everywhere"):
        return None
    kinds = ("pruner", "recipe_file", "roles", "fields")
    return make_recipe(registry, *(options[kind] for kind in kinds)).objective
