"""Every clause of every contract catches a part that breaks it."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import broken_seams  # noqa: F401 - it files broken structures, objectives and states
import numpy as np
import pytest
import torch
from breaking import BROKEN, breaks, by_chance
from data_files import write_classes
from hypothesis import strategies as st
from pydantic import Field
from torch import nn

from gemkit import (
    Data,
    DatasetPart,
    MeasuredScores,
    Measurement,
    ModelPart,
    Observer,
    SanityCheck,
    Wanted,
    load_plugins,
)
from gemkit.builtin.allocations import Global, Uniform
from gemkit.builtin.initializers import KaimingNormal
from gemkit.builtin.regularizers import L2
from gemkit.builtin.roundings import Bernoulli, Threshold, TopK
from gemkit.builtin.schedules import Constant, Once
from gemkit.core.errors import DataError, FitError, ImportanceError
from gemkit.core.tensors import kept
from gemkit.data.fake import Fake
from gemkit.data.folders import ImageFolder
from gemkit.methods.baselines import Magnitude
from gemkit.methods.gem_miner import UniformScores
from gemkit.parts.executor import StudyExecutor
from gemkit.parts.schedule import Freeze
from gemkit.plugins.registry import Entry
from gemkit.presets.preset import preset_from
from gemkit.testing import (
    CLAUSES,
    NamedPreset,
    Pruner,
    clauses_of,
    contract,
    things_among,
    things_in,
    things_of,
    verdicts,
)
from gemkit.testing.clause import NotTriedError

# --- any part ------------------------------------------------------------------------------------


@breaks("it-can-be-registered")
class Nameless(Magnitude):
    name = "not a name"


@breaks("every-field-is-described")
class Undescribed(Magnitude):
    """Has a field without a description."""

    scale: float = 1.0


@breaks("it-round-trips-through-plain-data")
class Forgetful(Magnitude):
    """Leaves a field out of its data."""

    scale: float = Field(default=1.0, ge=0, le=9, exclude=True, description="forgotten")


@breaks("it-round-trips-through-plain-data")
class Picky(Magnitude):
    """Refuses what its bounds allow."""

    scale: float = Field(default=1.0, ge=0, description="must be below 1, it turns out")

    def model_post_init(self, context):
        if self.scale > 1:
            raise ValueError("too large")


class Needy(Magnitude):
    """Has a required field."""

    size: int = Field(description="must be given")
    other: int = Field(description="must be given, and says how", examples=[3])


def brought(cls):
    """Return what a plugin registers whose only part is this score."""
    registry = load_plugins(only=())
    known = {**registry.parts, "scores": {cls.name: Entry(cls, "mine", "mine")}}
    return list(things_of(replace(registry, parts=known), "mine"))


BROKEN["it-can-be-tried"] = brought(Needy)


# --- scores --------------------------------------------------------------------------------------


@breaks("it-returns-the-batches-it-wants")
class Greedy(Magnitude):
    def batches_wanted(self):
        return 1


@breaks("it-returns-the-batches-it-wants")
class Indivisible(Magnitude):
    def batches_wanted(self):
        return Wanted(batches=0, per_class=3)


@breaks("importance-has-the-names-and-shapes-of-the-weights")
class Summed(MeasuredScores):
    def importance(self, probe):
        return {name: weight.sum() for name, weight in probe.weights.items()}


@breaks("importance-has-the-names-and-shapes-of-the-weights")
class Short(MeasuredScores):
    def importance(self, probe):
        return dict(list(Magnitude().importance(probe).items())[1:])


@breaks("importance-has-the-names-and-shapes-of-the-weights")
class Listed(MeasuredScores):
    def importance(self, probe):
        return {name: weight.tolist() for name, weight in probe.weights.items()}


@breaks("importance-is-finite-where-weights-are-alive")
class Normalized(MeasuredScores):
    """Divides by a deviation that a layer of one weight does not have."""

    def importance(self, probe):
        return {name: weight.abs() / weight.std() for name, weight in probe.weights.items()}


@breaks("it-prunes-in-a-search")
class ByChance(MeasuredScores):
    name = "by_chance"

    def importance(self, probe):
        rng = by_chance()
        return {
            name: torch.rand(weight.shape, generator=rng) for name, weight in probe.weights.items()
        }


@breaks("the-same-seed-gives-the-same-importance")
@breaks("measuring-draws-no-global-random-numbers")
class Lucky(MeasuredScores):
    def importance(self, probe):
        return {name: torch.rand(weight.shape).to(weight) for name, weight in probe.weights.items()}


@breaks("measuring-draws-no-global-random-numbers")
class LuckyElsewhere(Magnitude):
    def importance(self, probe):
        random.random()
        return super().importance(probe)


@breaks("measuring-draws-no-global-random-numbers")
class LuckyInNumPy(Magnitude):
    def importance(self, probe):
        np.random.rand()
        return super().importance(probe)


def harmful(deed):
    """Register scores that change the model they measure."""

    class Harmful(Magnitude):
        def importance(self, probe):
            with torch.no_grad():
                deed(probe.model)
            return super().importance(probe)

    breaks("measuring-does-not-change-the-model")(Harmful)


harmful(lambda model: next(model.parameters()).add_(1))
harmful(lambda model: next(model.parameters()).data.add_(1))
harmful(lambda model: model.zero_grad())
harmful(lambda model: model.requires_grad_(True))
harmful(lambda model: model.eval())
harmful(lambda model: next(model.children()).register_forward_hook(lambda *_: None))
harmful(lambda model: model.register_buffer("extra", torch.ones(1)))


@breaks("measuring-does-not-change-batches-and-scores")
class Spoiling(Magnitude):
    def batches_wanted(self):
        return Wanted(1)

    def importance(self, probe):
        probe.batches[0][0].zero_()
        return super().importance(probe)


@breaks("importance-does-not-depend-on-the-models-mode")
class Moody(Magnitude):
    def importance(self, probe):
        found = super().importance(probe)
        return {name: value + probe.model.training for name, value in found.items()}


# --- learned scores ------------------------------------------------------------------------------


@breaks("the-initial-scores-fit-the-weights")
class FlatScores(UniformScores):
    def init(self, weights, rng):
        drawn = super().init(weights, rng)
        return {name: score.reshape(-1) for name, score in drawn.items()}


@breaks("the-initial-scores-fit-the-weights")
class SingleScores(UniformScores):
    def init(self, weights, rng):
        return {name: torch.rand(weight.shape, generator=rng) for name, weight in weights.items()}


@breaks("the-same-generator-draws-the-same-scores")
class GlobalScores(UniformScores):
    def init(self, weights, rng):
        return {name: torch.rand_like(weight) for name, weight in weights.items()}


@breaks("the-view-is-elementwise")
class Centred(UniformScores):
    def view(self, scores):
        return {name: score - score.reshape(-1)[:1].sum() for name, score in scores.items()}


@breaks("the-view-is-elementwise")
class SeenInPlace(UniformScores):
    def view(self, scores):
        return {name: score.mul_(0.5) for name, score in scores.items()}


@breaks("the-view-is-elementwise")
class SeenBackwards(UniformScores):
    def view(self, scores):
        return dict(reversed(scores.items()))


@breaks("the-slope-is-the-derivative-of-the-view")
class Sloped(UniformScores):
    def view(self, scores):
        return {name: score**2 for name, score in scores.items()}


@breaks("projecting-twice-is-projecting-once")
class Shrinking(UniformScores):
    def project_(self, scores):
        for score in scores.values():
            score.mul_(0.5)


@breaks("projecting-twice-is-projecting-once")
class SharedBox(UniformScores):
    """Projects each score by the size of its layer."""

    def project_(self, scores):
        for score in scores.values():
            score.clamp_(0, 1 / max(1, score.numel()))


@breaks("projecting-twice-is-projecting-once")
class Returning(UniformScores):
    def project_(self, scores):
        return {name: score.clamp(0, 1) for name, score in scores.items()}


@breaks("the-view-stays-in-the-unit-interval")
class Unbounded(UniformScores):
    def project_(self, scores):
        pass


@breaks("the-learning-rate-is-a-positive-number")
class Slow(UniformScores):
    def default_lr(self, steps):
        return 0.0


# --- roundings -----------------------------------------------------------------------------------


@breaks("masks-are-zeros-and-ones")
class Soft(Threshold):
    def masks(self, view, now):
        return view


@breaks("masks-are-zeros-and-ones")
class InPairs(Threshold):
    def masks(self, view, now):
        return super().masks(view, now).items()


@breaks("masks-are-zeros-and-ones")
class Backwards(Threshold):
    def masks(self, view, now):
        return dict(reversed(super().masks(view, now).items()))


@breaks("the-same-generator-gives-the-same-masks")
@breaks("it-rounds-in-a-search")
class UnseededBernoulli(Bernoulli):
    def masks(self, view, now):
        return super().masks(view, replace(now, rng=by_chance()))


@breaks("rounding-leaves-the-scores-as-they-were")
class RoundsInPlace(Threshold):
    def masks(self, view, now):
        return {name: score.round_() for name, score in view.items()}


@breaks("a-rounding-that-spends-the-budget-keeps-just-that")
class Generous(TopK):
    def masks(self, view, now):
        return {name: torch.ones_like(score) for name, score in view.items()}


@breaks("the-slope-is-finite")
class Steep(Threshold):
    def slope(self, view, masks, now):
        return {name: 1 / (seen * (1 - seen)) for name, seen in view.items()}


# --- allocations ---------------------------------------------------------------------------------


@breaks("shares-sum-to-the-budget")
class RoundedDown(Uniform):
    """Rounds every share down."""

    def keep(self, importance, alive, density):
        return {(name,): int(density * kept({name: mask})) for name, mask in alive.items()}


@breaks("shares-sum-to-the-budget")
class LayerLost(Global):
    def keep(self, importance, alive, density):
        [(group, count)] = super().keep(importance, alive, density).items()
        return {group[:-1]: count}


@breaks("shares-sum-to-the-budget")
class Overdrawn(Global):
    """Takes from the first layer more than it has."""

    def keep(self, importance, alive, density):
        [(group, count)] = super().keep(importance, alive, density).items()
        return {group[:1]: count, group[1:]: 0} if len(group) > 1 else {group: count}


@breaks("masks-may-be-of-any-type")
class OnlyBooleans(Global):
    def keep(self, importance, alive, density):
        count = sum(len(importance[name][mask]) for name, mask in alive.items())
        return {tuple(alive): min(count, *super().keep(importance, alive, density).values())}


@breaks("keep-is-a-pure-function")
class SpoilsImportance(Global):
    def keep(self, importance, alive, density):
        for value in importance.values():
            value.zero_()
        return super().keep(importance, alive, density)


@breaks("non-finite-importance-is-not-ranked")
class BySum(Uniform):
    """Splits the budget by the sum of importance, without checking it."""

    def keep(self, importance, alive, density):
        shares = super().keep(importance, alive, density)
        if any(int(value.sum()) < 0 for value in importance.values()):
            return {}
        return shares


@breaks("it-shares-in-a-search")
class NotForConvolutions(Global):
    name = "not_for_convolutions"

    def keep(self, importance, alive, density):
        if any(mask.shape[2:] == (3, 3) and len(mask) == 6 for mask in alive.values()):
            raise ValueError("six channels are too many")
        return super().keep(importance, alive, density)


# --- schedules -----------------------------------------------------------------------------------


@breaks("it-freezes-in-30-epochs")
@breaks("it-freezes-in-a-search")
class Never(Once):
    def freezes(self, target, epochs, steps_per_epoch):
        raise FitError("never long enough")


@breaks("steps-ascend-within-the-search")
class Late(Once):
    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(epochs * steps_per_epoch + 1, target)]


@breaks("steps-ascend-within-the-search")
class Pairs(Once):
    def freezes(self, target, epochs, steps_per_epoch):
        return [(0, target)]


@breaks("densities-never-rise-and-end-at-the-target")
class Halfway(Once):
    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(0, (1 + target) / 2)]


@breaks("densities-never-rise-and-end-at-the-target")
class Rising(Once):
    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(0, target / 2), Freeze(0, target)]


@breaks("a-schedule-that-does-not-train-freezes-before-the-first-step")
class TrainsInSecret(Constant):
    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(epochs * steps_per_epoch, target)]


@breaks("freezes-is-a-pure-function")
class Restless(Constant):
    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(0, target)] * random.SystemRandom().randrange(1, 1000)


# --- regularizers --------------------------------------------------------------------------------


@breaks("the-penalty-is-one-finite-number")
class PerLayer(L2):
    def penalty(self, values, now):
        return torch.stack([score.sum() for score in values.values()])


@breaks("the-penalty-is-one-finite-number")
class RootMean(L2):
    """Takes the mean of a layer that may be empty."""

    def penalty(self, values, now):
        return sum(score.square().mean() for score in values.values())


@breaks("the-gradient-is-the-derivative-of-the-penalty")
class Doubled(L2):
    def add_gradient_(self, gradients, values, now):
        super().add_gradient_(gradients, values, now)
        super().add_gradient_(gradients, values, now)


@breaks("the-gradient-is-the-derivative-of-the-penalty")
class Overwriting(L2):
    def add_gradient_(self, gradients, values, now):
        for name, score in values.items():
            gradients[name].copy_(2 * self.weight * score)


@breaks("a-penalty-changes-no-score")
class Decaying(L2):
    def penalty(self, values, now):
        for score in values.values():
            score.mul_(0.5)
        return super().penalty(values, now)


@breaks("it-pulls-in-a-search")
class Failing(L2):
    def add_gradient_(self, gradients, values, now):
        assert all(score.dtype == torch.float64 for score in values.values())


# --- initializers --------------------------------------------------------------------------------


@breaks("the-drawn-weights-fit")
class DoubleWeights(KaimingNormal):
    def draw(self, weights, rng):
        return {name: weight.double() for name, weight in super().draw(weights, rng).items()}


@breaks("the-same-generator-draws-the-same-weights")
@breaks("it-begins-a-search")
class SystemRandom(KaimingNormal):
    name = "system_random"

    def draw(self, weights, rng):
        return super().draw(
            weights, torch.Generator().manual_seed(random.SystemRandom().getrandbits(60))
        )


# --- models --------------------------------------------------------------------------------------


class Plain(ModelPart):
    """One linear layer."""

    name = "plain"

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


@breaks("it-gives-a-logit-for-every-class")
class OneTooMany(Plain):
    def build(self, shape, classes):
        return super().build(shape, classes + 1)


@breaks("unsupported-shapes-raise-a-gemkit-error")
class OnlyThirtyTwo(Plain):
    def build(self, shape, classes):
        return super().build((3, 32, 32), classes)


@breaks("the-same-seed-builds-the-same-model")
class Unseeded(Plain):
    def build(self, shape, classes):
        model = super().build(shape, classes)
        nn.init.constant_(model[1].weight, random.SystemRandom().random())
        return model


@breaks("every-prunable-weight-can-learn")
class Detached(Plain):
    def build(self, shape, classes):
        model = super().build(shape, classes)
        model.append(nn.Linear(2, 2))
        model.forward = lambda images: model[1](model[0](images))
        return model


# --- data sets -----------------------------------------------------------------------------------


@breaks("missing-files-raise-a-data-error")
class NeedsFile(Fake):
    def load(self, folder):
        return (folder / "images").read_bytes()


def altered(**changes):
    """Return fake data with other splits."""

    class Altered:
        def __init__(self, source):
            self.source = source

        def __len__(self):
            return len(self.source)

        def __getattr__(self, name):
            method = getattr(self.source, name)
            return changes[name](method) if name in changes else method

    class Data(Fake):
        def load(self, folder):
            data = super().load(folder)
            splits = {
                name: Altered(getattr(data, name)) for name in ("train", "validation", "test")
            }
            return replace(data, **splits)

    return Data


def batches(change):
    return altered(batches=lambda method: lambda *words, **more: change(method(*words, **more)))


breaks("every-split-holds-images-and-labels")(
    batches(lambda found: ((images.double(), labels) for images, labels in found))
)
breaks("every-split-holds-images-and-labels")(
    batches(lambda found: ((images[:, :1], labels) for images, labels in found))
)
breaks("every-sample-comes-once-an-epoch")(batches(lambda found: list(found)[1:]))
breaks("every-sample-comes-once-an-epoch")(altered(steps=lambda method: lambda size: 1))
breaks("the-same-seed-gives-the-same-order")(
    batches(lambda found: random.SystemRandom().sample(found := list(found), len(found)))
)


# --- executors -----------------------------------------------------------------------------------


class Threads(StudyExecutor):
    """Runs functions in threads."""

    name = "threads"

    def jobs(self, threads, devices):
        return 1

    def start(self, jobs, threads, devices):
        return ThreadPoolExecutor(jobs)


@breaks("it-runs-functions-and-keeps-errors-apart")
class Idle(Threads):
    def start(self, jobs, threads, devices):
        class Pool(ThreadPoolExecutor):
            def submit(self, function, *arguments):
                return super().submit(lambda: None)

        return Pool(jobs)


@breaks("it-has-room-for-at-least-one-stage")
class Full(Threads):
    def jobs(self, threads, devices):
        return 4 // threads


# --- observers -----------------------------------------------------------------------------------


RUNS = []


class Quiet(Observer):
    """Receives events and does nothing."""

    name = "quiet"

    def listen(self, run_dir):
        return lambda event: None


@breaks("it-takes-every-event")
class OnlyFreezes(Quiet):
    def listen(self, run_dir):
        return lambda event: event.target


@breaks("it-observes-runs-without-a-directory")
class NeedsDirectory(Quiet):
    def listen(self, run_dir):
        (run_dir / "log").touch()
        return lambda event: None


@breaks("it-observes-two-runs-at-once")
class OneAtATime(Quiet):
    def listen(self, run_dir):
        RUNS.append(run_dir)

        def heard(event):
            assert RUNS[-1] == run_dir, "another run began"

        return heard


# --- sanity checks -------------------------------------------------------------------------------


class Flip(SanityCheck):
    """Flips every layer's mask: a control that keeps every count."""

    name = "flip"

    def control(self, ticket, context):
        return replace(ticket, mask={name: mask.flip(0, 1) for name, mask in ticket.mask.items()})


