"""Structures: single weights, rows, filters, and N:M blocks."""

from fractions import Fraction
from math import ceil

from pydantic import Field
from torch import Tensor

from gemkit.parts.structure import Structure
from gemkit.plugins.markers import hookimpl


class Weights(Structure):
    """Single weights, all in one pool: unstructured pruning."""

    name = "weights"
    plain = True

    def fold(self, weight: Tensor) -> Tensor:
        """Return [1, N, 1]."""
        return weight.reshape(1, weight.numel(), 1)


class Rows(Structure):
    """Single weights that compete within the row of an output; every row keeps the same share."""

    name = "rows"

    def fold(self, weight: Tensor) -> Tensor:
        """Return [outputs, rest, 1]."""
        return weight.reshape(len(weight), weight.shape[1:].numel(), 1)


class Filters(Structure):
    """Whole filters, that is all weights of an output: structured pruning.

    A filter is as important as the sum of its weights. The last layer of the network is left out,
    because its filters are the outputs.
    """

    name = "filters"
    spares_output = True

    def fold(self, weight: Tensor) -> Tensor:
        """Return [1, outputs, rest]."""
        return weight.reshape(1, len(weight), weight.shape[1:].numel())


class Blocks(Structure):
    """N:M sparsity: of every M weights in a row along the input, N stay (2:4 by default).

    For convolutions the input means the input channels, at one place of the kernel. The density
    must be N/M; freezes before the last one keep ⌈density·M⌉ of every block. A layer whose input
    M does not divide is left out of the search.
    """

    name = "nm"

    n: int = Field(
        default=2, ge=1, le=64, description="weights that stay in a block", examples=[1, 2]
    )
    m: int = Field(default=4, ge=2, le=64, description="weights of a block", examples=[4, 8])

    def fold(self, weight: Tensor) -> Tensor:
        """Return [N/M, M, 1], the input channels last."""
        return weight.movedim(1, -1).reshape(-1, self.m, 1)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether M divides the input."""
        return len(shape) > 1 and shape[1] % self.m == 0

    def units_of(self, density: float, units: int) -> int:
        """Return ⌈density·M⌉, but at least N."""
        if self.misfit(density) is None:  # 5/6 has no exact decimals
            return self.n
        return max(self.n, ceil(Fraction(repr(float(density))) * units))

    def misfit(self, density: float) -> str | None:
        """Refuse another density than N/M."""
        if self.n >= self.m:
            return f"structure 'nm' has n = {self.n}, which must be less than m = {self.m}"
        if abs(density - self.n / self.m) < 1e-9:
            return None
        return (
            f"structure 'nm' with n = {self.n} and m = {self.m} keeps {self.n / self.m:g} of the "
            f"weights, not {density:g}; use --density {self.n / self.m:g}, or other n and m"
        )


@hookimpl
def gemkit_structures() -> list[type[Structure]]:
    """Register the structures."""
    return [Weights, Rows, Filters, Blocks]
