"""Freezing: measure importance, share the budget, select, and check that the network is alive."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial

import torch

from gemkit.core.errors import ImportanceError
from gemkit.core.events import Froze
from gemkit.core.probe import Probe
from gemkit.core.selection import count_alive
from gemkit.core.state import StateDict, checked_rng_state
from gemkit.core.tensors import Tensors, budget, generator, kept, total
from gemkit.parts.recipe import Recipe
from gemkit.parts.schedule import Freeze
from gemkit.parts.scores import Scores
from gemkit.pruning.collapse import keep_one
from gemkit.pruning.guard import Guard
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.measure import measure
from gemkit.tickets.info import FreezeRecord
from gemkit.training.calibration import draw
from gemkit.training.loop import RunContext
from gemkit.training.plan import CollapsePolicy
from gemkit.training.trainer import Trainer


def freeze(
    net: MaskedNet,
    recipe: Recipe,
    density: float,
    importance: Tensors,
    on_collapse: CollapsePolicy = "error",
    *,
    allow_ties: bool = False,
) -> None:
    """Prune the least important weights for good, exactly as many as the density says.

    A rounding that spends the budget itself only gets its new shares.
    """
    with _named(recipe.scores):
        shares = recipe.allocation.keep(importance, net.alive, density)
        alive = net.alive
        if not recipe.rounding.spends_budget:
            in_use = None if allow_ties else net.mask
            alive = recipe.structure.select(importance, net.alive, shares, density, in_use=in_use)
    if on_collapse == "keep-one" and not recipe.rounding.spends_budget:
        alive = keep_one(alive, importance, net.alive, limit=kept(alive))
    net.freeze_(alive, shares, density)


@contextmanager
def _named(scores: Scores) -> Iterator[None]:
    """Name the scores whose importance is refused."""
    try:
        yield
    except ImportanceError as error:
        raise ImportanceError(f"scores '{scores.name}': {error}") from error


def regrow(
    net: MaskedNet,
    recipe: Recipe,
    freeze: Freeze,
    importance: Tensors,
    growth: Callable[[], Tensors],
    *,
    allow_ties: bool = False,
) -> None:
    """Drop the least important weights, and let as many others return as the density leaves room.

    Of a group of layers that keeps k weights, ⌊regrow · alive⌋ are dropped, and more where the
    density has fallen. Then those return whose `growth` is highest, at zero. What was just dropped
    may return at once, and keeps its value then. Dropping by position alone is refused; growing is
    not, because a layer without gradient may grow anywhere.
    """
    everything = {name: torch.ones_like(alive) for name, alive in net.alive.items()}
    shares = recipe.allocation.keep(importance, everything, freeze.density)
    living = dict(zip(net.alive, count_alive(net.alive), strict=True))
    share = Fraction(repr(float(freeze.regrow)))
    stay = {
        group: min(count, here - int(share * here))
        for group, count in shares.items()
        for here in [sum(living[name] for name in group)]
    }
    in_use, structure = None if allow_ties else net.mask, recipe.structure
    with _named(recipe.scores):
        alive = structure.select(importance, net.alive, stay, freeze.density, in_use=in_use)
    left = dict(zip(alive, count_alive(alive), strict=True))
    missing = {
        group: max(0, count - sum(left[name] for name in group)) for group, count in shares.items()
    }
    if any(missing.values()):
        grown = structure.grow(growth(), alive, missing, freeze.density)
        alive = {name: mask | grown[name] for name, mask in alive.items()}
    net.freeze_(alive, shares, freeze.density)


def negated(importance: Tensors) -> Tensors:
    """Turn the order around: −v, also where 1/v would divide by zero or keep a sign's order."""
    return {
        name: -(value if value.is_signed() else value.to(torch.int64))
        for name, value in importance.items()
    }