@breaks("the-control-keeps-as-many-weights")
class Complement(Flip):
    def control(self, ticket, context):
        mask = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
        return replace(ticket, mask=mask)


@breaks("the-control-is-another-ticket")
class NoShuffle(Flip):
    """A shuffle that changes nothing."""

    def control(self, ticket, context):
        for mask in ticket.mask.values():
            mask = mask.flip(0)
        return replace(ticket)


@breaks("it-says-what-to-expect")
class Undecided(Flip):
    expects = "perhaps"


@breaks("it-says-what-to-expect")
class NotTheSame(Flip):
    """Claims that another mask computes the same."""

    expects = "same"


@breaks("the-same-seed-makes-the-same-control")
class ShuffledByChance(Flip):
    def control(self, ticket, context):
        mask = {
            name: mask.reshape(-1)[torch.randperm(mask.numel())].view_as(mask)
            for name, mask in ticket.mask.items()
        }
        return replace(ticket, mask=mask)


@breaks("the-same-seed-makes-the-same-control")
class WeightsByChance(Flip):
    """The same mask every time, over weights that do not depend on the seed."""

    def control(self, ticket, context):
        rng = torch.Generator()
        rng.seed()
        weights = {
            name: torch.randn(ticket.state[name].shape, generator=rng) for name in ticket.mask
        }
        return context.with_weights(super().control(ticket, context), weights)


