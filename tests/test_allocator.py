"""Memory stays with the process where that can be arranged, and the user's own word stands."""

import os
import platform
import subprocess
import sys

import pytest

from gemkit import Runtime, allocator, training

FAULTS = """
import resource, sys
import torch
from gemkit.allocator import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory()

def use():
    torch.ones(1 << 24).add_(1)  # 64 MiB

for _ in range(10):  # until the heap is large enough
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    words = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(words, env=clean, check=True, capture_output=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_memory_that_is_kept_is_not_faulted_in_again():
    kept, returned = page_faults("keep"), page_faults("return")
    assert returned > 5 * 64 * 2**20 // (2 * 2**20), "64 MiB in pages of 2 MiB at the very most"
    assert kept < returned / 10


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_users_own_settings_stand(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert not allocator.keep_memory()


@pytest.mark.parametrize("missing", [OSError, AttributeError])
def test_another_c_library_is_left_alone(missing, monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(missing))
    assert not allocator.keep_memory()


def test_training_on_the_cpu_keeps_its_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(training, "keep_memory", lambda: asked.append(True))
    training.make_fabric(Runtime(device="cpu"))
    assert asked
