"""Memory that stays with the process between the steps of a training on the CPU."""

import ctypes
import os
import sys

# The names are those of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK = 32 * 2**20
"""Larger blocks go back at once, or the heap would fill up with copies of them."""
_LARGEST = 2**31 - 1


def keep_memory() -> bool:
    """Let this process keep the memory it frees; tell whether that could be arranged.

    A training step frees what the next one needs again. glibc hands much of it back to the system
    each time, and every page that is needed again is faulted in and zeroed anew. Without this, a
    good part of a step on the CPU is spent so (docs/speed.md has figures). The price is that the
    process may hold more than it uses, up to 2 GiB. Where the user has settled these matters for
    glibc, that stands.
    """
    settled = any(name.startswith("MALLOC_") for name in os.environ)
    if settled or "GLIBC_TUNABLES" in os.environ or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, _BLOCK), mallopt(_M_TRIM_THRESHOLD, _LARGEST)])
