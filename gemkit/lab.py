"""What a sanity check may use: everything that made a ticket, ready to be done again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit import engine
from gemkit.collapse import CollapsePolicy
from gemkit.data.fingerprint import check_same
from gemkit.data.source import Data
from gemkit.errors import CheckError
from gemkit.parts import Allocation, Initializer
from gemkit.phase import Listener, agreed
from gemkit.plan import Plan, Runtime
from gemkit.recipe import Recipe
from gemkit.registry import Registry
from gemkit.tensors import Tensors, generator, parameters_of, prunable_names, seeded
from gemkit.ticket import Ticket


@dataclass(frozen=True)
class Lab:
    """The search behind a ticket, for one seed: `search()` without changes finds it again.

    `build` makes the network, its weights drawn from the seed of the global random numbers.
    """

    recipe: Recipe
    density: float
    plan: Plan
    data: Data
    build: Callable[[], nn.Module]
    registry: Registry
    seed: int
    runtime: Runtime
    fabric: Fabric | None = None
    observers: Sequence[Listener] = ()
    on_collapse: CollapsePolicy = "error"
    prune_frozen: bool = False

    def rng(self, purpose: str) -> torch.Generator:
        """Return random numbers for one purpose, which no search or training draws."""
        return generator(self.seed, f"check {purpose}")

    def network(self, seed: int | None = None) -> nn.Module:
        """Build the network as the search began with it, or with weights of another seed."""
        with seeded(self.seed if seed is None else seed, torch.device("cpu")):
            return self.build()

    def search(
        self,
        recipe: Recipe | None = None,
        *,
        data: Data | None = None,
        density: float | None = None,
    ) -> Ticket:
        """Search with the same network, plan and seed, and something else where it is given.

        Where something is, collapse does not stop it: a bad control is a good sign. But one
        weight is kept for every layer where the ticket's own search did so.
        """
        changed = any(what is not None for what in (recipe, data, density))
        lab = self.never_stopping() if changed else self
        return engine.search(
            recipe or self.recipe,
            self.network(),
            data or self.data,
            density=self.density if density is None else density,
            plan=self.plan,
            seed=self.seed,
            runtime=self.runtime,
            on_collapse=lab.on_collapse,
            observers=self.observers,
            fabric=self.fabric,
            prune_frozen=self.prune_frozen,
        )

    def never_stopping(self) -> "Lab":
        """Return the same search with a warning where it would stop at a collapse.

        It finds the same ticket, where there is one.
        """
        return replace(self, on_collapse="warn") if self.on_collapse == "error" else self

    def first_weights(self, init: Initializer) -> Tensors:
        """Draw all prunable weights with the random numbers of the search; frozen ones stay."""
        return self._draw(init, self.network(), generator(self.seed, "weights"))

    def fresh_weights(self, init: Initializer) -> Tensors:
        """Draw all prunable weights again, in a network of another seed; frozen ones stay."""
        other = self.network(self.rng("network").initial_seed())
        return self._draw(init, other, self.rng("weights"))

    def _draw(self, init: Initializer, network: nn.Module, rng: torch.Generator) -> Tensors:
        parameters = parameters_of(network, prunable_names(network, frozen=self.prune_frozen))
        free = {name: weight for name, weight in parameters.items() if weight.requires_grad}
        own = parameters_of(self.network(), list(parameters)) if self.prune_frozen else parameters
        weights = {name: weight.detach() for name, weight in own.items()}
        return weights | init.draw({name: weight.detach() for name, weight in free.items()}, rng)

    def with_weights(self, ticket: Ticket, weights: Tensors) -> Ticket:
        """Return the ticket with other weights, except where the network freezes them.

        A tied weight changes under every name it has.
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

    def initializer(self, name: str) -> Initializer:
        """Return the initializer of this name, with its defaults."""
        part = self.registry.build("initializers", name)
        assert isinstance(part, Initializer)
        return part

    def allocation(self, name: str) -> Allocation:
        """Return the allocation of this name, with its defaults."""
        part = self.registry.build("allocations", name)
        assert isinstance(part, Allocation)
        return part


def _unchecked(plan: Plan) -> Plan:
    """Return the plan of a ticket from before networks were checked for signal.

    They do not say which weights are tied either; their search can still be repeated.
    """
    return plan.model_copy(update={"on_no_signal": "warn"})


def lab_for(
    ticket: Ticket,
    *,
    data: Data,
    build: Callable[[], nn.Module],
    registry: Registry,
    runtime: Runtime,
    fabric: Fabric | None = None,
    observers: Sequence[Listener] = (),
) -> Lab:
    """Prepare the search that found a ticket, as the ticket itself describes it."""
    info = ticket.info
    if info.stage != "found":
        raise CheckError(
            "the weights of this ticket are trained, and a check compares tickets before training; "
            "give the ticket as the search found it (ticket.safetensors in its run directory)"
        )
    if info.partway:
        raise CheckError(
            f"this ticket was taken on the way of a search that went on, and a search to density "
            f"{info.density_target:g} takes another way, so there is none like it for other seeds; "
            f"check ticket.safetensors of a run with --density {info.density_target:g}"
        )
    if info.plan is None:
        raise CheckError("this ticket does not say how its search trained; search again")
    check_same(
        info.data,
        agreed(data, fabric),
        "the ticket was found on",
        "check it on those, or search again on these",
    )
    return Lab(
        recipe=registry.recipe(info.recipe),
        density=info.density_target,
        plan=info.plan if info.tied is not None else _unchecked(info.plan),
        data=data,
        build=build,
        registry=registry,
        seed=info.seed,
        runtime=runtime,
        fabric=fabric,
        observers=observers,
        on_collapse=info.on_collapse,
        prune_frozen=info.prune_frozen,
    )
