"""Broken structures, objectives, soft gates, regrowth, parts within parts, and hidden state."""

from collections import Counter
from math import ceil

import torch
import torch.nn.functional as F
from breaking import breaks
from pydantic import Field

from gemkit import MeasuredScores, Scores
from gemkit.builtin.objectives import CrossEntropy
from gemkit.builtin.regularizers import L2
from gemkit.builtin.roundings import Threshold, TopK
from gemkit.builtin.structures import Blocks, Filters, Rows, Weights
from gemkit.core.selection import keep_top
from gemkit.methods.baselines import Magnitude
from gemkit.methods.continuous_sparsification import Sigmoid
from gemkit.methods.regrowth import Regrow
from gemkit.parts.schedule import Freeze

CALLS = Counter()
"""What broken parts keep outside of `now.state`."""

# --- structures ----------------------------------------------------------------------------------


@breaks("folding-only-rearranges")
class LosesEntries(Filters):
    def fold(self, weight):
        return super().fold(weight)[:, :, 1:]


@breaks("folding-only-rearranges")
class RepeatsEntries(Filters):
    def fold(self, weight):
        folded = super().fold(weight)
        return folded[:, :1].expand_as(folded)


@breaks("folding-only-rearranges")
class FlatFold(Filters):
    def fold(self, weight):
        return weight.reshape(len(weight), -1)


@breaks("folding-only-rearranges")
class FitsInWordsOnly(Blocks):
    def fits(self, shape):
        return True


@breaks("folding-only-rearranges")
class OnlyFloats(Filters):
    """Takes the way over real numbers, in which booleans and whole numbers do not come back."""

    def fold(self, weight):
        return super().fold(weight.float())


@breaks("folding-only-rearranges")
class BooleansElsewhere(Filters):
    """Arranges masks in another way than weights."""

    def fold(self, weight):
        folded = super().fold(weight)
        return folded.flip(2) if weight.dtype == torch.bool else folded


@breaks("only-whole-living-units-are-kept")
class HalfFilters(Filters):
    """Selects single weights, whatever its units are."""

    def select(self, importance, alive, shares, density, *, checked=True):
        return keep_top(importance, alive, shares)


@breaks("only-whole-living-units-are-kept")
class Reviving(Filters):
    def select(self, importance, alive, shares, density, *, checked=True):
        return {name: torch.ones_like(mask) for name, mask in alive.items()}


@breaks("only-whole-living-units-are-kept")
class NumbersForMasks(Filters):
    def select(self, importance, alive, shares, density, *, checked=True):
        masks = super().select(importance, alive, shares, density, checked=checked)
        return {name: mask.float() for name, mask in masks.items()}


@breaks("only-whole-pruned-units-return")
class ReturnsTheLiving(Filters):
    def grow(self, importance, alive, shares, density):
        return {name: mask.clone() for name, mask in alive.items()}


@breaks("only-whole-pruned-units-return")
class ReturnsEverything(Filters):
    def grow(self, importance, alive, shares, density):
        return {name: ~mask for name, mask in alive.items()}


@breaks("only-whole-pruned-units-return")
class ReturnsSingleWeights(Filters):
    def grow(self, importance, alive, shares, density):
        return keep_top(importance, {name: ~mask for name, mask in alive.items()}, shares)


@breaks("units-enter-in-rank-order")
class LowestFirst(Filters):
    def select(self, importance, alive, shares, density, *, checked=True):
        turned = {name: -value for name, value in importance.items()}
        return super().select(turned, alive, shares, density, checked=checked)


@breaks("units-enter-in-rank-order")
class OneTooFew(Rows):
    def select(self, importance, alive, shares, density, *, checked=True):
        fewer = {group: max(0, count - 1) for group, count in shares.items()}
        return super().select(importance, alive, fewer, density, checked=checked)


@breaks("units-enter-in-rank-order")
class MoreThanItSays(Blocks):
    """Says that two stay, and keeps three."""

    def select(self, importance, alive, shares, density, *, checked=True):
        return Blocks(n=self.n + 1, m=self.m).select(
            importance, alive, shares, density, checked=checked
        )


@breaks("selecting-twice-gives-the-same")
class SelectsByTurns(Weights):
    def select(self, importance, alive, shares, density, *, checked=True):
        CALLS["selected"] += 1
        turned = {name: value * (-1) ** CALLS["selected"] for name, value in importance.items()}
        return super().select(turned, alive, shares, density, checked=checked)


@breaks("selecting-twice-gives-the-same")
class BlindlyDifferent(Filters):
    def select(self, importance, alive, shares, density, *, checked=True):
        if not checked:
            return {name: mask.clone() for name, mask in alive.items()}
        return super().select(importance, alive, shares, density)


@breaks("only-the-order-of-living-weights-counts")
class SumsTheDead(Filters):
    """Sums units over all of their weights."""

    def select(self, importance, alive, shares, density, *, checked=True):
        everything = {name: torch.ones_like(mask) for name, mask in alive.items()}
        masks = super().select(importance, everything, shares, density, checked=False)
        return {name: mask & alive[name] for name, mask in masks.items()}


