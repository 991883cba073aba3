"""Two epochs of a split: the same samples, in other orders."""

import torch

from gemkit.testing import tiny_data

source = tiny_data().train
first, second = ([labels for _, labels in source.batches(10, seed=0, epoch=e)] for e in (0, 1))
assert len(first) == source.steps(10) == 4
assert not torch.equal(torch.cat(first), torch.cat(second))
assert torch.equal(torch.cat(first).bincount(), source.targets().bincount())
