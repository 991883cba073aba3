"""The overlap of masks, and where tickets are read."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reports import record

from gemkit.core.errors import TicketError
from gemkit.report.groups import group
from gemkit.report.overlap import by_chance, confined, jaccard, overlaps
from gemkit.report.records import records_from
from gemkit.tickets.info import TicketInfo
from gemkit.tickets.ticket import Layer, Ticket


def saved(path, mask):
    path.parent.mkdir(parents=True, exist_ok=True)
    tensor = torch.tensor(mask, dtype=torch.bool)
    unknown = dict.fromkeys(("recipe", "model", "dataset", "shape", "classes", "alive"))
    info = TicketInfo(
        **{"pruner": "x", "density_target": 0.5, "seed": 0, "epochs": 0, "stage": "found"},
        **{**unknown, "versions": {}, "history": []},
    )
    Ticket({"a": tensor}, {"a": torch.ones(len(mask))}, info).save(path)


def compared(tmp_path, **tickets):
    records = [
        record(name.split("_")[0], seed=int(name.split("_")[1]), ticket=path)
        for name, path in tickets.items()
    ]
    return overlaps(group(records_from(records)), tmp_path)


def test_methods_are_compared_by_seed_and_seeds_within_a_method(tmp_path):
    saved(tmp_path / "a.t", [1, 1, 0, 0])
    saved(tmp_path / "b.t", [1, 0, 1, 0])
    saved(tmp_path / "c.t", [1, 1, 1, 0])
    found, problems = compared(tmp_path, snip_0="a.t", snip_1="b.t", grasp_0="c.t")
    assert problems == ()
    means = {(one.first, one.second): (one.mean, one.pairs, one.same_seed) for one in found}
    assert means == {
        ("snip", "snip"): (pytest.approx(1 / 3), 1, False),
        ("snip", "grasp"): (pytest.approx(2 / 3), 1, True),
    }
    [within] = [one for one in found if one.first == one.second]
    assert within.chance == pytest.approx(1 / 3), "2 · 2/4 in common of 4 − 1"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=70))
def test_packed_masks_give_the_index_of_sets(pairs):
    first, second = ({k for k, pair in enumerate(pairs) if pair[side]} for side in (0, 1))
    packed = [np.packbits(np.array([pair[side] for pair in pairs])) for side in (0, 1)]
    expected = len(first & second) / len(first | second) if first | second else 1.0
    assert jaccard(*packed) == expected


def test_chance_is_what_random_masks_give():
    rng = np.random.default_rng(0)
    sizes, kept = (400, 2000), ((200, 100), (40, 500))
    layers = [[Layer("l", (n,), k, n) for n, k in zip(sizes, own, strict=True)] for own in kept]

    def drawn(own):
        parts = [rng.permutation(np.arange(n) < k) for n, k in zip(sizes, own, strict=True)]
        return np.packbits(np.concatenate(parts))

    seen = np.mean([jaccard(drawn(kept[0]), drawn(kept[1])) for _ in range(300)])
    assert by_chance(*layers) == pytest.approx(seen, abs=0.004)


@pytest.mark.parametrize("path", ["/etc/passwd", "../out.t", "a/../../out.t", "", ".", "a\0b"])
def test_a_path_that_leads_out_is_refused(path, tmp_path):
    with pytest.raises(TicketError, match="is not inside"):
        confined(path, tmp_path)


def test_links_and_damaged_files_are_problems_and_not_errors(tmp_path):
    saved(tmp_path / "out" / "a.t", [1, 0])
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "link.t").symlink_to(tmp_path / "out" / "a.t")
    (inside / "folder").symlink_to(tmp_path / "out")
    (inside / "damaged.t").write_bytes(b"x" * 100)
    os.mkfifo(inside / "pipe.t")
    for path in ("link.t", "folder/a.t", "damaged.t", "pipe.t", "none.t", "../out/a.t"):
        found, problems = compared(inside, snip_0=path, snip_1=path)
        assert found == ()
        assert len(problems) == 1, path


def test_masks_of_other_networks_are_not_compared(tmp_path):
    saved(tmp_path / "a.t", [1, 0])
    saved(tmp_path / "b.t", [1, 0, 1])
    assert compared(tmp_path, snip_0="a.t", grasp_0="b.t").found == ()