# --- measurements --------------------------------------------------------------------------------


class Kept(Measurement):
    """The number of kept weights."""

    name = "kept"

    def measure(self, ticket, context):
        return {"kept": ticket.kept}


@breaks("the-numbers-are-finite-and-have-plain-names")
class Infinite(Kept):
    def measure(self, ticket, context):
        return {"kept": float("inf")}


@breaks("the-numbers-are-finite-and-have-plain-names")
class BadlyNamed(Kept):
    def measure(self, ticket, context):
        return {"Kept weights": ticket.kept}


@breaks("the-numbers-are-finite-and-have-plain-names")
class NoNumber(Kept):
    def measure(self, ticket, context):
        return {"kept": next(iter(ticket.mask.values())).sum()}


@breaks("the-same-seed-gives-the-same-numbers")
class MeasuredByChance(Kept):
    def measure(self, ticket, context):
        return {"chance": float(torch.rand(()))}


@breaks("the-same-seed-gives-the-same-numbers")
class Unrepeatable(Kept):
    """Draws from a generator that no seed decides."""

    def measure(self, ticket, context):
        return {"chance": float(torch.rand((), generator=by_chance()))}


@breaks("measuring-changes-nothing")
class ChangesTheTicket(Kept):
    def measure(self, ticket, context):
        first = next(iter(ticket.mask.values()))
        first.logical_not_()
        return {"kept": int(first.sum())}


