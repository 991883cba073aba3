"""The process keeps the memory it frees, unless the user has set glibc's options."""

import os
import platform
import subprocess
import sys

import pytest

from gemkit.cli import allocator, main

LARGE = 512
"""MiB of a block that goes back at once."""
WATCHED = """
import resource, sys
import torch
from torch import nn
from gemkit.cli.allocator import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory()
torch.set_num_threads(1)
layers = [layer for _ in range(6) for layer in (nn.BatchNorm2d(96), nn.ReLU())]
model, images = nn.Sequential(nn.Conv2d(3, 96, 1), *layers), torch.ones(64, 3, 32, 32)

def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        model(images).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(1)  # until the heap is large enough
counted = faults(8)

def held():
    (line,) = [line for line in open("/proc/self/status") if "VmRSS" in line]
    return int(line.split()[1])

before = held()
for _ in range(5):
    torch.ones(int(sys.argv[2]) << 18)
print(counted, held() - before)
"""


@pytest.fixture(scope="module")
def watched():
    """Train and allocate a large block repeatedly; return page faults and MiB held more."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc has these settings")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    found = {}
    for how in ("keep", "return"):
        words = [sys.executable, "-c", WATCHED, how, str(LARGE)]
        output = subprocess.run(words, env=clean, check=True, capture_output=True).stdout
        faults, held = map(int, output.split())
        found[how] = (faults, held / 1024)
    return found


def test_memory_that_is_kept_is_not_faulted_in_again(watched):
    kept, returned = watched["keep"][0], watched["return"][0]
    assert kept < 0.8 * returned


def test_large_blocks_are_not_hoarded(watched):
    """Without a bound, glibc 2.36 comes to hold several copies of a block like this."""
    assert watched["keep"][1] < LARGE / 2


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_user_are_not_overridden(name, monkeypatch):
    others = [own for own in os.environ if own.startswith("MALLOC_") or own == "GLIBC_TUNABLES"]
    for own in others:
        monkeypatch.delenv(own)
    assert allocator.keep_memory() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setenv(name, "1")
    assert not allocator.keep_memory()


@pytest.mark.parametrize("missing", [OSError, AttributeError])
def test_another_c_library_is_left_alone(missing, monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(missing))
    assert not allocator.keep_memory()


def test_the_command_line_keeps_its_memory(monkeypatch):
    asked = []
    monkeypatch.setattr("gemkit.cli.program.keep_memory", lambda: asked.append(True))
    with pytest.raises(SystemExit):
        main(["--version"])
    assert asked
