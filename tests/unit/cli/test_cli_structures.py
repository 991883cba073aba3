"""Structured tickets of whole runs, counted weight by weight, and what compaction gains."""

import pytest
from cli_runs import TINY, answer, commands_in

from gemkit import Ticket

NM = ("--structure", "nm", "-o", "structure.n=2", "-o", "structure.m=4", "--density", "0.5")
PRUNERS = {
    "snip": (),
    "magnitude": (),
    "synflow": (),
    "edge_popup": (),
    "gem_miner": ("-o", "finalize=alive", "-o", "schedule.every=1"),
}


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


def blocks_of(mask, size):
    """Yield the kept weights of every block of inputs, at every output and place of the kernel."""
    flat = mask.flatten(2) if mask.ndim > 2 else mask[..., None]
    outputs, inputs, places = flat.shape
    for output in range(outputs):
        for place in range(places):
            for start in range(0, inputs, size):
                yield sum(bool(flat[output, start + own, place]) for own in range(size))


@pytest.mark.parametrize("pruner", PRUNERS)
def test_every_block_of_four_keeps_exactly_two(pruner, gemkit):
    result = gemkit("run", "--pruner", pruner, *TINY, *PRUNERS[pruner], *NM, "--out", "RUN")
    assert result.exit_code == 0, result.stderr
    assert "not pruned, because of the recipe's prunable or structure: 'conv1.weight'" in (
        result.stderr
    )
    for stage in ("ticket", "finetuned"):
        masks = Ticket.load(f"RUN/{stage}.safetensors").mask
        assert list(masks) == [f"conv{n}.weight" for n in (2, 3, 4)] + ["classifier.weight"]
        counted = [count for mask in masks.values() for count in blocks_of(mask, 4)]
        assert set(counted) == {2}
        assert 4 * len(counted) == sum(mask.numel() for mask in masks.values())


@pytest.mark.parametrize("pruner", ["magnitude", "edge_popup"])
def test_compaction_removes_every_pruned_filter(pruner, gemkit):
    words = ("--structure", "filters", "--allocation", "uniform", "--density", "0.5")
    result = gemkit("run", "--pruner", pruner, *TINY, *words, *PRUNERS[pruner], "--out", "RUN")
    assert result.exit_code == 0, result.stderr
    masks = Ticket.load("RUN/ticket.safetensors").mask
    assert list(masks) == [f"conv{n}.weight" for n in (1, 2, 3, 4)]
    whole = {name: [bool(one.all()) for one in mask] for name, mask in masks.items()}
    for name, mask in masks.items():
        assert whole[name] == [bool(one.any()) for one in mask]
    found = answer(gemkit("compact", "RUN", "--json"))
    widths = [3, *(sum(own) for own in whole.values())]
    areas = [64, 64, 16, 16]
    convolutions = sum(
        9 * area * one * other
        for area, one, other in zip(areas, widths[:-1], widths[1:], strict=True)
    )
    assert found["multiplications"]["compact"] == convolutions + 4 * widths[-1]
    assert [layer["kept"] for layer in found["layers"]] == widths[1:]
    assert found["error"] < 1e-9
