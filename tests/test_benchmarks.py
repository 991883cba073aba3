"""Rows of results say what is needed to judge them, and to measure again."""

import json
import platform

from benchmarks import digits
from benchmarks.host import host
from gemkit import Plan


def test_a_row_holds_plans_versions_and_host():
    run = {"pruner": "gem_miner", "density": 0.5, "seed": 3, "epochs": 4}
    row = json.loads(json.dumps(digits.measure(run), allow_nan=False))
    assert {key: row[key] for key in run} == run
    for name in ("plan", "finetune_plan"):
        plan = Plan.model_validate_json(json.dumps(row[name]))
        assert plan.epochs == 4
        assert plan.lr is not None, "what was left open is written out"
        assert plan.weight_decay is not None
    assert row["plan"]["lr"] > row["finetune_plan"]["lr"]
    assert {"gemkit", "torch"} <= set(row["versions"])
    assert row["host"] == host()


def test_a_host_is_described_but_not_named():
    described = host()
    assert described["cores"] >= described["threads"] >= 1
    assert described["cpu"]
    assert platform.node() not in described.values()
