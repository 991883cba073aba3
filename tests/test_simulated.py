"""Updates on a simulated device, which once known to torch stays, so in a process of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

FILE = Path(__file__).parent / "on_simulated_device.py"


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes no device that is written in Python",
)
def test_updates_on_a_simulated_device():
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FILE)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=FILE.parent.parent)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
