"""Parse densities: a fraction or a percentage to keep, or a sparsity to prune.

Text is read as a decimal: a sparsity of 0.95 is a density of exactly 0.05, not of
1 - 0.95 = 0.050000000000000044.
"""

from decimal import Context, Decimal
from typing import Final

_EXACT: Final = Context(prec=100)
"""More digits than any float needs."""


def density_from(given: float | str) -> float:
    """Return the density in a number or a text, such as 0.05, `"0.05"` or `"5%"`."""
    number = _decimal(given)
    density = float(number)
    if not 0 < density <= 1:
        raise ValueError(
            f"{given} is not in (0, 1]: a density is the fraction to keep{_percent(given, number)}"
        )
    return density


def density_of_sparsity(sparsity: float | str) -> float:
    """Return the density of a sparsity, such as 0.05 for 0.95 or `"95%"`."""
    number = _decimal(sparsity)
    density = float(_EXACT.subtract(Decimal(1), number)) if 0 <= number < 1 else 0
    if not density:
        raise ValueError(
            f"{sparsity} is not in [0, 1): a sparsity is the fraction to prune"
            f"{_percent(sparsity, number)}"
        )
    return density


def _decimal(given: float | str) -> Decimal:
    """Read a number or a percentage exactly; a float is the decimal that Python shows."""
    try:
        if isinstance(given, bool):
            raise TypeError
        text = given.strip() if isinstance(given, str) else repr(float(given))
        number = Decimal(text.removesuffix("%"))
        number = _EXACT.scaleb(number, -2) if text.endswith("%") else number
    except (ArithmeticError, TypeError, ValueError):
        raise ValueError(
            f"{given!r} is not a number; write a fraction or a percentage, as in 0.05 or 5%"
        ) from None
    if not number.is_finite():
        raise ValueError(f"{given} is not a finite number")
    return number


def _percent(given: float | str, number: Decimal) -> str:
    """Suggest a percentage if the sign may be missing."""
    forgot = 1 < number <= 100 and not str(given).rstrip().endswith("%")
    return f"; write {number.normalize():f}% if that is meant" if forgot else ""
