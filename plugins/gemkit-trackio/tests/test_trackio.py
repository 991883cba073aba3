"""The observer keeps its contract, and what it logs can be read back."""

import gc
import json
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(tempfile.mkdtemp(prefix="trackio-"))
os.environ["TRACKIO_DIR"] = str(FOLDER)  # trackio reads it when it is imported
pytest.importorskip("trackio")  # not among the packages that gemkit's own tests need

import gemkit_trackio  # noqa: E402
from gemkit_trackio import Trackio  # noqa: E402

from gemkit import load_plugins, search  # noqa: E402
from gemkit.core.events import EpochEnded  # noqa: E402
from gemkit.testing import CPU, PLAN, contract, tiny_data, tiny_net  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of trackio's own

test_plugin = contract(gemkit_trackio)


def test_a_search_can_be_read_back(tmp_path):
    listener, heard = Trackio(project="here").listen(tmp_path), []

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
    with sqlite3.connect(FOLDER / "here.db") as store:
        rows = [json.loads(row) for (row,) in store.execute("select metrics from metrics")]
    found = [row["search/loss"] for row in rows if "search/loss" in row]
    assert found == pytest.approx(heard)
