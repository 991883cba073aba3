"""Data sets: batches, splits, and the built-in data sets.

`source` holds `Data` and `TensorSource`; `embedded` and `fake` need no download.
"""

from gemkit.data.source import Data, Source, TensorSource
from gemkit.data.splits import channel_statistics, split_stratified

__all__ = ["Data", "Source", "TensorSource", "channel_statistics", "split_stratified"]
