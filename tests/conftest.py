"""What every test shares: one thread, and the devices to run on."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from gemkit import Runtime
from gemkit.testing import simulated
from gemkit.training.device import make_fabric

# One thread: tests run side by side, and sums do not depend on how work was divided.
torch.set_num_threads(1)

# Tables are as wide as the terminal; fix its width.
os.environ["COLUMNS"] = "100"

# No deadlines: timing depends on the machine.
LONG = bool(os.environ.get("GEMKIT_LONG"))
EXAMPLES = 200 if LONG else 30
"""Of every property test that names no number of its own."""
settings.register_profile("gemkit", deadline=None, max_examples=EXAMPLES)
settings.load_profile("gemkit")

PRESENT = [
    "cpu",
    *(["cuda"] if torch.cuda.is_available() else []),
    *(["mps"] if torch.backends.mps.is_available() else []),
]
SIMULATED = Path(__file__).parent / "simulated"
"""Tests of the simulated device alone."""


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=[*PRESENT, simulated.NAME],
        help="run only the tests that take a device, on this one; 'simulated' stays in its "
        "process, so tests/end_to_end/test_simulated.py starts one for it",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "one_in(n): run one of n parameter sets of a slow test; with GEMKIT_LONG, all"
    )


def pytest_ignore_collect(collection_path, config):
    elsewhere = config.getoption("device") != simulated.NAME
    return True if elsewhere and collection_path == SIMULATED else None


def pytest_collection_modifyitems(config, items):
    keep(config, items, [LONG or chosen for chosen in one_in(items)])
    if config.getoption("device"):
        takes = ["device" in item.fixturenames or SIMULATED in item.path.parents for item in items]
        keep(config, items, takes)


def one_in(items):
    """Return whether each item is the first of `n`, for tests with that mark."""
    before, chosen = Counter(), []
    for item in items:
        mark, test = item.get_closest_marker("one_in"), (item.path, item.originalname)
        chosen.append(mark is None or before[test] % mark.args[0] == 0)
        before[test] += 1
    return chosen


def keep(config, items, chosen):
    """Leave out the items that are not chosen."""
    left_out = [item for item, mine in zip(items, chosen, strict=True) if not mine]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, mine in zip(items, chosen, strict=True) if mine]


def pytest_generate_tests(metafunc):
    # Contracts choose devices by themselves, clause by clause.
    own = any("device" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "device" in metafunc.fixturenames and not own:
        asked = metafunc.config.getoption("device")
        metafunc.parametrize("device", [asked] if asked else PRESENT, indirect=True)


@pytest.fixture(autouse=True)
def _not_waiting_for_the_disk(monkeypatch):
    """Do not sync files to the disk: no machine loses its power here."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def device(request):
    """Run the test once for every device of this machine, or on the one asked for."""
    return simulated.install() if request.param == simulated.NAME else torch.device(request.param)


@pytest.fixture
def fabric(device):
    """Open the device."""
    if device.type == simulated.NAME:
        return simulated.fabric()
    return make_fabric(Runtime(device=device.type))


@pytest.fixture
def not_under_nohup():
    """Give SIGHUP its usual effect, also where the tests themselves run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def little_memory():
    """Let the process allocate at most 256 MB more."""
    resource, statm = pytest.importorskip("resource"), Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("memory use is only known on Linux")
    now = int(statm.read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
