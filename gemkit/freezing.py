"""Freezing: measure importance, share the budget, select, and check that the network is alive."""

import itertools

import torch
from torch import nn

from gemkit.collapse import CollapsePolicy, keep_one
from gemkit.drawing import draw
from gemkit.errors import ImportanceError
from gemkit.events import Froze
from gemkit.guard import Guard
from gemkit.masking import MaskedNet
from gemkit.parts import Scores
from gemkit.phase import Phase
from gemkit.probe import Probe
from gemkit.recipe import Recipe
from gemkit.selection import keep_top, refuse_ties
from gemkit.stateful import State, random_state
from gemkit.tensors import Tensors, budget, generator, kept, seeded, total
from gemkit.ticket import FreezeRecord
from gemkit.training import Trainer


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
    try:
        shares = recipe.allocation.keep(importance, net.alive, density)
        alive = net.alive
        if not recipe.rounding.spends_budget:
            alive = keep_top(importance, net.alive, shares)
            if not allow_ties:
                refuse_ties(importance, net.alive, alive, net.mask)
    except ImportanceError as error:
        raise ImportanceError(f"scores '{recipe.scores.name}': {error}") from error
    if on_collapse == "keep-one" and not recipe.rounding.spends_budget:
        alive = keep_one(alive, importance, net.alive, limit=kept(alive))
    net.freeze_(alive, shares)


def measure(scores: Scores, probe: Probe) -> Tensors:
    """Ask for importance, and refuse it where measuring did harm or the answer does not fit."""
    before = _traces(probe.model)
    device = next(iter(probe.weights.values())).device
    with seeded(0, device), torch.enable_grad():
        drawn_from = torch.get_rng_state()
        importance = scores.importance(probe)
        drew = not torch.equal(drawn_from, torch.get_rng_state())
    if changed := [name for name, trace in _traces(probe.model).items() if before[name] != trace]:
        raise ImportanceError(
            f"scores '{scores.name}' changed the model they measure ({', '.join(changed[:3])}); "
            "work on probe.weights, which are copies, and through probe.forward"
        )
    if drew:
        raise ImportanceError(
            f"scores '{scores.name}' drew global random numbers, which no seed decides; draw from "
            "probe.rng"
        )
    return _checked(scores, probe, importance)


def _traces(model: nn.Module) -> dict[str, tuple[object, ...]]:
    """Tell, without reading a value, what a change of the model would leave behind."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    traces: dict[str, tuple[object, ...]] = {
        name: (tensor._version, tensor.requires_grad, tensor.grad is None)
        for name, tensor in tensors
        if not tensor.is_inference()  # these count no versions
    }
    modes = {f"mode of '{name}'": (module.training,) for name, module in model.named_modules()}
    return {**traces, **modes}


def _checked(scores: Scores, probe: Probe, importance: object) -> Tensors:
    """Return importance in the order of the weights; its keys and shapes must be theirs."""
    if not isinstance(importance, dict):
        raise ImportanceError(
            f"scores '{scores.name}' must return a dict with one tensor per prunable weight, not "
            f"{type(importance).__name__}"
        )
    if set(importance) != set(probe.weights):
        missing = sorted(set(probe.weights) - set(importance))[:3]
        unknown = sorted(str(name) for name in set(importance) - set(probe.weights))[:3]
        raise ImportanceError(
            f"scores '{scores.name}' must return one tensor per prunable weight; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    for name, weight in probe.weights.items():
        if not isinstance(importance[name], torch.Tensor):
            raise ImportanceError(
                f"scores '{scores.name}' returned something of type "
                f"{type(importance[name]).__name__} for '{name}'; return a tensor"
            )
        if importance[name].shape != weight.shape:
            raise ImportanceError(
                f"scores '{scores.name}' returned shape {tuple(importance[name].shape)} for "
                f"'{name}', whose weight has shape {tuple(weight.shape)}"
            )
    return {name: importance[name].detach() for name in probe.weights}


def negated(importance: Tensors) -> Tensors:
    """Turn the order around: −v, also where 1/v would divide by zero or keep a sign's order."""
    return {
        name: -(value if value.is_signed() else value.to(torch.int64))
        for name, value in importance.items()
    }


