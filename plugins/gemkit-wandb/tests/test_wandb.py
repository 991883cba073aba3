"""The observer keeps its contract, and what it logs can be read back."""

import gc
import json

import pytest

wandb = pytest.importorskip("wandb")  # not among the packages that gemkit's own tests need

import gemkit_wandb  # noqa: E402
from gemkit_wandb import WandB  # noqa: E402

from gemkit import load_plugins, search  # noqa: E402
from gemkit.core.events import EpochEnded  # noqa: E402
from gemkit.testing import CPU, PLAN, contract, tiny_data, tiny_net  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of wandb's own


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


test_plugin = contract(gemkit_wandb)


def test_a_search_can_be_read_back(tmp_path):
    listener, heard = WandB().listen(tmp_path), []

    def losses(event):
        if isinstance(event, EpochEnded):
            heard.append(event.loss)

    search(
        load_plugins(only=()).recipe("gem_miner", options={"schedule.every": 1}),
        tiny_net(),
        tiny_data(),
        density=0.5,
        plan=PLAN,
        runtime=CPU,
        on_collapse="warn",
        observers=[listener, losses],
    )
    del listener
    gc.collect()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert len(heard) == 3
    for loss in heard:
        assert json.dumps(loss).encode() in content