@breaks("measuring-changes-nothing")
class ChangesTheData(Kept):
    def measure(self, ticket, context):
        context.data.train.images.mul_(2)
        return {"kept": ticket.kept}


# --- pruners -------------------------------------------------------------------------------------


def pruner(clause, data, *parts):
    own = load_plugins(only=())
    extra = {part.name: Entry(part, "broken", "broken") for part in parts}
    known = {**own.parts, "scores": {**own.parts["scores"], **extra}}
    recipes = {"broken": Entry(data, "broken", "broken")}
    BROKEN.setdefault(clause, []).append(
        Pruner("broken", replace(own, parts=known, pruners=recipes))
    )


pruner("its-parts-fit-together", {"scores": "magnitude", "rounding": "topk", "help": "x"})
pruner("its-parts-fit-together", {"scores": "no_such_scores", "help": "x"})
pruner("it-has-one-line-of-help", {"scores": "magnitude"})
pruner("it-finds-a-ticket", {"scores": "by_chance", "help": "x"}, ByChance)


# --- presets -------------------------------------------------------------------------------------


def preset(clause, **changes):
    own = load_plugins(only=())
    given = {"help": "x", "pruner": "gem_miner", "density": 0.1, "model": "conv4"}
    made = preset_from("broken/one", {**given, "dataset": "digits", **changes})
    known = {"broken/one": Entry(made, "broken", "broken")}
    BROKEN.setdefault(clause, []).append(NamedPreset("broken/one", replace(own, presets=known)))


