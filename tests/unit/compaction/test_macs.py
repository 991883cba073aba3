"""Multiplications: attention and 3-D convolutions too, against PyTorch's own counter."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gemkit.compaction.macs import count_macs


class SelfAttention(nn.Module):
    """Attention of PyTorch's module over a sequence of features."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Crossed(SelfAttention):
    """Keys and values that are narrower and fewer than queries."""

    def __init__(self):
        super().__init__(kdim=3, vdim=5, add_zero_attn=True)

    def forward(self, x):
        return self.attention(x, x[:, :4, :3], x[:, :4, :5])[0]


class Fused(nn.Module):
    """Attention as timm's networks write it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, key=k, value=v[..., :4])
        return self.out(attended.transpose(1, 2).flatten(2))


class Volumes(nn.Module):
    """3-D convolutions, one of them in groups."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(2, 4, 3, padding=1, stride=2)
        self.second = nn.Conv3d(4, 4, 3, groups=2, padding=1)

    def forward(self, x):
        return self.second(self.first(x))


NETWORKS = {
    "multihead": (SelfAttention, (6, 8)),
    "crossed": (Crossed, (6, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (6, 8)),
    "fused": (Fused, (6, 8)),
    "volumes": (Volumes, (2, 4, 4, 4)),
}


def counted_by_torch(model, shape):
    """Count with PyTorch's counter, without the fused kernels that it does not know."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model.eval()(torch.zeros(1, *shape))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", NETWORKS)
def test_every_multiplication_is_counted_once(name):
    make, shape = NETWORKS[name]
    model = make()
    assert count_macs(model, shape).total == counted_by_torch(model, shape)
    assert count_macs(model, shape).nonzero == count_macs(model, shape).total


def test_zero_weights_of_attention_do_not_multiply():
    model = SelfAttention()
    whole = count_macs(model, (6, 8))
    with torch.no_grad():
        model.attention.in_proj_weight[:8] = 0  # all of the projection of queries
        model.attention.out_proj.weight[0] = 0
    pruned = count_macs(model, (6, 8))
    assert pruned.total == whole.total == 6 * 4 * 64 + 2 * 6 * 6 * 8
    assert whole.nonzero - pruned.nonzero == 6 * (64 + 8)
