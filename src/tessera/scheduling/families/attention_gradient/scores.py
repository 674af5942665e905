"""Rows of a block of scores in the gradient of attention: from products to weights, and to cotangents of scores."""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import SSAValue

from tessera.ops.attention.trained import LARGE_LOGARITHM
from tessera.scheduling.families.attention.online_softmax import LOG2_E, OnlineSoftmax, scored
from tessera.scheduling.families.attention_gradient.packing import PackedGradient
from tessera.scheduling.lowering.microkernel.protocol import added
from tessera.scheduling.lowering.spec import SumsBeside

ROWS = 2
"""Queries at a time: in registers a tile of products leaves no room for what is between them and cotangents."""


class ScoreRows:
    """Rows of the block that `nest` is at, as wide as a register tile. Where `certain`, the mask shows all of it."""

    def __init__(self, nest: PackedGradient, row: SSAValue, column: SSAValue, certain: SSAValue | None) -> None:
        self.nest, self.builder, self.spec = nest, nest.builder, nest.spec
        self.row, self.column, self.certain = row, column, certain
        self.at = {"q": self.builder.add(nest.at["q"], row), "k": self.builder.add(nest.at["k"], column)}
        self.sizes = {"q": ROWS, "k": nest.nr}
        self.shape = ROWS, nest.nr
        self.softmax = OnlineSoftmax(nest.builder, nest.dtype, ROWS, axis=1)
        self.nothing = self.builder.splat(0.0, nest.dtype, self.shape)

    def write(self) -> None:
        """Products become weights, and those of cotangents with values become cotangents of scores."""
        builder, nest, softmax, spec = self.builder, self.nest, self.softmax, self.spec
        writer = nest.writer(self.sizes, self.at)
        scale = softmax.scale_factor(nest.write(spec.scale, {"q": ROWS, "k": 1}, {}), spec.scoring is not None)
        products = self._get(nest.weights)
        scores = builder.append(arith.MulfOp(products, softmax.spread(scale, products)))
        weights = self._seen(self._weights(scored(writer, spec.scoring, scores)))
        self._put(weights, nest.weights)
        if not nest.needs_scores:
            return
        products = self._get(nest.d_scores)
        mean = nest.write(spec.mean, {"q": ROWS, "k": 1}, {"q": self.at["q"]})
        less = builder.append(arith.SubfOp(products, softmax.spread(mean, products)))
        found = builder.append(arith.MulfOp(weights, less))
        if spec.pulled is not None:
            writer.define(spec.pulled.changed, found)
            found = writer.write(spec.pulled.derived, self.shape) if nest.needs_products else found
        if nest.needs_products:
            self._put(found, nest.d_scores)
        for sums in spec.beside or ():
            self._add_beside(sums, writer.write(sums.derived, self.shape))

    def _get(self, memory: SSAValue) -> SSAValue:
        return self.builder.load(memory, [self.row, self.column], [0, 1], self.shape, [True, True])

    def _put(self, value: SSAValue, memory: SSAValue) -> None:
        self.builder.store(value, memory, [self.row, self.column], [0, 1], [True, True])

    def _weights(self, scores: SSAValue) -> SSAValue:
        """The softmax's weights of scores in powers of two."""
        builder, softmax = self.builder, self.softmax
        logarithms = self.nest.write(self.spec.logarithms, {"q": ROWS, "k": 1}, {"q": self.at["q"]})
        blind = softmax.equals(logarithms, -math.inf)
        scaled = builder.append(arith.MulfOp(logarithms, softmax.splat(LOG2_E)))
        base = softmax.select(blind, softmax.splat(math.inf), scaled)
        scores = builder.append(arith.SubfOp(scores, softmax.spread(base, scores)))
        # Not the minimum, which takes several instructions to keep NaN as this does in one.
        square = builder.append(arith.MulfOp(logarithms, logarithms))
        is_large = softmax.exceeds(square, softmax.splat(LARGE_LOGARITHM**2))
        most = softmax.spread(softmax.select(is_large, softmax.splat(0.0), softmax.splat(math.inf)), scores)
        scores = softmax.select(softmax.exceeds(scores, most), most, scores)
        return builder.append(math_dialect.Exp2Op(scores))

    def _seen(self, weights: SSAValue) -> SSAValue:
        """The weights, 0 of keys that are not seen; the mask is not looked at where all of a block are."""
        mask, own = self.spec.mask, weights
        if mask is not None:
            assert self.certain is not None

            def hidden() -> list[SSAValue]:
                return [self.softmax.select(self.nest.write(mask, self.sizes, self.at), own, self.nothing)]

            (weights,) = self.builder.branch(self.certain, lambda: [own], hidden)
        return self._before_diagonal(weights) if self.spec.causal else weights

    def _before_diagonal(self, weights: SSAValue) -> SSAValue:
        """The weights of keys that are seen; the mask is not formed where all of them are."""
        builder, nest = self.builder, self.nest
        last = builder.add(self.at["k"], builder.index(nest.nr - 1))
        whole = builder.compare(last, builder.add(self.at["q"], nest.shift), "sle")

        def hidden() -> list[SSAValue]:
            visible = self.softmax.below_diagonal(self.at["q"], self.at["k"], nest.shift, self.shape)
            return [self.softmax.select(visible, weights, self.nothing)]

        (found,) = builder.branch(whole, lambda: [weights], hidden)
        return found

    def _add_beside(self, sums: SumsBeside, tile: SSAValue) -> None:
        """Adds cotangents to the sums for an operand beside the scores."""
        builder, nest, shape = self.builder, self.nest, self.shape
        argument = nest.stored[sums.accumulator].argument
        along = set(sums.along) & set(nest.arguments[argument].axes)  # an extent of 1 may be no axis of the result
        for place, (axis, first, end) in enumerate((("q", self.row, nest.count), ("k", self.column, nest.width))):
            if axis not in along:
                nothing = builder.splat(0.0, nest.dtype, shape)
                tile = self.softmax.select(builder.mask(first, end, shape, place), tile, nothing)
                tile = builder.reduce(tile, "add", place)
                shape = (1, shape[1]) if place == 0 else (shape[0], 1)
        where = nest.place(argument, "qk", self.at, {axis: axis not in along for axis in "qk"})
        where.store(builder, added(builder, where.load(builder, shape), tile))