preset("its-run-can-start", pruner="no_such_pruner")
preset("its-run-can-start", model="no_such_model")
preset("its-run-can-start", dataset={"name": "digits", "no_such_field": 3})
preset("its-run-can-start", recipe={"schedule": {"no_such_field": 3}})
preset("its-run-can-start", recipe={"schedule": {"every": 40}})


# --- the tests -----------------------------------------------------------------------------------

CASES = [(clause, thing) for clause, things in BROKEN.items() for thing in things]


def verdict_on(thing, name):
    [one] = [one for one in clauses_of(thing) if one.name == name]
    one.check(thing, torch.device("cpu"))


def test_every_clause_has_a_part_that_breaks_it():
    assert {one.name for one in CLAUSES} == set(BROKEN)


@pytest.mark.parametrize(
    ("clause", "thing"), CASES, ids=[f"{clause}-{type(thing).__name__}" for clause, thing in CASES]
)
def test_a_broken_part_is_caught(clause, thing):
    with pytest.raises(AssertionError, match="But "):
        verdict_on(thing, clause)


test_an_honest_check = contract(Flip)
test_an_honest_measurement = contract(Kept)
test_an_honest_model = contract(Plain)
test_an_honest_observer = contract(Quiet)


def test_the_smallest_case_is_reported():
    [verdict] = [one for one in verdicts([Normalized()]) if "finite" in one.clause]
    assert verdict.thing == "Normalized"
    assert verdict.problem == (
        "'1.weight' has 216 values of 216 that are not finite; smallest case: weights=equal"
    )


