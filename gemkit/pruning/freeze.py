"""Freezing: measure importance, share the budget among layers, select, and prune the rest."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial

import torch

from gemkit.core.errors import ImportanceError, Stopped
from gemkit.core.events import Froze, Scoring
from gemkit.core.probe import Probe
from gemkit.core.state import StateDict, checked_rng_state
from gemkit.core.tensors import Tensors, budget, counts, generator, kept, total
from gemkit.parts.recipe import Recipe
from gemkit.parts.schedule import Freeze
from gemkit.parts.scores import Scores
from gemkit.pruning.collapse import keep_one
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.measuring import measure
from gemkit.tickets.info import FreezeRecord
from gemkit.training.calibration import draw
from gemkit.training.loop import RunContext
from gemkit.training.plan import CollapsePolicy
from gemkit.training.trainer import Trainer


class Freezer:
    """Carries out the freezes of one search, and records them."""

    def __init__(
        self,
        recipe: Recipe,
        net: MaskedNet,
        trainer: Trainer,
        context: RunContext,
        on_collapse: CollapsePolicy = "error",
        freezes: int = 1,
    ) -> None:
        self.freezes = freezes
        self.recipe = recipe
        self.net = net
        self.trainer = trainer
        self.context = context
        self.on_collapse = on_collapse
        self.history: list[FreezeRecord] = []
        self._rng = generator(context.seed, "importance")

    def freeze(self, step: int, planned: Freeze) -> Tensors:
        """Freeze to a density, and return the mask that the network uses from now on."""
        net, recipe, density = self.net, self.recipe, planned.density
        allow_ties = self.trainer.plan.allow_ties
        with self._undone_if_stopped():
            importance = self._importance(recipe.scores, density)
            if recipe.grow is None:
                freeze(net, recipe, density, importance, self.on_collapse, allow_ties=allow_ties)
            else:
                growth = partial(self._importance, recipe.grow, density)
                regrow(net, recipe, planned, importance, growth, allow_ties=allow_ties)
        net.clear_state(self.trainer.optimizer)
        mask = net.mask
        record = FreezeRecord(step=step, target=density, alive=kept(net.alive), kept=kept(mask))
        self.history.append(record)
        self.context.emit(Froze(step, density, record.alive, record.kept, total(mask)))
        return mask

    def is_at(self, density: float) -> bool:
        """Whether the last freeze was to this density."""
        return bool(self.history) and self.history[-1].target == density

    def state_dict(self) -> StateDict:
        """Return the freezes so far, and the state of the random numbers of scores."""
        history = [record.model_dump() for record in self.history]
        return {"history": history, "rng": self._rng.get_state()}

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state."""
        self.history = [FreezeRecord.model_validate(record) for record in state["history"]]
        self._rng.set_state(checked_rng_state(state["rng"], self._rng.get_state()))

    def final_mask(self, density: float) -> Tensors:
        """Choose the mask of the ticket, and apply it."""
        with self._undone_if_stopped():
            mask = self._tested_mask(density)
        self.net.apply_mask_(mask)
        return mask

    @contextmanager
    def _undone_if_stopped(self) -> Iterator[None]:
        """If a signal stops scoring, save the search as it was before, so that it is repeated.

        Until importance is measured, scoring changes nothing but its own random numbers.
        """
        before = self._rng.get_state()
        try:
            yield
        except Stopped:
            self._rng.set_state(before)
            self.context.checkpointer.maybe_save()
            raise

    def _tested_mask(self, density: float) -> Tensors:
        """Choose the mask of the ticket; refuse one that position alone decides."""
        net, recipe = self.net, self.recipe
        mask = self._chosen_mask(density)
        if recipe.rounding.spends_budget and not self.trainer.plan.allow_ties:
            # Only now: constant scores, for example, are equal until the first step.
            importance = self._importance(recipe.scores, density)
            with _named(recipe.scores):
                recipe.structure.select(importance, net.alive, net.shares, density, in_use=mask)
        if self.on_collapse == "keep-one":
            importance = self._importance(recipe.scores, density)
            mask = keep_one(mask, importance, net.alive, limit=budget(total(mask), density))
        return mask

    def _chosen_mask(self, density: float) -> Tensors:
        """Return the mask that `finalize` names, or what an inverted selection keeps.

        If rounding would break the structure, return what is alive.
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
        """Measure importance on the current network, with new batches if the scores need them.

        If the recipe inverts, importance is negated for allocation and selection alike.
        """
        context, net = self.context, self.net
        classes = context.task.has_classes(context.data)
        batches = draw(
            context.data.train,
            scores.batches_wanted(),
            self.trainer.plan.batch_size,
            seed=context.seed,
            turn=len(self.history),
            classes=classes,
        )
        # Copies, so that scores that work in place do not change the network.
        probe = Probe(
            model=net.model,
            weights={name: weight.clone() for name, weight in net.effective.items()},
            alive={name: mask.clone() for name, mask in net.alive.items()},
            batches=batches,
            rng=self._rng,
            scores={name: score.clone() for name, score in net.scores.items()},
            shape=context.data.shape,
            density=density,
            turn=len(self.history),
            objective=context.task.loss_of(net.model),
            classes=classes,
            indices=context.data.indices,
            on_pass=self._passes(len(batches)),
        )
        importance = measure(scores, probe)
        if context.fabric.world_size > 1:  # the last bits may differ between GPUs
            importance = {name: value.contiguous() for name, value in importance.items()}
            for value in importance.values():
                torch.distributed.broadcast(value, src=0)
        return negated(importance) if self.recipe.invert else importance

    def _passes(self, batches: int) -> Callable[[], None]:
        """Return what is called before every pass: it reports the pass, and may stop the run."""
        number, passes = min(len(self.history) + 1, self.freezes), itertools.count(1)

        def begin() -> None:
            self.context.checkpointer.stop_if_asked()
            with torch.random.fork_rng([]):  # an observer that draws is not taken for the scores
                self.context.emit(Scoring(number, self.freezes, next(passes), batches))

        return begin


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


def regrow(
    net: MaskedNet,
    recipe: Recipe,
    freeze: Freeze,
    importance: Tensors,
    growth: Callable[[], Tensors],
    *,
    allow_ties: bool = False,
) -> None:
    """Drop the least important weights, and let others return until the density is reached.

    Of a group of layers that keeps k weights, ⌊regrow · alive⌋ are dropped, and more if the
    density falls. Then the weights with the highest `growth` return, at zero. A weight that was
    just dropped may return at once, with its value. Ties are refused for dropping only: a layer
    without gradient may grow anywhere.
    """
    everything = {name: torch.ones_like(alive) for name, alive in net.alive.items()}
    shares = recipe.allocation.keep(importance, everything, freeze.density)
    living = counts(net.alive)
    share = Fraction(repr(float(freeze.regrow)))
    stay = {
        group: min(count, here - int(share * here))
        for group, count in shares.items()
        for here in [sum(living[name] for name in group)]
    }
    in_use, structure = None if allow_ties else net.mask, recipe.structure
    with _named(recipe.scores):
        alive = structure.select(importance, net.alive, stay, freeze.density, in_use=in_use)
    left = counts(alive)
    missing = {
        group: max(0, count - sum(left[name] for name in group)) for group, count in shares.items()
    }
    if any(missing.values()):
        grown = structure.grow(growth(), alive, missing, freeze.density)
        alive = {name: mask | grown[name] for name, mask in alive.items()}
    net.freeze_(alive, shares, freeze.density)


def negated(importance: Tensors) -> Tensors:
    """Return −importance: the reverse order, also of zeros and unsigned integers."""
    return {
        name: -(value if value.is_signed() else value.to(torch.int64))
        for name, value in importance.items()
    }


@contextmanager
def _named(scores: Scores) -> Iterator[None]:
    """Name the scores in an error about their importance."""
    try:
        yield
    except ImportanceError as error:
        raise ImportanceError(f"scores '{scores.name}': {error}") from error
