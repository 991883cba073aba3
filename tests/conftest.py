"""What every test shares: one thread, and each device this machine has."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# One thread: tests run side by side, and sums do not depend on how work was divided.
torch.set_num_threads(1)

# Tables are as wide as the terminal; here they are always as wide as they may be.
os.environ["COLUMNS"] = "100"

# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile("gemkit", deadline=None)
settings.load_profile("gemkit")

_PRESENT = {
    "cpu": True,
    "cuda": torch.cuda.is_available(),
    "mps": torch.backends.mps.is_available(),
}


@pytest.fixture(params=list(_PRESENT))
def device(request):
    """Run the test once for every device; those that are absent are skipped."""
    if not _PRESENT[request.param]:
        pytest.skip(f"this machine has no {request.param} device")
    return torch.device(request.param)


@pytest.fixture
def little_memory():
    """Let the process grow by 256 MB at most."""
    resource, statm = pytest.importorskip("resource"), Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("only Linux tells how much memory is in use")
    now = int(statm.read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
