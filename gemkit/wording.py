"""Numbers in sentences."""


def number_of(count: float, noun: str, nouns: str = "") -> str:
    """Say how many there are: `1 epoch`, `1,200 epochs`; `nouns` is a plural that takes no s."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun if count == 1 else nouns or noun + 's'}"
