"""The transformer computes what torch's own encoder does, and refuses what it cannot take."""

import pytest
import torch
from tiny import tiny_data
from torch import nn

from gemkit import Data, prunable_names
from gemkit.core.errors import DataError, ModelError
from gemkit.models.signal import Signal, trace
from gemkit.models.transformer import Transformer

TOKENS = torch.arange(40).reshape(4, 10) * 7 % 24


def reference(ours, width, heads, *, bias):
    """Build torch's encoder with the weights of ours."""
    layers = []
    for block in ours.blocks:
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            2 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
            bias=bias,
        )
        attention = block.attention
        inner = (attention.query, attention.key, attention.value)
        layer.self_attn.in_proj_weight.data = torch.cat([one.weight for one in inner])
        pairs = [
            (layer.self_attn.out_proj, attention.out),
            (layer.linear1, block.fc1),
            (layer.linear2, block.fc2),
        ]
        if bias:
            layer.self_attn.in_proj_bias.data = torch.cat([one.bias for one in inner])
            pairs += [(layer.norm1, block.norm1), (layer.norm2, block.norm2)]
        for theirs, own in pairs:
            theirs.load_state_dict(own.state_dict())
        layers.append(layer)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("bias", [False, True])
def test_it_computes_what_torchs_encoder_does(bias):
    torch.manual_seed(0)
    part = Transformer(width=12, heads=3, bias=bias, norm="affine" if bias else "plain")
    ours = part.build((10,), 5)
    for parameter in ours.parameters():  # norms too
        nn.init.normal_(parameter, std=0.5)
    theirs = reference(ours, 12, 3, bias=bias)
    x = ours.tokens(TOKENS) + ours.positions(torch.arange(10))
    expected = ours.classifier(ours.norm(theirs(x)).mean(1))
    torch.testing.assert_close(ours(TOKENS), expected)


def test_signal_reaches_every_layer_and_embeddings_are_not_pruned():
    torch.manual_seed(0)
    model = Transformer().build((10,), 4)
    names = prunable_names(model)
    assert not any("tokens" in name or "positions" in name for name in names)
    assert sum("attention" in name for name in names) == 8
    assert trace(model, names, (TOKENS, torch.arange(4))) == Signal()


def test_the_order_of_tokens_matters():
    torch.manual_seed(0)
    model = Transformer().build((10,), 4)
    assert not torch.allclose(model(TOKENS), model(TOKENS.flip(1)))


@pytest.mark.parametrize("norm", ["plain", "affine"])
def test_layer_norms_are_affine_only_if_configured(norm):
    model = Transformer(norm=norm).build((10,), 4)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5
    assert {one.weight is not None for one in norms} == {norm == "affine"}


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ModelError, match="5 heads do not divide a width of 32"):
        Transformer(heads=5).build((10,), 4)


def tokens(highest):
    pair = (torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1]))
    last = (torch.tensor([[0, highest], [2, 3]]), torch.tensor([0, 1]))
    return Data.of_tensors(train=pair, validation=pair, test=last)


def test_tokens_beyond_the_vocabulary_are_refused():
    Transformer(vocabulary=8).check_data(tokens(7))
    with pytest.raises(DataError, match=r"of 8 tokens, 0 to 7, .* holds token 8; .*vocabulary=9"):
        Transformer(vocabulary=8).check_data(tokens(8))


def test_of_a_stream_the_first_batches_are_looked_at():
    loads = Counted([(torch.tensor([[1, 8]]), torch.tensor([0]))] * 50)
    data = Data.of_loaders(train=loads, validation=loads, test=loads, classes=2)
    made = loads.read
    with pytest.raises(DataError, match=r"holds token 8"):
        Transformer(vocabulary=8).check_data(data)
    assert loads.read == made, "nothing is read"


class Counted(list):
    """Batches that count how many of them are read."""

    read = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.read += 1
            yield batch


def test_values_are_refused():
    with pytest.raises(DataError, match=r"takes tokens, int64, .* are values; models 'mlp'"):
        Transformer().check_data(tiny_data(shape=(6,)))
    with pytest.raises(DataError, match=r"sequences of tokens, not inputs of shape \[2, 6\]"):
        Transformer().build((2, 6), 3)