class Freezer:
    """Carries out the freezes of one search and keeps their history."""

    def __init__(self, recipe: Recipe, trainer: Trainer, phase: Phase, guard: Guard) -> None:
        self.recipe = recipe
        self.net = trainer.net
        self.trainer = trainer
        self.phase = phase
        self.guard = guard
        self.on_collapse = guard.on_collapse
        self.history: list[FreezeRecord] = []
        self._rng = generator(phase.seed, "importance")

    def freeze(self, step: int, density: float) -> None:
        """Freeze to a density, report it, and check whether the network is alive."""
        freeze(
            self.net,
            self.recipe,
            density,
            self._importance(density),
            self.on_collapse,
            allow_ties=self.trainer.plan.allow_ties,
        )
        self.net.clear_state(self.trainer.optimizer)
        alive, mask = self.net.alive, self.net.mask
        record = FreezeRecord(step=step, target=density, alive=kept(alive), kept=kept(mask))
        self.history.append(record)
        self.phase.tell(Froze(step, density, record.alive, record.kept, total(alive)))
        self.guard.refuse_empty(step, self._needed(mask))
        # A mask that is rounded again in every step may recover; what is frozen may not.
        self.guard.check_paths(step, alive, for_good=True)
        if not self.recipe.rounding.takes_measured and not self.recipe.invert:
            self.guard.check_paths(step, mask, for_good=False)

    def state(self) -> State:
        """Tell which freezes are done, and where the random numbers of measuring are."""
        history = [record.model_dump() for record in self.history]
        return {"history": history, "rng": self._rng.get_state()}

    def restore_(self, state: State) -> None:
        """Go on where a freezer was whose state this is."""
        self.history = [FreezeRecord.model_validate(record) for record in state["history"]]
        self._rng.set_state(random_state(state["rng"], self._rng.get_state()))

    def final_mask(self, step: int, density: float) -> Tensors:
        """Choose the mask of the ticket, apply it, and check that the network is alive."""
        mask = self._chosen_mask(density)
        if self.on_collapse == "keep-one":
            limit = budget(total(mask), density)
            mask = keep_one(mask, self._importance(density), self.net.alive, limit)
        self.guard.refuse_empty(step, mask)
        self.net.apply_mask_(mask)
        self.guard.check_paths(step, mask, for_good=True)
        self.guard.check_gradients(step)
        return mask

    def _needed(self, mask: Tensors) -> Tensors:
        """Return what must not be empty: the mask in use, or what is alive where that will do.

        An inverted search freezes just what rounding keeps, so its mask may well be empty.
        """
        goes_on = self.recipe.finalize == "alive" and self.on_collapse != "error"
        return self.net.alive if self.recipe.invert or goes_on else mask

    def _chosen_mask(self, density: float) -> Tensors:
        """Return the mask that `finalize` names, or what an inverted selection keeps."""
        net, recipe = self.net, self.recipe
        if recipe.invert and recipe.rounding.spends_budget:
            return keep_top(self._importance(density), net.alive, net.shares)
        return net.alive if recipe.invert or recipe.finalize == "alive" else net.mask

    def _importance(self, density: float) -> Tensors:
        """Measure on the network as it is, with fresh batches where the scores want some.

        Where the recipe inverts, everybody sees importance negated: the same order from its end.
        """
        batches = draw(
            self.phase.data.train,
            self.recipe.scores.batches_wanted(),
            self.trainer.plan.batch_size,
            seed=self.phase.seed,
            turn=len(self.history),
        )
        # Copies, so that a score that works in place harms nobody but itself.
        probe = Probe(
            model=self.net.model,
            weights={name: weight.clone() for name, weight in self.net.effective.items()},
            alive={name: mask.clone() for name, mask in self.net.alive.items()},
            batches=batches,
            rng=self._rng,
            scores=self.net.scores,
            shape=self.phase.data.shape,
            density=density,
        )
        importance = measure(self.recipe.scores, probe)
        return negated(importance) if self.recipe.invert else importance
