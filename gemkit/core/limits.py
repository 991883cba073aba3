"""Limits on what an untrusted file may ask for.

The hash in a file detects damage but is no signature: a malicious file can have a valid hash. So
every size in a file has a limit, checked before anything of that size is allocated or built.
"""

import os

from gemkit.core.errors import OptionError

MAX_SEED = 2**32 - 1
MAX_EPOCHS = 1_000_000
MAX_FREEZES = 10_000
MAX_ROUNDS = 2500
"""Rounds of iterative pruning; at 1 % per round, less than 1e-10 of the weights remain."""
MAX_BATCHES = 100_000
MAX_CLASSES = 2**24
MAX_IMAGE_VALUES = 2**28
"""Values of one image, or of all images of a fake data set (70,000 of 3 × 32 × 32 fit)."""

MAX_MODEL_INPUT = 2**22
"""Values of the input image that a ticket may name for its network; 3 × 1024 × 1024 fit."""

MAX_HEADER_BYTES = 2**24
"""Size of a safetensors header; 10,000 masked weights take 3.5 MB."""
MAX_TENSORS = 2**16
MAX_NAME_LENGTH = 512
MAX_DIMENSIONS = 16
MAX_JSON_ITEMS = 2**18
"""Items in a ticket's JSON; 10,000 masked weights take 20,000, each freeze takes 5."""

MAX_TEXT_LENGTH = 4096
MAX_DEPTH = 20
"""Nesting of tables and lists in a ticket's description of its recipe, network and data."""

MAX_PARAMETERS = 2**28
"""Parameters of a network that a run folder may name; ViT-B has 86 million."""
MAX_CONFIG_BYTES = 2**22

VARIABLE = "GEMKIT_MAX_GB"
_MAX_FILE_BYTES = 8 * 10**9


def max_file_bytes() -> int:
    """Return the size limit of a tensor file, from GEMKIT_MAX_GB if it is set.

    The default is 8 GB, or a third of this machine's memory if that is less: a ticket is in memory
    twice while it is read.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(_MAX_FILE_BYTES, memory // 3)
    try:
        return int(float(text) * 10**9)
    except (ValueError, OverflowError) as error:
        raise OptionError(f"{VARIABLE}={text!r} is not a number of gigabytes") from error


def check_seed(seed: int) -> None:
    """Refuse a seed that a ticket cannot record."""
    if not 0 <= seed <= MAX_SEED:
        raise OptionError(f"seed {seed} is not between 0 and {MAX_SEED}; choose another")
