"""Allocations: how layers share the budget K = round-half-up(density · entries).

Entries count whether alive or not, and K is never more than what is alive. All three are
house-monotone: at a lower density no layer gets more, so that masks at lower densities nest
inside those at higher ones, and the same importance pruned in several steps or at once ends alike.
"""

from gemkit.core.selection import Shares, apportion
from gemkit.core.tensors import Tensors, budget, counts, kept, total
from gemkit.parts.allocation import Allocation
from gemkit.plugins.markers import hookimpl


class Global(Allocation):
    """Let all weights of the network compete: one group of all layers keeps K.

    Sensible for importance that is comparable across layers; a layer may lose everything.
    """

    name = "global"

    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Give the whole budget to one group."""
        return {tuple(alive): min(budget(total(alive), density), kept(alive))}


class Uniform(Allocation):
    """Give every layer the same density: k_l ∝ n_l, for a layer of n_l entries.

    A layer that has less alive keeps what it has, and the others share the rest.
    """

    name = "uniform"

    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Split the budget in proportion to the sizes of the layers."""
        return _split({name: mask.numel() for name, mask in alive.items()}, alive, density)


class ErdosRenyiKernel(Allocation):
    """Give small and narrow layers a higher density: d_l ∝ (Σ_i shape_i) / (Π_i shape_i).

    So k_l = d_l · n_l ∝ Σ_i shape_i, the sum over output channels, input channels and kernel
    sides. A layer that would exceed what it has alive keeps all of it (a dense layer, when
    everything is alive), and the others share the rest in the same proportion.

    Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse
    connectivity inspired by network science" (2018), for Erdős–Rényi densities of linear layers;
    Evci et al., "Rigging the Lottery: Making All Tickets Winners" (2020), for kernels.
    """

    name = "erk"

    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Split the budget in proportion to the sums of the layers' shapes."""
        return _split({name: sum(mask.shape) for name, mask in alive.items()}, alive, density)


def _split(weights: dict[str, int], alive: Tensors, density: float) -> Shares:
    """Make every layer a group of its own, with its part of the budget."""
    living = list(counts(alive).values())
    goal = min(budget(total(alive), density), sum(living))
    shares = apportion(list(weights.values()), living, goal)
    return {(name,): count for name, count in zip(weights, shares, strict=True)}


@hookimpl
def gemkit_allocations() -> list[type[Allocation]]:
    """Register the allocations."""
    return [Global, Uniform, ErdosRenyiKernel]