@breaks("only-the-order-of-living-weights-counts")
class FillsIn(Weights):
    """Puts its own number in place of nan."""

    def select(self, importance, alive, shares, density, *, checked=True):
        filled = {name: value.float().nan_to_num(9) for name, value in importance.items()}
        everything = {name: torch.ones_like(mask) for name, mask in alive.items()}
        masks = super().select(filled, everything, shares, density, checked=checked)
        return {name: mask & alive[name] for name, mask in masks.items()}


@breaks("fewer-units-stay-at-a-lower-density")
class RisingUnits(Rows):
    def units_of(self, density, units):
        return ceil((1 - density) * units)


@breaks("fewer-units-stay-at-a-lower-density")
class TooManyUnits(Rows):
    def units_of(self, density, units):
        return units + 1


@breaks("it-prunes-whole-units-in-a-search")
class HalfFiltersInASearch(HalfFilters):
    name = "half_filters"


@breaks("it-prunes-whole-units-in-a-search")
class Overspending(Rows):
    """Keeps a unit more in every row than the budget has."""

    name = "overspending"

    def units_of(self, density, units):
        return min(units, ceil(density * units) + 1)


# --- objectives ----------------------------------------------------------------------------------


@breaks("the-loss-is-one-finite-number")
class PerImage(CrossEntropy):
    def loss(self, outputs, batch, now):
        return F.cross_entropy(outputs, batch[1], reduction="none")


@breaks("the-loss-is-one-finite-number")
class Deviating(CrossEntropy):
    """Takes a deviation, which a batch of one image does not have."""

    def loss(self, outputs, batch, now):
        return outputs.std(0, correction=1).sum() if len(outputs) > 1 else outputs.sum() / 0


@breaks("the-loss-has-a-gradient-for-the-outputs")
class ZeroOne(CrossEntropy):
    def loss(self, outputs, batch, now):
        return (outputs.argmax(1) != batch[1]).float().mean()


@breaks("the-loss-has-a-gradient-for-the-outputs")
class RootAtZero(CrossEntropy):
    def loss(self, outputs, batch, now):
        return outputs.square().sum().sqrt()


@breaks("a-loss-changes-neither-outputs-nor-batch")
class CentresOutputs(CrossEntropy):
    def loss(self, outputs, batch, now):
        outputs.detach().sub_(outputs.detach().mean() + 1)
        return super().loss(outputs, batch, now)


@breaks("a-loss-changes-neither-outputs-nor-batch")
class Noisy(CrossEntropy):
    def loss(self, outputs, batch, now):
        return super().loss(outputs + torch.rand_like(outputs), batch, now)


@breaks("a-loss-changes-neither-outputs-nor-batch")
class RelabelsBatch(CrossEntropy):
    def loss(self, outputs, batch, now):
        batch[1].add_(1).remainder_(3)
        return super().loss(outputs, batch, now)


@breaks("equal-states-give-equal-losses")
class CountsLosses(CrossEntropy):
    def loss(self, outputs, batch, now):
        CALLS["loss"] += 1
        return super().loss(outputs, batch, now) * CALLS["loss"]


@breaks("its-metric-is-for-its-targets")
class Misspelt(CrossEntropy):
    metric = "acuracy"


@breaks("its-metric-is-for-its-targets")
class WrongTargets(CrossEntropy):
    metric = "r2"


@breaks("outputs-that-hit-are-better-than-outputs-that-miss")
class Maximized(CrossEntropy):
    def loss(self, outputs, batch, now):
        return -super().loss(outputs, batch, now)


@breaks("it-trains-in-a-search")
class OnlyThreeImages(CrossEntropy):
    def loss(self, outputs, batch, now):
        assert len(outputs) < 10
        return super().loss(outputs, batch, now)


# --- roundings -----------------------------------------------------------------------------------


@breaks("masks-are-zeros-and-ones")
class SoftInSecret(Sigmoid):
    soft = False


@breaks("rounding-leaves-the-scores-as-they-were")
class TakesTheState(Threshold):
    def masks(self, view, now):
        now.state["of_the_regularizer"].add_(1)
        return super().masks(view, now)


@breaks("rounding-leaves-the-scores-as-they-were")
class TakesTheGates(Threshold):
    def hard(self, view, now):
        now.gates = {}
        return super().hard(view, now)


@breaks("rounding-leaves-the-scores-as-they-were")
class TakesWhatIsAlive(Threshold):
    def masks(self, view, now):
        masks = super().masks(view, now)
        for name, mask in masks.items():
            now.alive[name].logical_and_(mask.bool())
        return masks


@breaks("the-same-generator-gives-the-same-masks")
class CountsMasks(Threshold):
    def masks(self, view, now):
        CALLS["masks"] += 1
        masks = super().masks(view, now)
        return masks if CALLS["masks"] % 2 else {n: torch.ones_like(m) for n, m in masks.items()}


