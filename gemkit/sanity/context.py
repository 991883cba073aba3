"""What a sanity check works with: the search behind a ticket, which it can repeat or change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.compaction import finetune
from gemkit.core.errors import CheckError
from gemkit.core.memory import during
from gemkit.core.prunable import KINDS, ON_REQUEST
from gemkit.core.tensors import Tensors, generator, parameters_of, seeded
from gemkit.data.fingerprint import check_same
from gemkit.data.source import Data
from gemkit.parts.allocation import Allocation
from gemkit.parts.initializer import Initializer
from gemkit.parts.lookup import Lookup
from gemkit.parts.recipe import Recipe
from gemkit.pruning.finetune import evaluate
from gemkit.pruning.scope import names_in_scope
from gemkit.pruning.search import search
from gemkit.tickets.info import TicketInfo
from gemkit.tickets.ticket import Ticket
from gemkit.training.loop import Listener, agreed
from gemkit.training.plan import CollapsePolicy, Plan, Runtime
from gemkit.training.task import Task, task_of


@dataclass(frozen=True)
class CheckContext:
    """The search behind a ticket, for one seed; `search()` without arguments repeats it.

    `build` builds the network and draws its weights from the global random numbers. `plan` is how
    the search trains, `finetune_plan` how tickets and controls are fine-tuned, and `task` what is
    minimized and measured.
    """

    recipe: Recipe
    density: float
    plan: Plan
    data: Data
    build: Callable[[], nn.Module]
    registry: Lookup
    seed: int
    runtime: Runtime
    fabric: Fabric | None = None
    observers: Sequence[Listener] = ()
    on_collapse: CollapsePolicy = "error"
    prune_frozen: bool = False
    finetune_plan: Plan = field(default_factory=Plan)
    task: Task = field(default_factory=Task)
    searched: bool = True
    """Whether a search found the ticket; masks from elsewhere have no search to repeat."""

    def rng(self, purpose: str) -> torch.Generator:
        """Return a generator for one purpose, independent of those of searches and training."""
        return generator(self.seed, f"check {purpose}")

    def network(self, seed: int | None = None) -> nn.Module:
        """Build the network that the search started with, or the one of another seed."""
        with (
            during("building the network"),
            seeded(self.seed if seed is None else seed, torch.device("cpu")),
        ):
            return self.build()

    def search(
        self,
        recipe: Recipe | None = None,
        *,
        data: Data | None = None,
        density: float | None = None,
    ) -> Ticket:
        """Repeat the search, with another recipe, other data or another density if given.

        A changed search warns about collapse instead of stopping, because a control may well be
        bad. With the policy `keep-one`, it keeps one weight of every layer as the original does.
        """
        self.require_search()
        changed = any(what is not None for what in (recipe, data, density))
        context = self.tolerating_collapse() if changed else self
        return search(
            recipe or self.recipe,
            self.network(),
            data or self.data,
            density=self.density if density is None else density,
            plan=self.plan,
            seed=self.seed,
            runtime=self.runtime,
            on_collapse=context.on_collapse,
            observers=self.observers,
            fabric=self.fabric,
            prune_frozen=self.prune_frozen,
            task=self.task,
        )

    def require_search(self) -> None:
        """Refuse to repeat a search that is not known."""
        if not self.searched:
            raise CheckError(
                "the ticket's mask was found elsewhere, so its search cannot be repeated; use "
                "checks that change the ticket only, such as shuffle, weight_shuffle and "
                "reinit:kaiming_normal"
            )

    def ticket_of_seed(self, ticket: Ticket) -> Ticket:
        """Search the ticket of this seed; a mask from elsewhere is the same for every seed."""
        return self.search() if self.searched else ticket.with_info(seed=self.seed)

    def finetune(
        self, ticket: Ticket, *, seed: int | None = None, plan: Plan | None = None
    ) -> Ticket:
        """Fine-tune a ticket with the seed and plan of the context, or with others.

        The seed decides the order of the data, its augmentation and dropout. The weights are
        always the ticket's own.
        """
        return finetune(
            ticket,
            self.network(),
            self.data,
            plan=self.finetune_plan if plan is None else plan,
            seed=self.seed if seed is None else seed,
            runtime=self.runtime,
            observers=self.observers,
            fabric=self.fabric,
            task=self.task,
        )

    def evaluate(
        self, ticket: Ticket, split: Literal["train", "validation", "test"] = "test"
    ) -> float:
        """Return the metric of a ticket, `task.metric`, on one split of the data."""
        return evaluate(
            ticket,
            self.network(),
            self.data,
            split=split,
            runtime=self.runtime,
            fabric=self.fabric,
            task=self.task,
        )

    def tolerating_collapse(self) -> "CheckContext":
        """Return a context whose searches warn about collapse instead of stopping.

        Searches that do not collapse find the same ticket.
        """
        return replace(self, on_collapse="warn") if self.on_collapse == "error" else self

    def first_weights(self, init: Initializer) -> Tensors:
        """Draw all prunable weights as the search did; frozen weights keep their values."""
        return self._draw(init, self.network(), generator(self.seed, "weights"))

    def fresh_weights(self, init: Initializer) -> Tensors:
        """Draw all prunable weights again, from another seed; frozen weights keep their values."""
        other = self.network(self.rng("network").initial_seed())
        return self._draw(init, other, self.rng("weights"))

    def _draw(self, init: Initializer, network: nn.Module, rng: torch.Generator) -> Tensors:
        names = names_in_scope(self.recipe, network, frozen=self.prune_frozen)
        parameters = parameters_of(network, names)
        free = {name: weight for name, weight in parameters.items() if weight.requires_grad}
        own = parameters_of(self.network(), list(parameters)) if self.prune_frozen else parameters
        weights = {name: weight.detach() for name, weight in own.items()}
        return weights | init.draw({name: weight.detach() for name, weight in free.items()}, rng)

    def with_weights(self, ticket: Ticket, weights: Tensors) -> Ticket:
        """Return the ticket with other weights; frozen weights keep their values.

        A tied weight changes under all its names.
        """
        own = self.network().state_dict(keep_vars=True)
        places = {
            own[name].data_ptr(): weight
            for name, weight in weights.items()
            if own[name].requires_grad
        }
        state = {
            name: places[own[name].data_ptr()].to(value)
            if own[name].data_ptr() in places
            else value
            for name, value in ticket.state.items()
        }
        return replace(ticket, state=state)

    def initializer(self, name: str | None = None) -> Initializer:
        """Build the initializer with this name, with default fields, or return the recipe's own."""
        if name is None and not self.searched:
            raise CheckError(
                "the ticket does not record how its weights were drawn; name an initializer: "
                "reinit:as_built draws as the network's own code does, reinit:kaiming_normal as He "
                "et al."
            )
        if name is None:
            return self.recipe.init
        part = self.registry.build("initializers", name)
        assert isinstance(part, Initializer)
        return part

    def allocation(self, name: str) -> Allocation:
        """Build the allocation with this name, with default fields."""
        part = self.registry.build("allocations", name)
        assert isinstance(part, Allocation)
        return part


