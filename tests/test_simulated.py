"""Updates on a simulated device, which once known to torch stays, so in a process of their own."""

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parent / "on_simulated_device.py"


def test_updates_on_a_simulated_device():
    words = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", str(FILE)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=FILE.parent.parent)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
