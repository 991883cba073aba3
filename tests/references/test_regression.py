"""Every pruner finds what it found when it was recorded, and its runs resume to the same bits."""

from collections import defaultdict

import pytest
import torch

from benchmarks import regression
from benchmarks.regression import Change, Finding, arrays_of, carry_out, compare, examine
from benchmarks.regression_cases import cases, registry
from gemkit.builtin.regularizers import L2
from gemkit.parts.recipe import ROLES
from gemkit.plugins.registry import KIND_OF_ROLE
from gemkit.training.trainer import Trainer

RECORD = regression.read()


@pytest.mark.parametrize("name", cases())
def test_a_pruner_finds_what_was_recorded(name):
    """After an intended change, renew the record: python -m benchmarks.regression --write."""
    assert examine(name, RECORD).faults() == []


def test_the_record_has_no_other_cases():
    assert list(RECORD.cases) == list(cases()), f"run `{regression.RENEW}`"


def test_the_record_is_small():
    assert regression.RECORD.stat().st_size < 500_000


def test_every_part_is_in_some_case():
    used = defaultdict(set)
    for case in cases().values():
        used["objectives"].add(case.objective)
        for role, part in case.recipe().parts().items():
            used[KIND_OF_ROLE[role]].add(part.name)
    for kind in set(KIND_OF_ROLE.values()):
        assert used[kind] == set(registry().parts[kind]), kind
    assert set(KIND_OF_ROLE) == set(ROLES)


def test_every_optimizer_is_in_some_case():
    used = {case.plan.get("optimizer", "sgd") for case in cases().values()}
    assert used == {"sgd", "adam", "adamw"}


# --- the net catches changes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def snip():
    return carry_out(cases()["snip"])


def test_a_slightly_stronger_penalty_is_reported_where_there_is_one(monkeypatch):
    whole = L2.add_gradient_

    def stronger(self, gradients, values, now):
        whole(replace_weight(self, 1.01), gradients, values, now)

    monkeypatch.setattr(L2, "add_gradient_", stronger)
    faults = examine("gem_miner", RECORD._replace(environment={})).faults()
    assert any(fault.startswith("scores of stem.weight: ") for fault in faults)
    assert not any("resumed" in fault for fault in faults)
    assert examine("gem_miner, l1", RECORD).faults() == []


def replace_weight(part, factor):
    return part.model_copy(update={"weight": factor * part.weight})


def test_a_flipped_entry_of_a_mask_is_reported_with_its_layer(snip):
    known = arrays_of(snip)
    flipped = snip["mask"]["wide.weight"].clone()
    flipped[1, 2, 0, 0] ^= True
    changed = snip | {"mask": snip["mask"] | {"wide.weight": flipped}}
    [change] = compare(changed, known)
    assert str(change) == "mask of wide.weight: 1 of 144 differ"
    assert Finding(changed, [change], [], exact=False).faults() == [str(change)]


@pytest.mark.parametrize("stage", ["weights", "rest", "tuned state"])
def test_a_last_bit_is_reported_with_its_stage_and_layer(snip, stage):
    layer, tensor = next(iter(snip[stage].items()))
    moved = tensor.clone()
    moved.view(-1)[0] = torch.nextafter(moved.view(-1)[0], torch.tensor(9.0, dtype=moved.dtype))
    [change] = compare(snip | {stage: snip[stage] | {layer: moved}}, arrays_of(snip))
    assert change[:4] == (stage, layer, 1, tensor.numel())
    assert 0 < change.largest < 1e-15


def test_last_bits_must_be_equal_only_in_the_environment_of_the_record():
    bits = Change("scores", "head.weight", 3, 40, 1e-15)
    assert Finding({}, [bits], [], exact=False).faults() == []
    assert Finding({}, [bits], [], exact=True).faults() == [
        "scores of head.weight: 3 of 40 differ, by 1.0e-15 of the largest entry"
    ]
    for larger in (1e-9, float("nan")):
        assert Finding({}, [bits._replace(largest=larger)], [], exact=False).faults()


def test_a_run_that_loses_its_momentum_when_resumed_is_reported(monkeypatch):
    monkeypatch.setattr(Trainer, "load_state_dict", lambda self, state: None)
    faults = examine("gem_miner", RECORD).faults()
    assert faults
    assert all(fault.startswith("resumed: ") for fault in faults)


def test_another_network_is_reported(snip):
    smaller = snip | {"weights": {"head.weight": snip["weights"]["head.weight"]}}
    [change] = compare(smaller, arrays_of(snip))
    assert str(change).startswith("weights of another network: 40 of 236 differ")


def test_a_pruner_without_a_record_is_told_the_command():
    record = RECORD._replace(cases={})
    assert examine("random", record).faults() == [
        "not recorded; run `python -m benchmarks.regression --write`"
    ]


def test_a_record_reads_back_equal(snip, tmp_path):
    file = tmp_path / "record.safetensors"
    regression.write({"snip": snip, "again": snip}, file)
    record = regression.read(file)
    assert record.environment == regression.environment()
    assert [compare(snip, record.cases[name]) for name in ("snip", "again")] == [[], []]


def test_the_command_prints_a_row_for_a_case(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["regression", "random"])
    regression.main()
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("random"))
    assert row.split()[1] == "equal"


def test_the_command_fails_on_a_difference(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["regression", "random"])
    monkeypatch.setattr(regression, "read", lambda: RECORD._replace(cases={}))
    with pytest.raises(SystemExit) as ended:
        regression.main()
    assert ended.value.code == 1
    assert "random: not recorded; run" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["nonsense"], ["--write", "random"]])
def test_the_command_refuses_what_it_cannot_do(words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["regression", *words])
    with pytest.raises(SystemExit) as ended:
        regression.main()
    assert ended.value.code == 2