def _unchecked(plan: Plan) -> Plan:
    """Return the plan of an older ticket, whose network was not checked for signal.

    Such tickets do not record tied weights either. Their search can still be repeated.
    """
    return plan.model_copy(update={"on_no_signal": "warn"})


def context_of(
    ticket: Ticket,
    *,
    data: Data,
    build: Callable[[], nn.Module],
    registry: Lookup,
    runtime: Runtime,
    fabric: Fabric | None = None,
    observers: Sequence[Listener] = (),
    finetune_plan: Plan | None = None,
) -> CheckContext:
    """Return the context of a ticket, from what the ticket records about its search."""
    info = ticket.info
    if info.stage != "found":
        raise CheckError(
            "the weights of this ticket are trained, and checks start from a ticket before "
            "fine-tuning; give ticket.safetensors of its run directory"
        )
    refuse_partway(info)
    if info.plan is None and info.recipe is not None:
        raise CheckError("this ticket does not record how its search trained; search again")
    check_same(
        info.data,
        agreed(data, fabric),
        "the ticket was found on",
        "check it on those, or search again on these",
    )
    plan = info.plan or Plan()
    return CheckContext(
        recipe=registry.recipe(_stand_in(ticket) if info.recipe is None else info.recipe),
        density=info.density_target,
        plan=plan if info.tied is not None else _unchecked(plan),
        data=data,
        build=build,
        registry=registry,
        seed=info.seed,
        runtime=runtime,
        fabric=fabric,
        observers=observers,
        on_collapse=info.on_collapse,
        prune_frozen=info.prune_frozen,
        finetune_plan=finetune_plan or Plan(),
        task=task_of(info, registry),
        searched=info.recipe is not None,
    )


def refuse_partway(info: TicketInfo) -> None:
    """Refuse a ticket that other seeds have no counterpart of."""
    if info.partway:
        raise CheckError(
            f"this ticket was saved before its search ended, and a search to density "
            f"{info.density_target:g} would not find it, so other seeds have no such ticket; "
            f"check ticket.safetensors of a run with --density {info.density_target:g} that no "
            "observer stops"
        )


def _stand_in(ticket: Ticket) -> dict[str, Any]:
    """Describe a ticket from elsewhere as a recipe: single weights, as the network draws them."""
    scope = {"include": [escape(name) for name in ticket.mask], "kinds": [*KINDS, *ON_REQUEST]}
    return {"pruner": "imported", "prunable": scope}
