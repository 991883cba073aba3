"""Tests on a simulated device, which stays once torch knows it: in a process of their own.

`tests/simulated` holds those of the device itself. Tests anywhere that take the fixture `device` or
`fabric` run on it, too.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemkit.testing import simulated

TESTS = Path(__file__).parents[1]
TAKING_A_DEVICE = re.compile(r"^def test_\w+\([^)]*\b(device|fabric)\b", re.MULTILINE)
pytestmark = pytest.mark.skipif(
    not simulated.AVAILABLE, reason="this torch takes no device that is written in Python"
)


def on_simulated_device(*words):
    python = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider"]
    words = [*python, "--device", simulated.NAME, *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, cwd=TESTS.parent)


@pytest.mark.parametrize("group", ["of the device", "of everything else"])
def test_on_a_simulated_device(group):
    paths = [TESTS / "simulated"]
    if group == "of everything else":
        files = sorted(TESTS.glob("*/**/test_*.py"))
        paths = [file for file in files if TAKING_A_DEVICE.search(file.read_text())]
    done = on_simulated_device(*paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed(, \d+ (deselected|xfailed))* in ", done.stdout, re.MULTILINE), (
        done.stdout
    )


FAILING = """
import torch

def test_mixing(device):
    torch.ones(2, device=device) + torch.ones(2)
"""


def test_a_failure_on_the_device_is_told_by_name(tmp_path, monkeypatch):
    (tmp_path / "test_mixed.py").write_text(FAILING)
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = on_simulated_device("-p", "conftest", tmp_path)
    assert done.returncode == 1
    assert "add: a tensor of the host meets one of the device" in done.stdout
    assert re.search(
        r"^FAILED .*test_mixed.py::test_mixing\[simulated\]", done.stdout, re.MULTILINE
    )
