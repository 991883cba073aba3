"""Compaction: the channels that a ticket leaves without use are taken out of the network."""

from gemkit.compaction.compact import Compact, Width, compact, difference

__all__ = ["Compact", "Width", "compact", "difference"]