def test_a_part_that_needs_fields_must_be_built():
    with pytest.raises(
        TypeError, match=r"Needy: .* value for size; .*contract\(Needy\(size=\.\.\.\)\)"
    ):
        contract(Needy)
    contract(Needy(size=3, other=3))


def test_a_part_without_examples_does_not_conform_and_says_how_to_try_it():
    [verdict] = verdicts(brought(Needy))
    assert verdict.problem == (
        "there is no example value for size; write Field(examples=[...]), or build one yourself, "
        "as in contract(Needy(size=...))"
    )


def test_a_part_replaces_its_class_in_a_plugin():
    mine = Needy(size=3, other=3)
    assert list(things_among([*brought(Needy), mine])) == [mine]
    assert list(things_among([*brought(Needy), Magnitude()])) == [*brought(Needy), Magnitude()]


class Sized(Magnitude):
    """Has a tuple field, which plain data writes as a list."""

    sizes: tuple[int, ...] = Field(description="must be given", examples=[[1, 2]])


def test_examples_may_be_written_as_plain_data():
    assert brought(Sized) == [Sized(sizes=(1, 2))]


def test_values_are_drawn_for_texts_with_a_pattern_and_for_tuples():
    """pydantic reads "$" as the very end, and fewer characters as digits than Python."""

    class Drawn(Uniform):
        """Has fields that are hard to draw."""

        word: str = Field(
            default="a:a", pattern=r"^[^\W\d]\w*:[^\W\d]\w*$", description="two words"
        )
        sizes: tuple[int, ...] = Field(default=(1,), description="many")

    assert not [one for one in verdicts([Drawn()]) if one.problem or one.not_tried]


