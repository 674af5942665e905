"""The emitter: the operations that tile bodies are written with.

A body is a function of an emitter and values. The emitter decides what a value is: an expression of a kernel that is
being lowered, or, in tests, a torch tensor. Values carry their dtype; operands of one operation have the same dtype,
and the emitter computes bf16 and fp16 in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, TypeVar

from tessera.dtypes import DType


class TypedValue(Protocol):
    """A value of any emitter."""

    @property
    def dtype(self) -> DType:
        """The element type."""


V = TypeVar("V", bound=TypedValue)

Comparison: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]
Reduction: TypeAlias = Literal["add", "mul", "max", "min"]


class Emitter(Protocol[V]):
    """The operations of tile bodies. All but `reduce`, `contract` and `attend` work element by element."""

    def constant(self, value: float | int | bool, like: V | DType, /) -> V:
        """A literal of the dtype of `like`."""

    def add(self, a: V, b: V, /) -> V:
        """a + b. Integers wrap around, here and below."""

    def sub(self, a: V, b: V, /) -> V:
        """a - b."""

    def mul(self, a: V, b: V, /) -> V:
        """a * b."""

    def div(self, a: V, b: V, /) -> V:
        """a / b, of floats."""

    def pow(self, a: V, b: V, /) -> V:
        """a to the b: C99's pow for floats, repeated multiplication for integers."""

    def maximum(self, a: V, b: V, /) -> V:
        """The larger; NaN if either is NaN."""

    def minimum(self, a: V, b: V, /) -> V:
        """The smaller; NaN if either is NaN."""

    def neg(self, a: V, /) -> V:
        """-a; changes the sign of zero."""

    def abs(self, a: V, /) -> V:
        """The absolute value."""

    def exp(self, a: V, /, *, approximate: bool = False) -> V:
        """e to the a.

        This and other functions of fp32 are exact to about half an ulp. With `approximate`, they may err by a few, and
        be faster: for bodies whose own result is no less exact for it.
        """

    def log(self, a: V, /) -> V:
        """The natural logarithm."""

    def sqrt(self, a: V, /) -> V:
        """The square root, correctly rounded."""

    def rsqrt(self, a: V, /) -> V:
        """1 / sqrt(a)."""

    def tanh(self, a: V, /, *, approximate: bool = False) -> V:
        """The hyperbolic tangent."""

    def erf(self, a: V, /, *, approximate: bool = False) -> V:
        """The error function."""

    def expm1(self, a: V, /) -> V:
        """e to the a, minus 1: exact for small a."""

    def log1p(self, a: V, /) -> V:
        """The natural logarithm of 1 + a: exact for small a."""

    def sin(self, a: V, /) -> V:
        """The sine of a in radians."""

    def cos(self, a: V, /) -> V:
        """The cosine of a in radians."""

    def floor(self, a: V, /) -> V:
        """The largest integer not above."""

    def ceil(self, a: V, /) -> V:
        """The smallest integer not below."""

    def round(self, a: V, /) -> V:
        """The nearest integer, the even one of two."""

    def compare(self, kind: Comparison, a: V, b: V, /) -> V:
        """A bool; comparisons with NaN are false, `ne` is true."""

    def select(self, condition: V, a: V, b: V, /) -> V:
        """a where the condition holds, else b; the other value has no influence, be it NaN."""

    def logical_and(self, a: V, b: V, /) -> V:
        """Both, of bools."""

    def logical_or(self, a: V, b: V, /) -> V:
        """Either, of bools."""

    def logical_not(self, a: V, /) -> V:
        """The opposite, of a bool."""

    def bitwise_and(self, a: V, b: V, /) -> V:
        """The bits that both integers have."""

    def bitwise_xor(self, a: V, b: V, /) -> V:
        """The bits that one of two integers has."""

    def shift_right(self, a: V, b: V, /) -> V:
        """a / 2 ** b of integers, rounded down: the sign is shifted in."""

    def cast(self, a: V, dtype: DType, /) -> V:
        """The value in another dtype: floats to integers toward zero, to bool by comparison with 0."""

    def reduce(self, kind: Reduction, a: V, /) -> V:
        """The sum, product, maximum or minimum along the reduced axis; the last two are NaN if an element is."""

    def extent(self, a: V, /) -> V:
        """The number of elements along the reduced axis, in the dtype of `a`."""

    def position(self) -> V:
        """The index along the reduced axis, int64."""

    def contract(self, a: V, b: V, /) -> V:
        """The sum of products along the contracted axis, in the accumulator's dtype."""

    def convolve(self, image: V, weights: V, /) -> V:
        """The sum of products over the window and the channels, in the accumulator's dtype; see `ops.convolution`."""

    def attend(
        self, q: V, k: V, v: V, scale: V, mask: V | None, causal: bool, scored: Callable[[V], V] | None = None, /
    ) -> V:
        """For each query the mean of the values, weighted by the softmax over keys of the scaled and masked scores, in
        the accumulator's dtype; see `ops.attention`. `scored` says what becomes of a scaled score before it is masked.
        """

    def attend_pages(
        self,
        q: V,
        k: V,
        v: V,
        scale: V,
        table: V,
        lengths: V,
        causal: bool,
        window: int,
        scored: Callable[[V], V] | None = None,
        /,
    ) -> V:
        """The same over keys and values in the pages that a table names; see `ops.attention.paged`."""

    def attend_logarithms(
        self, q: V, k: V, v: V, scale: V, mask: V | None, causal: bool, scored: Callable[[V], V] | None = None, /
    ) -> V:
        """For each query the logarithm of the sum over keys of the exponentials of such scores."""

    def attend_back(
        self,
        of: Literal["q", "k", "v"] | tuple[int, str],
        operands: tuple[V, V, V, V, V, V, V],
        causal: bool,
        scored: Callable[[V], V] | None,
        derived: Callable[[V, V], V] | None,
        beside: Callable[[V, V], V] | None,
        /,
    ) -> V:
        """What the cotangent of queries, keys or values is made of, in the accumulator's dtype, or that of an operand
        beside the scores, of a number and the axes along which it is; see `ops.attention.trained`, where the seven
        operands stand. Of a score and the cotangent of what `scored` makes of it, `derived` makes that of the score,
        and `beside` that of such an operand.
        """
