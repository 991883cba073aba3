"""What the metrics of a stage say about its course."""

import json

from gemkit.study.tracks import bound_in


def test_the_bound_counts_epochs_also_where_the_clock_is_rewound(tmp_path):
    epoch, rewound = {"event": "epoch", "phase": "search"}, {"event": "freeze", "step": 10}
    lines = [epoch, epoch, rewound | {"alive": 8, "prunable": 10}]
    lines += [epoch, epoch, rewound | {"alive": 64, "prunable": 100}]
    lines += [{"event": "epoch", "phase": "finetune"}, {"event": "collapse"}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert bound_in(file) == [(2.0, 0.8), (4.0, 0.64)]
