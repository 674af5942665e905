"""The algorithm of attention, which all its lowerings share: a softmax over keys that come block after block.

Of each query two numbers are carried from block to block, the largest score m so far and the sum l of the weights
2^(score - m); what was summed under a smaller maximum is scaled down by 2^(old m - new m) (Milakov and Gimelshein 2018;
Dao et al. 2022, algorithm 1). Powers of two take one instruction less than those of e, whose logarithm is folded into
the factor of the scores (Dao 2023).

A lowering decides how large blocks are, where scores and sums lie, and whether keys are the rows or the columns of a
tile of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerAttr, StringAttr, VectorType, i1, i64
from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.ir.tile import operations as tile
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import Scoring
from tessera.scheduling.lowering.writer import TileWriter

LOG2_E = 1 / math.log(2)

SMALLEST_FACTOR = 1e-30
"""What stands for a scale of 0: hidden scores are -inf, of which no multiple by 0 is any. Times a score it is 0."""

State = tuple[SSAValue, ...]
"""(m, l, ...): tiles of extent 1 along the keys, and what else a lowering carries."""


class OnlineSoftmax:
    """The steps over tiles of scores in which keys lie along `axis`, and queries along the other one.

    `factor`, a tile like m, is what scores are multiplied by on their way into the exponential; None where they come
    multiplied already.
    """

    def __init__(self, builder: TileBuilder, dtype: DType, queries: int, axis: int) -> None:
        self.builder, self.dtype, self.axis = builder, dtype, axis
        self.shape = (queries, 1) if axis == 1 else (1, queries)
        self.factor: SSAValue | None = None

    def splat(self, value: float) -> SSAValue:
        """A number for every query."""
        return self.builder.splat(value, self.dtype, self.shape)

    def initial(self) -> State:
        """Before any key: no maximum, and no weight."""
        return self.splat(-math.inf), self.splat(0.0)

    def spread(self, value: SSAValue, like: SSAValue) -> SSAValue:
        """A tile of extent 1 along the keys over the shape of another."""
        return self.builder.append(tile.BroadcastOp.create(operands=[value], result_types=[like.type]))

    def scale_factor(self, scale: SSAValue, scored: bool) -> SSAValue:
        """What scores are multiplied by: the scale, a tile like m that is not negative, times log2(e). Those that are
        `scored` get that second factor, and are hidden, when they are what the softmax sees.
        """
        if scored:
            return scale
        product = self.builder.append(arith.MulfOp(scale, self.splat(LOG2_E)))
        return self.builder.append(arith.MaximumfOp(product, self.splat(SMALLEST_FACTOR)))

    # -- one block ------------------------------------------------------------------------------------------------

    def hide(self, scores: SSAValue, visible: SSAValue) -> SSAValue:
        """The scores, -inf where a key is hidden from a query."""
        assert isinstance(scores.type, VectorType)
        lowest = self.builder.splat(-math.inf, self.dtype, scores.type.get_shape())
        return self.select(visible, scores, lowest)

    def largest(self, scores: SSAValue) -> SSAValue:
        """The largest score of each query, multiplied by the factor; what NaN makes of it is left open."""
        found = self.builder.reduce(scores, "max", self.axis, any_nan=True)
        return found if self.factor is None else self.builder.append(arith.MulfOp(found, self.factor))

    def raised(self, m: SSAValue, largest: SSAValue) -> SSAValue:
        """The maximum with a block's."""
        return self.builder.append(arith.MaximumfOp(m, largest))

    def larger(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The larger of two maxima of a block; what NaN makes of it is left open, as a weight is NaN itself then."""
        return self.select(self.exceeds(a, b), a, b)

    def base(self, m: SSAValue) -> SSAValue:
        """What is subtracted from scores: m, or 0 where no key was seen, as -inf less -inf is no number."""
        return self.select(self.equals(m, -math.inf), self.splat(0.0), m)

    def decay(self, m: SSAValue, base: SSAValue) -> SSAValue:
        """By how much the sums under an old maximum shrink."""
        return self._power(self.builder.append(arith.SubfOp(m, base)))

    def weights(self, scores: SSAValue, base: SSAValue) -> SSAValue:
        """2^(score - m) of every score."""
        if self.factor is not None:
            scores = self.builder.append(arith.MulfOp(scores, self.spread(self.factor, scores)))
        return self._power(self.builder.append(arith.SubfOp(scores, self.spread(base, scores))))

    def total(self, l: SSAValue, decay: SSAValue, added: SSAValue) -> SSAValue:  # noqa: E741 - the literature's name
        """The sum of weights with a block's."""
        return self.builder.append(arith.AddfOp(self.builder.append(arith.MulfOp(l, decay)), added))

    def shrunk(self, sums: SSAValue, decay: SSAValue) -> SSAValue:
        """Weighted sums of values under a larger maximum."""
        return self.builder.append(arith.MulfOp(sums, self.spread(decay, sums)))

    def mean(self, sums: SSAValue, l: SSAValue) -> SSAValue:  # noqa: E741
        """The weighted mean of values; 0 for a query that has seen no key."""
        divisor = self.select(self.equals(l, 0.0), self.splat(1.0), l)
        inverse = self.builder.append(arith.DivfOp(self.splat(1.0), divisor))
        return self.builder.append(arith.MulfOp(sums, self.spread(inverse, sums)))

    def logarithm(self, m: SSAValue, l: SSAValue) -> SSAValue:  # noqa: E741
        """The logarithm of the sum of exponentials: log(l) + m log(2); -inf for a query that has seen no key."""
        scaled = self.builder.append(arith.MulfOp(m, self.splat(math.log(2))))
        return self.builder.append(arith.AddfOp(self.builder.append(math_dialect.LogOp(l)), scaled))

    # -- which keys are seen --------------------------------------------------------------------------------------

    def below_diagonal(self, query: SSAValue, key: SSAValue, shift: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Which keys from `key` on the queries from `query` on see: key <= query + shift."""
        builder = self.builder
        positions = []
        for offset, axis in ((key, self.axis), (builder.add(query, shift), 1 - self.axis)):
            operation = tile.IotaOp.create(
                operands=[offset],
                result_types=[VectorType(i64, list(shape))],
                attributes={"axis": IntegerAttr(axis, i64)},
            )
            positions.append(builder.append(operation))
        return self._compared(positions[0], positions[1], "le")

    def differs(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Where the elements of two tiles are not equal; NaN is equal to nothing."""
        return self._compared(a, b, "ne")

    def exceeds(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Where the elements of a tile are larger than those of another; NaN is not."""
        return self._compared(a, b, "gt")

    def equals(self, value: SSAValue, number: float) -> SSAValue:
        """Which of the queries have a number."""
        return self._compared(value, self.splat(number), "eq")

    def _compared(self, a: SSAValue, b: SSAValue, predicate: str) -> SSAValue:
        assert isinstance(a.type, VectorType)
        operation = tile.CompareOp.create(
            operands=[a, b],
            result_types=[VectorType(i1, list(a.type.get_shape()))],
            attributes={"predicate": StringAttr(predicate)},
        )
        return self.builder.append(operation)

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """The first of two tiles where a condition holds, else the second."""
        return self.builder.append(tile.SelectOp.create(operands=[condition, a, b], result_types=[a.type]))

    def _power(self, value: SSAValue) -> SSAValue:
        return self.builder.append(math_dialect.Exp2Op(value))


@dataclass(frozen=True)
class KeyRange:
    """The blocks of keys that a block of queries meets.

    Keys before `whole` are seen by all its queries; `end` is past the last key that any of them sees. `shift` is
    keys - queries: with `causal` query i sees the keys up to i + shift. The walk begins at `first`, at 0 where that is
    None.
    """

    whole: SSAValue
    end: SSAValue
    shift: SSAValue
    first: SSAValue | None = None

    @classmethod
    def of(
        cls, builder: TileBuilder, query: SSAValue, count: int, queries: SSAValue, keys: SSAValue, causal: bool
    ) -> KeyRange:
        """The range of `count` queries from `query` on."""
        shift = builder.sub(keys, queries)
        if not causal:
            return cls(keys, keys, shift)
        zero, first = builder.index(0), builder.add(query, shift)
        whole, end = (
            builder.minimum(keys, builder.maximum(zero, builder.add(first, builder.index(reach))))
            for reach in (1, count)
        )
        return cls(whole, end, shift)

    def part(self, builder: TileBuilder, step: int, keys: SSAValue, number: SSAValue, parts: SSAValue) -> KeyRange:
        """What is met of part `number` of all `keys`, which are cut between blocks of `step` into about equal parts."""
        size, zero = builder.index(step), builder.index(0)
        blocks = builder.floor_div(builder.add(keys, builder.index(step - 1)), size)
        after = builder.add(number, builder.index(1))
        first, last = (
            builder.mul(builder.floor_div(builder.mul(blocks, bound), parts), size) for bound in (number, after)
        )
        whole, end = (builder.maximum(zero, builder.minimum(each, last)) for each in (self.whole, self.end))
        first = first if self.first is None else builder.maximum(first, self.first)
        return KeyRange(whole, end, self.shift, first)

    def walk(
        self,
        builder: TileBuilder,
        step: int,
        state: State,
        block: Callable[[SSAValue, bool, State], Sequence[SSAValue]],
        names: Sequence[str] = ("m", "l", "acc"),
    ) -> State:
        """The loops over blocks of `step` keys: whole ones, then those at an edge, of the keys or of what queries see.

        `block(key, at_edge, state)` gives the state after the block from `key` on; `names` are those of the state.
        """
        first = builder.index(0) if self.first is None else self.first
        middle = builder.mul(builder.floor_div(self.whole, builder.index(step)), builder.index(step))
        if self.first is not None:
            middle = builder.maximum(first, middle)
        for lower, upper, at_edge in ((first, middle, False), (middle, self.end, True)):
            with builder.loop(lower, upper, step, state) as loop:
                loop.index.name_hint = "key"
                for value, name in zip(loop.carried, names, strict=False):
                    value.name_hint = name
                loop.yielded = tuple(block(loop.index, at_edge, loop.carried))
            state = loop.results
        return state


def additive(builder: TileBuilder, scores: SSAValue, mask: SSAValue, dtype: DType) -> SSAValue:
    """Scores in `dtype` that are multiplied by the factor already, and a mask of any float dtype that is not."""
    assert isinstance(scores.type, VectorType)
    log2_e = builder.splat(LOG2_E, dtype, scores.type.get_shape())
    return builder.append(arith.AddfOp(scores, builder.append(arith.MulfOp(builder.cast(mask, dtype), log2_e))))


def scored(writer: TileWriter, scoring: Scoring | None, scores: SSAValue) -> SSAValue:
    """What becomes of scaled scores before they are masked, in powers of two: as they are, where nothing does and they
    are so already. `writer` is at their place, with keys and queries along its tiles.
    """
    if scoring is None:
        return scores
    assert isinstance(scores.type, VectorType)
    writer.define(scoring.score, scores)
    return writer.write(scoring.changed, tuple(scores.type.get_shape()))
