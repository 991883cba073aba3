"""A penalty that grows in every step in which the mask is too dense, tried without a search."""

import torch

from gemkit import Now, Regularizer


class Chasing(Regularizer):
    """L1 with a factor that follows the density."""

    name = "chasing"
    needs_density = True

    def init_state(self, weights):
        return {"factor": torch.ones((), device=next(iter(weights.values())).device)}

    def penalty(self, values, now):
        return now.state["factor"] * sum(score.abs().sum() for score in values.values())

    def add_gradient_(self, gradients, values, now):
        now.state["factor"].mul_(torch.where(now.density > now.target, 1.5, 1.0))
        for name, score in values.items():
            gradients[name].add_(now.state["factor"] * score.sign())


part, scores = Chasing(), {"a": torch.tensor([0.2, -0.4])}
gates = {"a": torch.tensor([1.0, 0.0])}
now = Now(torch.tensor(5.0), steps=10, target=0.1, gates=gates, state=part.init_state(scores))
assert (now.progress, now.density) == (0.5, 0.5)

gradients = {"a": torch.zeros(2)}
part.add_gradient_(gradients, scores, now)
assert gradients["a"].tolist() == [1.5, -1.5]
