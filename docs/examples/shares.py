"""Two allocations of 6 of 12 weights: layers compete, or keep as many each."""

import torch

from gemkit import Allocation, select
from gemkit.core.tensors import budget, total


class Alike(Allocation):
    """As many weights for every layer."""

    name = "alike"

    def keep(self, importance, alive, density):
        return {(name,): budget(total(alive), density) // len(alive) for name in alive}


importance = {"a": torch.arange(6.0), "b": torch.arange(6.0) + 3}
alike = select(importance, 0.5, allocation=Alike())
compete = select(importance, 0.5, allocation="global")
assert [int(mask.sum()) for mask in alike.values()] == [3, 3]
assert [int(mask.sum()) for mask in compete.values()] == [2, 4]
