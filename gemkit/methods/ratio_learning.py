"""Learning layer densities by gradient descent (versions 5 and 6 of Smart Ratio in Rare Gems).

    min over p of  Σ ℓ(f(w ⊙ Bern(p); x), y)        one rate p_l per layer; weights stand still
    ∂ℓ/∂p_l = Σ_i w_i · ∂ℓ/∂(w_eff)_i               straight through the draw

The mask is drawn anew in every step. Nothing holds the density where it started: that of the
result is what the rates add up to. The authors store the density of one draw, a noisy reading of
the same rates; this returns the rates.
"""

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.core.errors import OptionError, TrainingError
from gemkit.core.tensors import Tensors, generator, parameters_of, seeded
from gemkit.data.source import Data
from gemkit.methods.ratios import Ratios, layer_densities
from gemkit.parts.now import Now
from gemkit.parts.recipe import Recipe
from gemkit.parts.scores import PAPER_STEPS
from gemkit.pruning.search import search
from gemkit.training.device import place
from gemkit.training.loop import Listener, RunContext, TrainLoop
from gemkit.training.plan import Plan, Runtime
from gemkit.training.trainer import Trainer

_LR = 1e-6
_WEIGHT_DECAY = 5e-4


@final
class RatedNet:
    """A model with frozen weights, in which one rate per layer learns how many of them to use."""

    def __init__(
        self, model: nn.Module, names: Sequence[str], rates: Sequence[float], rng: torch.Generator
    ) -> None:
        self.model = model
        self.parameters = parameters_of(model, names)
        self.rng = rng
        self.now = Now()
        self._still = {name: own.detach().clone() for name, own in self.parameters.items()}
        self.rates = {
            name: nn.Parameter(weight.new_tensor(rate))
            for (name, weight), rate in zip(self._still.items(), rates, strict=True)
        }
        own = {id(parameter) for parameter in self.parameters.values()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in own)
        self.draw_()

    @property
    def mask(self) -> Tensors:
        """The last draw, which the network uses now."""
        return self._drawn

    @property
    def scores(self) -> Tensors:
        """No scores are learned."""
        return {}

    @property
    def strength(self) -> None:
        """No penalty pulls at scores."""
        return None

    def compile_(self) -> bool:
        """The update draws random numbers on the CPU, and is not compiled."""
        return False

    def trainable(self) -> list[nn.Parameter]:
        """List the rates."""
        return list(self.rates.values())

    def groups(self, plan: Plan) -> list[dict[str, Any]]:
        """Return the rates, in one group."""
        return [{"params": self.trainable()}]

    @torch.no_grad()
    def pull_back_(self, name: str) -> None:
        """Turn the gradient of a layer's effective weights into that of its rate."""
        parameter = self.parameters[name]
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            self.rates[name].grad = (self._still[name] * gradient).sum()

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the rates, and draw another network."""
        for name in self.parameters:
            self.pull_back_(name)
        optimizer.step()
        optimizer.zero_grad()
        self.draw_()

    @torch.no_grad()
    def draw_(self) -> None:
        """Bring the rates back to [0, 1] and draw a mask: m ~ Bernoulli(p_l), weight by weight."""
        self._drawn = {}
        for name, rate in self.rates.items():
            weight = self._still[name]
            chance = torch.rand(weight.shape, generator=self.rng).to(weight.device)
            self._drawn[name] = chance < rate.clamp_(0, 1)
            torch.mul(weight, self._drawn[name], out=self.parameters[name].detach())


def learn_ratios(
    recipe: Recipe,
    model: nn.Module,
    data: Data,
    *,
    density: float = 0.05,
    plan: Plan | None = None,
    seed: int = 0,
    runtime: Runtime | None = None,
    observers: Sequence[Listener] = (),
    fabric: Fabric | None = None,
) -> Ratios:
    """Return layer densities that lower the training loss of randomly pruned starting weights.

    Args:
        recipe: its allocation gives the first layer densities, and its init the weights.
        model: the network, left as it was.
        data: what to train the rates on; only its training split is used for that.
        density: of the first layer densities.
        plan: how the rates train.
        seed: draws weights, masks and data order.
        runtime: device, precision, compilation.
        observers: functions called with every event.
        fabric: the machine, where it is open already.
    """
    start = layer_densities(recipe, model, density)
    plan = rate_plan(plan or Plan(), data)
    context = RunContext("search", data, seed, runtime or Runtime(), observers, fabric)
    whole = search(
        recipe.model_copy(update={"density": 1.0}),
        model,
        data,
        seed=seed,
        runtime=context.runtime,
        fabric=context.fabric,
    )
    with seeded(seed, context.fabric.device):
        own = place(whole.apply(copy.deepcopy(model)), context.fabric, context.runtime)
        net = RatedNet(own, list(whole.mask), start, generator(seed, "rates"))
        trainer = Trainer(net, plan, context.fabric, context.runtime)
        steps = plan.epochs * context.steps_per_epoch(plan)
        TrainLoop(context, trainer, [range(steps)]).run_until(steps)
    learned = tuple(rate.item() for rate in net.rates.values())
    if not any(learned):
        raise TrainingError(
            f"every layer's density fell to 0; lower the learning rate (now {plan.lr:g})"
        )
    return learned


def rate_plan(plan: Plan, data: Data) -> Plan:
    """Decide what the plan leaves open.

    The learning rate is the authors' 1e-6 for a search as long as theirs, and proportionally more
    for fewer steps, as rates have a way to go.
    """
    if plan.select != "last":
        raise OptionError("select = 'best': the rates of the last step are kept; leave it out")
    steps = plan.epochs * data.train.steps(plan.batch_size)
    lr = _LR * max(1.0, PAPER_STEPS / max(1, steps))
    return plan.decided(lr=lr, weight_decay=_WEIGHT_DECAY)