@breaks("a-rounding-that-spends-the-budget-keeps-whole-units")
class OwnTopK(TopK):
    """Selects by itself, as if there were no structures."""

    def masks(self, view, now):
        counts = {(name,): int(mask.sum()) for name, mask in now.select(view).items()}
        return keep_top(view, now.alive, counts)


@breaks("the-slope-of-gates-is-their-derivative")
class SlopeOfToday(Sigmoid):
    """Takes β of this step, though the gates were made one step ago."""

    def slope(self, view, masks, now):
        beta = self._beta(now)
        return {name: beta * gate * (1 - gate) for name, gate in masks.items()}


# --- regularizers and state ----------------------------------------------------------------------


class Following(L2):
    """An honest penalty whose weight grows while the density is above the target."""

    name = "following"
    needs_density = True

    def init_state(self, weights):
        return {"factor": torch.ones((), device=next(iter(weights.values())).device)}

    def penalty(self, values, now):
        return now.state["factor"] * super().penalty(values, now)

    def add_gradient_(self, gradients, values, now):
        now.state["factor"].mul_(1 + 0.1 * torch.sign(now.density - now.target))
        factor = now.state["factor"] * 2 * self.weight
        for name, value in values.items():
            gradients[name].add_(value * factor)


class Smoothed(CrossEntropy):
    """An honest loss, weighed by a mean of those before it."""

    name = "smoothed"

    def init_state(self, weights):
        return {"mean": torch.ones((), device=next(iter(weights.values())).device)}

    def loss(self, outputs, batch, now):
        loss = super().loss(outputs, batch, now)
        now.state["mean"].mul_(0.9).add_(0.1 * loss.detach())
        return loss / (1 + now.state["mean"])


@breaks("the-first-state-is-tensors-by-name")
class StateOfNumbers(Following):
    def init_state(self, weights):
        return {"factor": 1.0}


@breaks("the-first-state-is-tensors-by-name")
class StateByNumber(Following):
    def init_state(self, weights):
        return {0: torch.ones(())}


@breaks("the-first-state-is-tensors-by-name")
class StateElsewhere(Following):
    def init_state(self, weights):
        return {"factor": torch.ones((), device="meta")}


@breaks("the-first-state-is-tensors-by-name")
class StateNobodyHandsOver(Threshold):
    def init_state(self, weights):
        return {"calls": torch.zeros(())}


@breaks("the-first-state-is-tensors-by-name")
class StateThatFails(Threshold):
    def init_state(self, weights):
        return {"calls": weights["conv1.weight"].clone()}


@breaks("the-same-weights-give-the-same-first-state")
class StateByChance(Following):
    def init_state(self, weights):
        return {"factor": torch.rand(())}


SHARED = {"factor": torch.ones(())}


@breaks("the-same-weights-give-the-same-first-state")
class StateOfTheClass(Following):
    def init_state(self, weights):
        return SHARED


@breaks("the-same-weights-give-the-same-first-state")
class StateIsTheWeights(Following):
    def init_state(self, weights):
        return {"factor": next(iter(weights.values()))}


@breaks("a-penalty-changes-no-score")
class StateChangedByAsking(Following):
    def penalty(self, values, now):
        now.state["factor"].add_(1)
        return super().penalty(values, now)


@breaks("equal-states-give-equal-penalties")
class CountsPenalties(L2):
    def penalty(self, values, now):
        CALLS["penalty"] += 1
        return super().penalty(values, now) * CALLS["penalty"]


@breaks("equal-states-give-equal-penalties")
@breaks("it-pulls-in-a-search")
@breaks("a-search-that-is-killed-resumes-to-the-same-bits")
class HidesItsState(L2):
    """Keeps its state in an attribute, which no checkpoint holds."""

    name = "hides_its_state"

    def add_gradient_(self, gradients, values, now):
        object.__setattr__(self, "steps", getattr(self, "steps", 0) + 1)
        for name, value in values.items():
            gradients[name].add_(value * self.steps)


@breaks("a-search-that-is-killed-resumes-to-the-same-bits")
class KeepsItInItsModule(L2):
    def add_gradient_(self, gradients, values, now):
        CALLS["steps"] += 1
        for name, value in values.items():
            gradients[name].add_(value * CALLS["steps"])


# --- schedules, and parts within parts -----------------------------------------------------------


@breaks("what-regrows-is-a-fraction")
class RegrowsPercents(Regrow):
    def freezes(self, target, epochs, steps_per_epoch):
        found = super().freezes(target, epochs, steps_per_epoch)
        return [freeze._replace(regrow=30.0) for freeze in found]


@breaks("densities-never-rise-and-end-at-the-target")
class RisesAfterRegrowing(Regrow):
    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(0, target, 0.5), Freeze(0, target / 2), Freeze(0, target)]


@breaks("other-parts-may-be-within-it")
class ForgetsBatches(MeasuredScores):
    """Asks other scores, and does not ask for the batches that they want."""

    name = "forgets_batches"

    of: Scores = Field(default=Magnitude(), description="other scores")

    def importance(self, probe):
        return self.of.importance(probe)
