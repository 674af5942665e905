"""An emitter whose values are torch tensors: runs tile bodies eagerly. Reductions are along the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tessera import dtypes
from tessera.dtypes import DType
from tessera.ops.emitter import Comparison, Reduction


@dataclass(frozen=True)
class Value:
    """A torch tensor with the dtype that a body sees."""

    tensor: torch.Tensor

    @property
    def dtype(self) -> DType:
        """The element type."""
        return dtypes.dtype_of(self.tensor.dtype)


class TorchEmitter:
    """`ops.emitter.Emitter` on torch tensors; refuses operands of different dtypes, as a lowering would."""

    def __init__(self, extent: int = 1) -> None:
        self.reduced = extent

    def constant(self, value: float | int | bool, like: Value | DType, /) -> Value:
        dtype = like if isinstance(like, DType) else like.dtype
        return Value(torch.tensor(value, dtype=dtype.torch))

    def _same(self, *values: Value) -> list[torch.Tensor]:
        assert len({value.dtype for value in values}) == 1, [value.dtype for value in values]
        return [value.tensor for value in values]

    def add(self, a: Value, b: Value, /) -> Value:
        return Value(torch.add(*self._same(a, b)))

    def sub(self, a: Value, b: Value, /) -> Value:
        return Value(torch.sub(*self._same(a, b)))

    def mul(self, a: Value, b: Value, /) -> Value:
        return Value(torch.mul(*self._same(a, b)))

    def div(self, a: Value, b: Value, /) -> Value:
        assert a.dtype.kind == "float"
        return Value(torch.div(*self._same(a, b)))

    def pow(self, a: Value, b: Value, /) -> Value:
        return Value(torch.pow(*self._same(a, b)))

    def maximum(self, a: Value, b: Value, /) -> Value:
        return Value(torch.maximum(*self._same(a, b)))

    def minimum(self, a: Value, b: Value, /) -> Value:
        return Value(torch.minimum(*self._same(a, b)))

    def neg(self, a: Value, /) -> Value:
        return Value(torch.neg(a.tensor))

    def abs(self, a: Value, /) -> Value:
        return Value(torch.abs(a.tensor))

    def exp(self, a: Value, /, *, approximate: bool = False) -> Value:
        return Value(torch.exp(a.tensor))

    def log(self, a: Value, /) -> Value:
        return Value(torch.log(a.tensor))

    def sqrt(self, a: Value, /) -> Value:
        return Value(torch.sqrt(a.tensor))

    def rsqrt(self, a: Value, /) -> Value:
        return Value(torch.rsqrt(a.tensor))

    def tanh(self, a: Value, /, *, approximate: bool = False) -> Value:
        return Value(torch.tanh(a.tensor))

    def erf(self, a: Value, /, *, approximate: bool = False) -> Value:
        return Value(torch.erf(a.tensor))

    def expm1(self, a: Value, /) -> Value:
        return Value(torch.expm1(a.tensor))

    def log1p(self, a: Value, /) -> Value:
        return Value(torch.log1p(a.tensor))

    def sin(self, a: Value, /) -> Value:
        return Value(torch.sin(a.tensor))

    def cos(self, a: Value, /) -> Value:
        return Value(torch.cos(a.tensor))

    def floor(self, a: Value, /) -> Value:
        return Value(torch.floor(a.tensor))

    def ceil(self, a: Value, /) -> Value:
        return Value(torch.ceil(a.tensor))

    def round(self, a: Value, /) -> Value:
        return Value(torch.round(a.tensor))

    def compare(self, kind: Comparison, a: Value, b: Value, /) -> Value:
        assert a.dtype is not dtypes.bool_, "an i1 has a sign"
        return Value(getattr(torch, kind)(*self._same(a, b)))

    def select(self, condition: Value, a: Value, b: Value, /) -> Value:
        assert condition.dtype is dtypes.bool_
        first, second = self._same(a, b)
        return Value(torch.where(condition.tensor, first, second))

    def logical_and(self, a: Value, b: Value, /) -> Value:
        assert a.dtype is b.dtype is dtypes.bool_
        return Value(a.tensor & b.tensor)

    def logical_or(self, a: Value, b: Value, /) -> Value:
        assert a.dtype is b.dtype is dtypes.bool_
        return Value(a.tensor | b.tensor)

    def logical_not(self, a: Value, /) -> Value:
        assert a.dtype is dtypes.bool_
        return Value(~a.tensor)

    def bitwise_and(self, a: Value, b: Value, /) -> Value:
        return Value(torch.bitwise_and(*self._same(a, b)))

    def bitwise_xor(self, a: Value, b: Value, /) -> Value:
        return Value(torch.bitwise_xor(*self._same(a, b)))

    def shift_right(self, a: Value, b: Value, /) -> Value:
        return Value(torch.bitwise_right_shift(*self._same(a, b)))

    def cast(self, a: Value, dtype: DType, /) -> Value:
        return Value(a.tensor.to(dtype.torch))

    def reduce(self, kind: Reduction, a: Value, /) -> Value:
        assert a.dtype is not dtypes.bool_, "an i1 has a sign"
        if kind == "add":
            return Value(a.tensor.sum(-1, keepdim=True))
        if kind == "mul":
            return Value(a.tensor.prod(-1, keepdim=True))
        return Value(a.tensor.amax(-1, keepdim=True) if kind == "max" else a.tensor.amin(-1, keepdim=True))

    def extent(self, a: Value, /) -> Value:
        return Value(torch.tensor(float(self.reduced), dtype=a.tensor.dtype))

    def position(self) -> Value:
        return Value(torch.arange(self.reduced))

    def convolve(self, image: Value, weights: Value, /) -> Value:
        """With the record's default attributes."""
        pixels, window = self._same(image, weights)
        return Value(torch.nn.functional.conv2d(pixels.permute(0, 3, 1, 2), window).permute(0, 2, 3, 1))

    def attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: Value,
        mask: Value | None,
        causal: bool,
        scored: Callable[[Value], Value] | None = None,
        /,
    ) -> Value:
        score = torch.matmul(*self._same(q, Value(k.tensor.mT))) * scale.tensor
        if scored is not None:
            score = scored(Value(score)).tensor
        if mask is not None:
            score = score.masked_fill(~mask.tensor, -torch.inf) if mask.dtype is dtypes.bool_ else score + mask.tensor
        if causal:
            seen = torch.ones(score.shape[-2:], dtype=torch.bool).tril(score.shape[-1] - score.shape[-2])
            score = score.masked_fill(~seen, -torch.inf)
        return Value(torch.softmax(score, -1) @ v.tensor)

    def contract(self, a: Value, b: Value, /) -> Value:
        return Value(torch.matmul(*self._same(a, b)))
