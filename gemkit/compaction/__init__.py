"""Compaction: the channels that a ticket leaves without use are taken out of the network."""

from gemkit.compaction.files import load_compact, save_compact
from gemkit.compaction.finetuning import finetune
from gemkit.compaction.smaller import Compact, Width, compact, difference

__all__ = [
    "Compact",
    "Width",
    "compact",
    "difference",
    "finetune",
    "load_compact",
    "save_compact",
]