class Freezer:
    """Carries out the freezes of one search and keeps their history."""

    def __init__(self, recipe: Recipe, trainer: Trainer, context: RunContext, guard: Guard) -> None:
        self.recipe = recipe
        self.net = guard.net
        self.trainer = trainer
        self.context = context
        self.guard = guard
        self.history: list[FreezeRecord] = []
        self._rng = generator(context.seed, "importance")

    def freeze(self, step: int, planned: Freeze) -> None:
        """Freeze to a density, report it, and check whether the network is alive."""
        density = planned.density
        importance = self._importance(self.recipe.scores, density)
        if self.recipe.grow is not None:
            growth = partial(self._importance, self.recipe.grow, density)
            allowed = self.trainer.plan.allow_ties
            regrow(self.net, self.recipe, planned, importance, growth, allow_ties=allowed)
        else:
            freeze(
                self.net,
                self.recipe,
                density,
                importance,
                self.guard.on_collapse,
                allow_ties=self.trainer.plan.allow_ties,
            )
        self.net.clear_state(self.trainer.optimizer)
        alive, mask = self.net.alive, self.net.mask
        record = FreezeRecord(step=step, target=density, alive=kept(alive), kept=kept(mask))
        self.history.append(record)
        self.context.emit(Froze(step, density, record.alive, record.kept, total(alive)))
        self.guard.refuse_empty(step, self._needed(mask))
        # A mask that is rounded again in every step may recover; what is frozen may not.
        self.guard.check_paths(step, alive, for_good=True)
        if not self.recipe.rounding.takes_measured and not self.recipe.invert:
            self.guard.check_paths(step, mask, for_good=False)

    def is_at(self, density: float) -> bool:
        """Whether the last freeze was to this density."""
        return bool(self.history) and self.history[-1].target == density

    def state_dict(self) -> StateDict:
        """Tell which freezes are done, and where the random numbers of measuring are."""
        history = [record.model_dump() for record in self.history]
        return {"history": history, "rng": self._rng.get_state()}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on where a freezer was whose state this is."""
        self.history = [FreezeRecord.model_validate(record) for record in state["history"]]
        self._rng.set_state(checked_rng_state(state["rng"], self._rng.get_state()))

    def final_mask(self, step: int, density: float) -> Tensors:
        """Choose the mask of the ticket, apply it, and check that the network is alive."""
        mask = self._chosen_mask(density)
        if self.recipe.rounding.spends_budget and not self.trainer.plan.allow_ties:
            self._refuse_ties(mask, density)
        if self.guard.on_collapse == "keep-one":
            limit = budget(total(mask), density)
            importance = self._importance(self.recipe.scores, density)
            mask = keep_one(mask, importance, self.net.alive, limit)
        self.guard.refuse_empty(step, mask)
        self.net.apply_mask_(mask)
        self.guard.check_paths(step, mask, for_good=True)
        self.guard.check_gradients(step)
        self.guard.report_density(mask)
        return mask

    def _refuse_ties(self, mask: Tensors, density: float) -> None:
        """Refuse a mask that position alone has chosen from scores that never became different.

        Earlier, equal scores are fine: constant ones are equal until the first step.
        """
        net, recipe = self.net, self.recipe
        importance = self._importance(recipe.scores, density)
        with _named(recipe.scores):
            recipe.structure.select(importance, net.alive, net.shares, density, in_use=mask)

    def _needed(self, mask: Tensors) -> Tensors:
        """Return what must not be empty: the mask in use, or what is alive where that will do.

        An inverted search freezes just what rounding keeps, so its mask may well be empty. Soft
        gates pass gradients also where the mask of a ticket would be empty.
        """
        recipe = self.recipe
        goes_on = recipe.finalize == "alive" and self.guard.on_collapse != "error"
        return self.net.alive if recipe.invert or recipe.rounding.soft or goes_on else mask

    def _chosen_mask(self, density: float) -> Tensors:
        """Return the mask that `finalize` names, or what an inverted selection keeps.

        Where rounding would break the structure, that is what is alive.
        """
        net, recipe = self.net, self.recipe
        if recipe.invert and recipe.rounding.spends_budget:
            importance = self._importance(recipe.scores, density)
            return recipe.structure.select(importance, net.alive, net.shares, density)
        whole = recipe.rounding.spends_budget or recipe.rounding.takes_measured
        if recipe.invert or recipe.finalize == "alive" or not (whole or recipe.structure.plain):
            return net.alive
        return net.mask

    def _importance(self, scores: Scores, density: float) -> Tensors:
        """Measure on the network as it is, with fresh batches where the scores want some.

        Where the recipe inverts, everybody sees importance negated: the same order from its end.
        """
        batches = draw(
            self.context.data.train,
            scores.batches_wanted(),
            self.trainer.plan.batch_size,
            seed=self.context.seed,
            turn=len(self.history),
            classes=self.context.task.has_classes(self.context.data),
        )
        # Copies, so that a score that works in place harms nobody but itself.
        probe = Probe(
            model=self.net.model,
            weights={name: weight.clone() for name, weight in self.net.effective.items()},
            alive={name: mask.clone() for name, mask in self.net.alive.items()},
            batches=batches,
            rng=self._rng,
            scores={name: score.clone() for name, score in self.net.scores.items()},
            shape=self.context.data.shape,
            density=density,
            turn=len(self.history),
            objective=self.context.task.loss_of(self.net.model),
            classes=self.context.task.has_classes(self.context.data),
            indices=self.context.data.indices,
        )
        importance = measure(scores, probe)
        if self.context.fabric.world_size > 1:  # a GPU may compute other last bits than another
            importance = {name: value.contiguous() for name, value in importance.items()}
            for value in importance.values():
                torch.distributed.broadcast(value, src=0)
        return negated(importance) if self.recipe.invert else importance
