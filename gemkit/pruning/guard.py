"""Report networks without signal before a search, and collapse during it."""

from gemkit.core.errors import CollapseError, SignalError, some
from gemkit.core.events import Collapsed, Noted
from gemkit.core.probe import Wanted
from gemkit.core.tensors import Tensors, kept, total
from gemkit.models.prepare import changes, describe
from gemkit.models.signal import Signal, trace
from gemkit.parts.fit import needs_training
from gemkit.parts.recipe import Recipe
from gemkit.parts.schedule import Freeze
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.pruning.collapse import empty_layers, is_cut
from gemkit.pruning.masked import MaskedNet
from gemkit.training.calibration import draw
from gemkit.training.loop import RunContext
from gemkit.training.plan import CollapsePolicy, Plan

_FEWEST = 64
"""The fewest images to trace: with a few, some units are off for all of them by chance."""
_FAR = 0.8
"""A mask that keeps less than this fraction of its target is far from it."""
_CONTINUE = 'continue anyway: on_collapse="warn" (--on-collapse warn)'
_KEEP_ONE = 'continue anyway: on_collapse="warn" or "keep-one" (--on-collapse warn or keep-one)'


class Guard:
    """Checks one search: signal at the start, paths after every freeze, gradients at the end.

    Every problem is reported once, or is an error, as `on_collapse` says.
    """

    def __init__(
        self,
        recipe: Recipe,
        net: MaskedNet,
        context: RunContext,
        plan: Plan,
        on_collapse: CollapsePolicy,
    ) -> None:
        self.recipe = recipe
        self.net = net
        self.context = context
        self.plan = plan
        self.on_collapse = on_collapse
        self._start = Signal()
        self._reported: set[tuple[str, str]] = set()

    def check_start(self, freezes: list[Freeze]) -> None:
        """Check that signal and gradient reach every prunable layer.

        A layer without signal is an error if scores are learned, or measured before the first
        step. Otherwise it is only reported: training may still change it.
        """
        self._start = self._trace()
        scores = self.recipe.scores
        early = isinstance(scores, LearnedScores) or any(freeze.step == 0 for freeze in freezes)
        resumed = self.context.checkpointer.phase is not None  # checked when it started
        fatal = _need_signal(scores) and early and not resumed
        fatal = fatal and self.plan.on_no_signal == "error"
        no_layer_used = len(self._start.unused) == len(self.net.parameters)
        if fatal and (self._start.dead or self._start.constant or no_layer_used):
            raise SignalError(self._no_signal())
        for sentence in self._start.sentences(len(self.net.parameters)):
            self.context.emit(Noted(f"at the start of the search {sentence}"))

    def check_freeze(self, step: int, mask: Tensors) -> None:
        """Check the network after a freeze; `mask` is the one it uses.

        What is pruned for good stays so, but a mask that is rounded in every step may recover.
        """
        recipe, alive = self.recipe, self.net.alive
        tolerated = recipe.finalize == "alive" and self.on_collapse != "error"
        # An inverted search freezes just what rounding keeps, so its mask may well be empty. Soft
        # gates pass gradients also where the mask of a ticket would be empty.
        recovers = recipe.invert or recipe.rounding.soft or tolerated
        self._refuse_empty(step, alive if recovers else mask)
        self._check_paths(step, alive, for_good=True)
        if not recipe.rounding.takes_measured and not recipe.invert:
            self._check_paths(step, mask, for_good=False)

    def check_ticket(self, step: int, mask: Tensors, target: float) -> None:
        """Check the network with the mask of its ticket applied; `target` is its density."""
        self._refuse_empty(step, mask)
        self._check_paths(step, mask, for_good=True)
        self._check_gradients(step)
        self._report_density(mask, target)

    def _check_paths(self, step: int, mask: Tensors, *, for_good: bool) -> None:
        """Report layers without weights, and a mask that leaves no path through the network."""
        data = self.context.data
        if empty := empty_layers(mask):
            what = f"{some(empty, 3)} lost every weight"
        elif is_cut(self.net.model, mask, data.shape, indices=data.indices):
            what = "no path leads from input to output any more"
        else:
            return
        if for_good:
            self._collapse(step, empty, what)
        elif self._is_news("for the moment", empty):
            self.context.emit(Collapsed(step, empty, f"at step {step} {what}, for the moment"))

    def _check_gradients(self, step: int) -> None:
        """Report a network of constant output, and layers that have lost their gradient."""
        now = self._trace()
        lost = tuple(name for name in now.dead if name not in self._start.dead)
        if now.constant and not self._start.constant:
            self._collapse(step, (), "the output of the network is the same for every image")
        elif lost:
            verb = "gets" if len(lost) == 1 else "get"
            self._collapse(step, lost, f"{some(lost, 3)} no longer {verb} any gradient")

    def _refuse_empty(self, step: int, mask: Tensors) -> None:
        """Stop, whatever the policy, if nothing is kept: no gradient can bring it back."""
        if kept(mask) == 0:
            raise CollapseError(
                f"collapse at step {step}: no weight of the network is kept, and no gradient is "
                f"left to bring one back; {' or '.join(remedies(self.recipe))}"
            )

    def _report_density(self, mask: Tensors, target: float) -> None:
        """Warn if rounding leaves far fewer weights than the target, and than freezing."""
        found, alive = kept(mask) / total(mask), kept(self.net.alive) / total(mask)
        if found >= _FAR * min(target, alive):
            return
        regularizer = self.recipe.regularizer
        ways = ["lower the learning rate"]
        if getattr(regularizer, "weight", 0) != 0:
            other = "auto" if regularizer.on == "scores" else "auto_gates"
            ways = [f"choose regularizer '{other}', which follows the target"]
            ways.append("lower regularizer.weight")
        self.context.emit(
            Noted(
                f"the ticket keeps {found:.4g} of the weights, far fewer than the target of "
                f"{min(target, alive):.4g}, because most scores were pulled below the threshold; "
                f"{', or '.join(ways)}"
            )
        )

    def _trace(self) -> Signal:
        """Pass one batch of training images through the current network."""
        data, seed = self.context.data.train, self.context.seed
        size = max(_FEWEST, self.plan.batch_size)
        batch, *_ = draw(data, Wanted(1), size, seed=seed, turn=0)
        loss = self.context.task.loss_of(self.net.model)
        return trace(self.net.model, list(self.net.parameters), batch, loss)

    def _no_signal(self) -> str:
        """Say why the scores would be meaningless, and what to do."""
        layers = len(self.net.parameters)
        found = "; ".join(self._start.sentences(layers))
        ways = ["search anyway with --on-no-signal warn (plan=Plan(on_no_signal='warn'))"]
        cause = ""
        if causes := list(changes(self.net.model, frozen=True)):
            cause = f", because of {describe(causes)}"
            ways = [
                "prepare the network with prepare=True in Python or -o model.prepare=true, which "
                "leaves loaded weights alone",
                "freeze these layers with requires_grad_(False), so that they are neither pruned "
                "nor trained",
                *ways,
            ]
        elif len(self._start.unused) == layers:
            ways = ["use a network whose output depends on its layers"]
        elif len(self._start.dead) == layers:
            ways.insert(0, "look whether images and labels differ")
        return (
            f"scores '{self.recipe.scores.name}' would say nothing about this network at "
            f"initialization: {found}{cause}; {', or '.join(ways)}"
        )

    def _collapse(self, step: int, layers: tuple[str, ...], what: str) -> None:
        """Raise an error, or report the collapse once and continue."""
        message = f"collapse at step {step}: {what}"
        if self.on_collapse == "error":
            recipe = self.recipe
            single = recipe.structure.plain and recipe.grow is None
            ways = [*remedies(recipe), _KEEP_ONE if single else _CONTINUE]
            raise CollapseError(f"{message}; {', or '.join(ways)}")
        if self._is_news("for good" if layers else what, layers):
            self.context.emit(Collapsed(step, layers, message))

    def _is_news(self, kind: str, layers: tuple[str, ...]) -> bool:
        """Whether this was not reported before, for one of these layers or for the network."""
        facts = {(kind, layer) for layer in layers or ("",)}
        known = facts <= self._reported
        self._reported |= facts
        return not known


def _need_signal(scores: Scores) -> bool:
    """Whether scores, or scores within them, depend on the loss or the output."""
    inner = [own for own in scores.inner().values() if isinstance(own, Scores)]
    return scores.needs_signal or any(map(_need_signal, inner))


def remedies(recipe: Recipe) -> list[str]:
    """List what helps against collapse with this recipe."""
    ways = ["raise the density"]
    if getattr(recipe.regularizer, "weight", 0) != 0:
        ways.append("lower regularizer.weight")
    if needs_training(recipe):
        ways.append("lower the learning rate")
    if recipe.allocation.name == "global":
        ways.append("choose allocation 'erk' or 'uniform'")
    return ways
