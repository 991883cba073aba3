"""Settings of glibc's allocator that make training on a CPU faster."""

import ctypes
import os
import sys

# The names are those of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK = 32 * 2**20
"""Larger blocks are returned at once, or the heap would fill up with them."""
_LARGEST = 2**31 - 1


def keep_memory() -> bool:
    """Let this process keep the memory it frees, and return whether glibc accepted that.

    A training step frees memory that the next one allocates again. By default glibc returns much of
    it to the system, which then has to fault in and zero every page again; a good part of a step
    on the CPU is spent on this (docs/speed.md has numbers). The price is that the process may hold
    up to 2 GiB more than it uses. Settings of the user for glibc are not overridden.
    """
    configured = any(name.startswith("MALLOC_") for name in os.environ)
    if configured or "GLIBC_TUNABLES" in os.environ or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, _BLOCK), mallopt(_M_TRIM_THRESHOLD, _LARGEST)])
