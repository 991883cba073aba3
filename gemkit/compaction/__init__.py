"""Compaction: remove the channels that a ticket does not use from the network."""

from gemkit.compaction.compact_network import Compact, Width, compact, difference
from gemkit.compaction.files import load_compact, save_compact
from gemkit.compaction.finetuning import finetune

__all__ = [
    "Compact",
    "Width",
    "compact",
    "difference",
    "finetune",
    "load_compact",
    "save_compact",
]
