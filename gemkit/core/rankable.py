"""Whether importance can be ranked, and whether a choice by it means anything.

Facts about layers are computed on their device; `names_where` transfers all of them at once,
because every transfer waits for the device.
"""

from math import inf

from torch import Tensor

from gemkit.core.errors import ImportanceError, some
from gemkit.core.tensors import Tensors


def rankable(name: str, importance: Tensor) -> Tensor:
    """Return importance as real numbers: integers and booleans become floats."""
    if importance.is_complex():
        raise ImportanceError(
            f"importance of '{name}' is complex, and complex numbers have no order; return one "
            "real number for each weight, such as the absolute value"
        )
    return importance if importance.is_floating_point() else importance.double()


def overflowing(importance: Tensors, living: dict[str, int]) -> Tensors:
    """Whether the sum of importance is not finite, for every layer with living weights.

    If the sum is finite, so is every term: nan and inf survive any addition.
    """
    return {name: ~own.sum().isfinite() for name, own in importance.items() if living[name]}


def refuse_not_finite(names: list[str], importance: Tensors, alive: Tensors) -> None:
    """Refuse importance that is not finite where weights are alive, in these layers."""
    problems = []
    for name in names:
        values = importance[name][alive[name].bool()]
        nans, infs = int(values.isnan().sum()), int(values.isinf().sum())
        if nans or infs:
            problems.append(f"'{name}' has {nans} nan and {infs} inf among {values.numel()}")
    if problems:
        raise ImportanceError(
            f"importance must be finite where weights are alive, but {'; '.join(problems)}: "
            "look for data that are not finite, a diverging loss, or an overflow in half "
            "precision, where it is computed"
        )


def tied(importance: Tensors, alive: Tensors, chosen: Tensors, in_use: Tensors) -> Tensors:
    """Whether position alone decided the selection, for every layer."""
    facts: Tensors = {}
    for name, values in importance.items():
        if values.numel():
            living = alive[name].bool()
            low = values.masked_fill(~living, inf).min()
            high = values.masked_fill(~living, -inf).max()
            kept = chosen[name].count_nonzero()
            split = (kept > 0) & (kept < living.count_nonzero())
            facts[name] = (low == high) & split & in_use[name].any()
    return facts


def refuse_tied(names: list[str]) -> None:
    """Refuse a selection that position alone decided in these layers."""
    if names:
        raise ImportanceError(
            f"all weights of {some(names, 3)} that are left are equally important, so position "
            "alone would decide which of them stay; look whether signal reaches these layers "
            "(gemkit.prepare helps where scales or weights are 0), use other scores, or allow it "
            "with --allow-ties (plan=Plan(allow_ties=True); for select, allow_ties=True)"
        )
