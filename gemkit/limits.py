"""What a file may ask for.

A hash finds damage and is no signature: a stranger's ticket or run folder has a valid one. So every
size in a file has a bound, which is checked before anything of that size is allocated or built.
"""

import os

from gemkit.errors import OptionError

LARGEST_SEED = 2**32 - 1
MOST_EPOCHS = 1_000_000
MOST_FREEZES = 10_000
MOST_ROUNDS = 2500
"""Rounds of iterative pruning; 1 % a round then leaves less than 1e-10 of the weights."""
MOST_BATCHES = 100_000
MOST_CLASSES = 2**24
MOST_VALUES = 2**28
"""Numbers in one image, or in all images of a made-up data set (70,000 of 3 × 32 × 32 fit)."""

MOST_PIXELS = 2**22
"""Numbers in one image for which a network is built on a ticket's word; 3 × 1024 × 1024 fit."""

LARGEST_HEADER = 2**24
"""Bytes in the header of a safetensors file; 10,000 masked weights take 3.5 MB."""
MOST_TENSORS = 2**16
LONGEST_NAME = 512
MOST_DIMENSIONS = 16
MOST_ITEMS = 2**18
"""Items in the JSON of a ticket; 10,000 masked weights take 20,000, and 5 more each freeze."""

LONGEST_TEXT = 4096
DEEPEST = 20
"""Levels of tables and lists in a ticket's description of its recipe, network and data."""

MOST_PARAMETERS = 2**28
"""Parameters of a network that only a run's configuration asks for; ViT-B has 86 million."""
LARGEST_CONFIG = 2**22

VARIABLE = "GEMKIT_MAX_GB"
_LARGEST_FILE = 8 * 10**9


def largest_file() -> int:
    """Return how many bytes a file of tensors may have; GEMKIT_MAX_GB sets another limit.

    By default it is 8 GB, or a third of this machine's memory if that is less: a ticket is in
    memory twice while it is read.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(_LARGEST_FILE, memory // 3)
    try:
        return int(float(text) * 10**9)
    except (ValueError, OverflowError) as error:
        raise OptionError(f"{VARIABLE}={text!r} is not a number of gigabytes") from error


def check_seed(seed: int) -> None:
    """Refuse a seed that no ticket can record."""
    if not 0 <= seed <= LARGEST_SEED:
        raise OptionError(f"seed {seed} does not lie between 0 and {LARGEST_SEED}; choose another")
