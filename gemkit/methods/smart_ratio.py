"""Smart Ratio (Su et al. 2020): chance alone, with layer densities laid down beforehand.

    p_l = γ · (k² + k) / l^(0 or 2),   k = L − l + 1,   layers l = 1 … L, linear ones counted too
    the classifier keeps 0.3;   γ from the budget;   what p_l > 1 asks for goes to the next layers

Versions 2 and 3 of the Rare Gems appendix give the first and last layer densities of their own
(`first`, `last`). Versions 4 to 6 find densities by experiment (`gemkit.methods.ratio_search`,
`gemkit.methods.ratio_learning`) and hand them to the allocation `densities`. Any scores can pick
the weights within the layers; `magnitude` makes the "hybrid tickets" of Su et al.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from gemkit.core.errors import FitError
from gemkit.core.selection import Shares, apportion
from gemkit.core.tensors import Tensors, budget, counts, total
from gemkit.core.text import number_of
from gemkit.parts.allocation import Allocation
from gemkit.plugins.markers import hookimpl


class SmartRatio(Allocation):
    """Give early layers more, by rule: d_l ∝ k² + k, where k = L − l + 1 counts from the end.

    Every layer counts in L, but linear ones keep a fixed density instead. A layer that would get
    more than it has keeps all, and the excess fills the others, front to back; only what none of
    them can take goes to the layers of fixed density.

    Su et al., "Sanity-Checking Pruning Methods: Random Tickets can Win the Jackpot" (2020).
    """

    name = "smart_ratio"

    rule: Literal["resnet", "vgg"] = Field(
        default="resnet", description="'vgg' divides by l², which favours early layers even more"
    )
    fixed: Literal["linear", "last"] = Field(
        default="linear",
        description="which layers keep fixed_density: all linear ones, or the last of any kind",
    )
    fixed_density: float = Field(default=0.3, gt=0, le=1, description="density of those layers")
    first: float | None = Field(
        default=None, gt=0, le=1, description="density of the first layer, instead of the rule's"
    )
    last: float | None = Field(
        default=None, gt=0, le=1, description="density of the last layer, instead of fixed_density"
    )

    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Fill the fixed layers, and let the others share the rest by the rule."""
        room = counts(alive)
        goal = min(budget(total(alive), density), sum(room.values()))
        fixed = {
            name: min(room[name], budget(alive[name].numel(), ratio))
            for name, ratio in self._fixed_densities(alive).items()
        }
        demands = {
            name: ratio * alive[name].numel()
            for name, ratio in zip(alive, self._ratios(len(alive)), strict=True)
            if name not in fixed
        }
        if not demands:
            raise FitError(
                "allocation 'smart_ratio' finds every layer at a fixed density and none to share "
                "the rest; with allocation.fixed='last' only the last one is"
            )
        left = goal - sum(fixed.values())
        if left < 0:
            raise self._too_little(density, alive, fixed)
        asked = apportion(list(demands.values()), [left] * len(demands), left)
        wanted = dict(zip(demands, asked, strict=True)) | fixed
        kept = _spill(wanted, room)
        return {(name,): kept[name] for name in alive}

    def _fixed_densities(self, alive: Tensors) -> dict[str, float]:
        """Say which layers do not follow the rule, and what they keep."""
        first, last = next(iter(alive)), next(reversed(alive))
        if self.fixed == "last":
            fixed = {last: self.fixed_density}
        else:
            fixed = {name: self.fixed_density for name, mask in alive.items() if mask.ndim == 2}
        if self.first is not None:
            fixed[first] = self.first
        if self.last is not None:
            fixed[last] = self.last
        return fixed

    def _ratios(self, layers: int) -> list[int]:
        """Return the density each layer asks for, up to a common factor, as whole numbers."""
        places = range(1, layers + 1)
        raw = [k * k + k for k in reversed(places)]
        if self.rule == "resnet":
            return raw
        multiple = math.lcm(*places)
        return [ratio * (multiple // place) ** 2 for ratio, place in zip(raw, places, strict=True)]

    def _too_little(self, density: float, alive: Tensors, fixed: Mapping[str, int]) -> FitError:
        """Say how far the budget is below what layers of fixed density keep."""
        names, needed, entries = list(fixed), sum(fixed.values()), total(alive)
        own = [f"allocation.{end}" for end in ("first", "last") if getattr(self, end) is not None]
        return FitError(
            f"density {density:g} keeps {budget(entries, density):,} of {entries:,} weights, but "
            f"allocation 'smart_ratio' gives {needed:,} to layers of fixed density "
            f"({', '.join(names[:3])}{', …' if len(names) > 3 else ''}) alone; ask for a density "
            f"of at least {math.ceil(1e6 * needed / entries) / 1e6:g}, or lower "
            f"{' or '.join(['allocation.fixed_density', *own])}"
        )


class Densities(Allocation):
    """Give every layer a density of its own, listed in module order: d_l ∝ densities_l.

    All are scaled alike to meet the budget exactly; a layer that would exceed what it has alive
    keeps all of it, and the others share the rest. `gemkit ratios` writes recipes with it.
    """

    name = "densities"

    densities: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        min_length=1, description="one density per prunable layer, in module order"
    )

    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Split the budget in proportion to listed density times size."""
        if len(self.densities) != len(alive):
            raise FitError(
                f"allocation.densities lists {number_of(len(self.densities), 'layer')}, but the "
                f"network has {len(alive)} prunable, from '{next(iter(alive))}' to "
                f"'{next(reversed(alive))}'; list one density for each, in this order"
            )
        exact = [Fraction(repr(listed)) for listed in self.densities]
        if not any(exact):
            raise FitError("allocation.densities are all 0; at least one must be above")
        unit = math.lcm(*(ratio.denominator for ratio in exact))
        sizes = [mask.numel() for mask in alive.values()]
        weights = [int(ratio * unit) * size for ratio, size in zip(exact, sizes, strict=True)]
        room = list(counts(alive).values())
        kept = apportion(weights, room, min(budget(sum(sizes), density), sum(room)))
        return {(name,): count for name, count in zip(alive, kept, strict=True)}


def _spill(wanted: Mapping[str, int], room: Mapping[str, int]) -> dict[str, int]:
    """Cut every layer off at its room, and let the first that have some left take the excess.

    In integers, so nothing is lost on the way, and asking for less never gives any layer more.
    """
    given = {name: min(room[name], count) for name, count in wanted.items()}
    excess = sum(wanted.values()) - sum(given.values())
    for name, count in given.items():
        given[name] = min(room[name], count + excess)
        excess -= given[name] - count
    return given


@hookimpl
def gemkit_allocations() -> list[type[Allocation]]:
    """Register the allocations."""
    return [SmartRatio, Densities]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register the random tickets of Su et al."""
    return {
        "smart_ratio": {
            "help": "Random tickets with Smart Ratio's layer densities (Su et al. 2020)",
            "scores": "random",
            "allocation": "smart_ratio",
        }
    }
