"""A small transformer that classifies sequences of tokens."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gemkit.core.errors import DataError, ModelError
from gemkit.data.source import Data, Source, StreamSource
from gemkit.models.blocks import Shape
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl


def _looked_at(source: Source) -> Iterator[Tensor]:
    """Yield the inputs of a source; of a stream the first batch, since an epoch may be long."""
    if isinstance(source, StreamSource):
        yield source.first[0]
    else:
        yield from (inputs for inputs, _ in source.batches(1024))


class Attention(nn.Module):
    """Multi-head self-attention with a linear layer each for queries, keys, values and outputs."""

    def __init__(self, width: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=bias) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention, then two linear layers with a ReLU; each is normed before and added after."""

    def __init__(self, width: int, heads: int, *, affine: bool, bias: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=affine, bias=bias)
        self.attention = Attention(width, heads, bias=bias)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=affine, bias=bias)
        self.fc1 = nn.Linear(width, 2 * width, bias=bias)
        self.fc2 = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Add both changes."""
        x = x + self.attention(self.norm1(x))
        output: Tensor = x + self.fc2(F.relu(self.fc1(self.norm2(x))))
        return output


class TokenTransformer(nn.Module):
    """Embeddings of tokens and positions, blocks, the mean over positions, a linear classifier."""

    def __init__(
        self,
        embeddings: tuple[nn.Embedding, nn.Embedding],
        blocks: list[Block],
        norm: nn.LayerNorm,
        classifier: nn.Linear,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = embeddings
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.classifier = norm, classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits for sequences [N, length] of int64 tokens."""
        x = self.blocks(self.tokens(tokens) + self.positions.weight)
        logits: Tensor = self.classifier(self.norm(x).mean(1))
        return logits


class Transformer(ModelPart):
    """A transformer encoder that classifies sequences of tokens by the mean over positions.

    By default there are no biases, and layer norm has no learned scale and shift. Embeddings of
    tokens and positions are trained but not pruned, unless `prunable.kinds` names them.
    """

    name: ClassVar[str] = "transformer"

    vocabulary: int = Field(
        default=32, ge=1, le=1_000_000, description="kinds of tokens; inputs are below this"
    )
    width: int = Field(default=32, ge=1, le=4096, description="channels of every position")
    heads: int = Field(default=2, ge=1, le=64, description="heads of attention; they divide width")
    blocks: int = Field(
        default=2,
        ge=0,
        le=64,
        description="blocks of attention and linear layers; with 0, positions do not interact",
    )
    norm: Literal["plain", "affine"] = Field(
        default="plain", description="layer norm without ('plain') or with learned scale and shift"
    )
    bias: bool = Field(default=False, description="give linear layers biases")

    def check_data(self, data: Data) -> None:
        """Refuse inputs that are not tokens, and tokens beyond the vocabulary.

        Of a stream, the first batch of every split is looked at.
        """
        if not data.indices:
            raise DataError(
                f"model '{self.name}' takes tokens, int64, and the inputs of data set "
                f"'{data.name}' are values; models 'mlp' and 'conv1d' take values"
            )
        sources = (data.train, data.validation, data.test)
        highest = max(int(tokens.max()) for source in sources for tokens in _looked_at(source))
        if highest >= self.vocabulary:
            raise DataError(
                f"model '{self.name}' has a vocabulary of {self.vocabulary:,} tokens, 0 to "
                f"{self.vocabulary - 1}, but data set '{data.name}' holds token {highest}; set "
                f"-o model.vocabulary={highest + 1}"
            )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for sequences of (length,)."""
        if len(shape) != 1:
            raise DataError(
                f"model '{self.name}' takes sequences of tokens, not inputs of shape {list(shape)}"
            )
        if self.width % self.heads:
            raise ModelError(
                f"model '{self.name}': {self.heads} heads do not divide a width of {self.width}; "
                "set -o model.heads=N or -o model.width=N"
            )
        affine = self.norm == "affine"
        return TokenTransformer(
            (nn.Embedding(self.vocabulary, self.width), nn.Embedding(shape[0], self.width)),
            [
                Block(self.width, self.heads, affine=affine, bias=self.bias)
                for _ in range(self.blocks)
            ],
            nn.LayerNorm(self.width, elementwise_affine=affine, bias=self.bias),
            nn.Linear(self.width, classes, bias=self.bias),
        )


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the network."""
    return [Transformer]
