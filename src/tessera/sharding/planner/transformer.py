"""The dimensions of a transformer, and what follows from them: parameters, FLOPs, bytes."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Transformer:
    """A stack of equal blocks of attention and MLP between an embedding and a head.

    `feedforward` is the inner extent of the MLP (of one expert, where there are several), `gated` says that it has
    three weights (SwiGLU) and not two. `experts` of 1 is a dense model; a token goes to `top_k` of them and to
    `shared_experts` more. `fused_attention` says that scores are never written to memory, `dropout` that the block has
    dropout, `causal` that half of the scores are never computed.
    """

    layers: int
    hidden: int
    heads: int
    feedforward: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    head_extent: int = 0
    gated: bool = False
    experts: int = 1
    top_k: int = 1
    shared_experts: int = 0
    fused_attention: bool = True
    causal: bool = True
    dropout: bool = False
    name: str = "transformer"

    def __post_init__(self) -> None:
        """Raises ArgumentError for extents below one."""
        extents = (self.layers, self.hidden, self.heads, self.feedforward, self.vocabulary, self.sequence, self.experts)
        if min(extents) < 1 or not 0 < self.top_k <= self.experts:
            raise ArgumentError(f"{self.name}: extents and counts of a transformer are at least 1: {self}")

    @property
    def queries(self) -> int:
        """The extent of all queries together."""
        return self.heads * (self.head_extent or self.hidden // self.heads)

    @property
    def keys(self) -> int:
        """The extent of all keys together, and that of all values."""
        return self.queries * (self.kv_heads or self.heads) // self.heads

    @property
    def attention_parameters(self) -> int:
        """Weights of one block's attention."""
        return self.hidden * (2 * self.queries + 2 * self.keys)

    @property
    def expert_parameters(self) -> int:
        """Weights of one MLP."""
        return (3 if self.gated else 2) * self.hidden * self.feedforward

    @property
    def block_parameters(self) -> int:
        """Weights of one block, all experts included."""
        return self.attention_parameters + (self.experts + self.shared_experts) * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding; the head has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, embedding and head apart."""
        return self.layers * self.block_parameters + 2 * self.embedding_parameters

    @property
    def linear_flops(self) -> float:
        """FLOPs of a block's weights for one token, forward."""
        used = self.top_k if self.experts > 1 else 1
        return 2.0 * (self.attention_parameters + (used + self.shared_experts) * self.expert_parameters)

    @property
    def attention_flops(self) -> float:
        """FLOPs of a block's scores and weighted values for one token, forward."""
        return 4.0 * self.sequence * self.queries * (0.5 if self.causal else 1.0)

    @property
    def head_flops(self) -> float:
        """FLOPs of the head for one token, forward."""
        return 2.0 * self.embedding_parameters

    @property
    def model_flops(self) -> float:
        """FLOPs of one token, forward and backward, as throughputs are published: nothing recomputed."""
        return 3.0 * (self.layers * (self.linear_flops + self.attention_flops) + self.head_flops)
