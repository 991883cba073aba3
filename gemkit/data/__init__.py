"""Data sets as tensors: fast batches, fair splits, and the sets that gemkit ships.

`source` holds the loader; `embedded` and `fake` register data sets that need no download.
"""

from gemkit.data.source import Data, Source, TensorSource
from gemkit.data.splits import channel_statistics, split_stratified

__all__ = ["Data", "Source", "TensorSource", "channel_statistics", "split_stratified"]