# --- clauses that cannot be tried ----------------------------------------------------------------


class RefusesAll(Once):
    """Refuses every task."""

    def freezes(self, target, epochs, steps_per_epoch):
        raise FitError("not today")


class RefusesLayers(Global):
    def keep(self, importance, alive, density):
        raise FitError("not these layers")


class RefusesNetworks(Magnitude):
    def importance(self, probe):
        raise ImportanceError("not this network")


REFUSING = {
    RefusesAll: ("freezes-is-a-pure-function", "not today"),
    RefusesLayers: ("shares-sum-to-the-budget", "not these layers"),
    RefusesNetworks: ("importance-is-finite-where-weights-are-alive", "not this network"),
}


@pytest.mark.parametrize("cls", REFUSING)
def test_a_part_that_refuses_every_case_counts_as_not_tried(cls):
    clause, reason = REFUSING[cls]
    with pytest.raises(NotTriedError, match=f"it refused every case: {reason}"):
        verdict_on(cls(), clause)


def test_a_clause_without_cases_blames_no_part():
    [clause] = [one for one in CLAUSES if one.name == "freezes-is-a-pure-function"]
    empty = replace(clause, cases=lambda part, device: st.none().filter(bool))
    with pytest.raises(NotTriedError, match=r"^there is no case to try$"):
        empty.check(Once(), torch.device("cpu"))


class Text(DatasetPart):
    """Images in a file of text."""

    name = "text"

    def load(self, folder):
        try:
            values = [int(word) for word in (folder / "images.txt").read_text().split()]
        except OSError as error:
            raise DataError(f"{folder} has no images.txt\nPut one there.") from error
        images = torch.tensor(values).float().view(-1, 1, 2, 2)
        pair = (images, torch.arange(len(images)) % 2)
        return Data.of_tensors(train=pair, validation=pair, test=pair, classes=2)


def write_text(folder):
    (folder / "images.txt").write_text(" ".join(str(number) for number in range(32)))


def write_nonsense(folder):
    (folder / "images.txt").write_text("1 2 3")


FILES = {
    "every-split-holds-images-and-labels",
    "every-sample-comes-once-an-epoch",
    "the-same-seed-gives-the-same-order",
}

test_a_data_set_with_files = contract(Text, files=write_text)


def test_a_data_set_without_files_is_not_tried_and_says_what_it_needs():
    found = list(verdicts([Text()]))
    assert {one.clause for one in found if one.not_tried} == FILES
    [reason] = {one.not_tried for one in found if one.not_tried}
    assert reason == (
        "it needs files (DIR has no images.txt); give the contract a function that "
        "writes some, as in contract(Text, files=write_files), or give check-plugin a folder that "
        "has them: --data-dir DIR"
    )
    assert not any(one.problem for one in found)


@pytest.mark.parametrize("write", [write_nonsense, lambda folder: None])
def test_a_data_set_that_cannot_read_its_files_is_broken(write, tmp_path):
    write(tmp_path)
    found = list(verdicts([Text()], tmp_path))
    assert {one.clause for one in found if one.problem} == FILES
    assert not any(one.not_tried for one in found)


def test_the_kit_does_not_touch_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "mine"))
    write_classes(tmp_path / "pictures", {"cat": 10, "dog": 10})
    found = list(verdicts([ImageFolder(path="pictures")], tmp_path))
    assert not any(one.problem or one.not_tried for one in found)
    assert not (tmp_path / "mine").exists()


def test_a_part_is_built_from_the_examples_of_its_fields():
    class Exemplary(Magnitude):
        """Has an example for its required field."""

        size: int = Field(description="must be given", examples=[3])

    assert next(iter(things_in(Exemplary))) == Exemplary(size=3)


def test_a_contract_is_for_parts_and_plugins():
    with pytest.raises(TypeError, match="not 3"):
        contract(3)
