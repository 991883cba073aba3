"""Compaction: remove the channels that a ticket does not use from the network."""

from gemkit.compaction.compact_network import Compact, Width, difference
from gemkit.compaction.compact_network import compact as _compact
from gemkit.compaction.files import load_compact, save_compact
from gemkit.compaction.finetuning import finetune
from gemkit.core.memory import memory_explained

compact = memory_explained()(_compact)

__all__ = [
    "Compact",
    "Width",
    "compact",
    "difference",
    "finetune",
    "load_compact",
    "save_compact",
]
