"""Lowering the gradient of attention for GPUs: a program owns a block of queries, or of keys, and walks the other side.

    of queries:   dQ += dS K              P  = exp(scores(scale Q K^T) - logarithms),   dS  = P (g V^T - mean)
    of keys:      dV += P^T g,            P^T, dS^T: the same from K Q^T and V g^T, so that no matrix of weights is
                  dK += dS^T Q            turned, over all heads that share the keys

Each block of scores is formed in both walks, seven products instead of five: sums stay in registers, and their order is
fixed, where one walk would add to memory in any order. dS goes through the derivative of the scores, and is summed for
operands beside them. Blocks that a mask hides are left out as in attention (`attention/gpu/seen.py`). What is held and
what is walked is multiplied as it lies, and turned: tiles of the walked side are read once. (Dao, "FlashAttention-2",
2023, section 3; the two walks are those of Triton's tutorial on fused attention.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from tessera.dtypes import DType, bf16
from tessera.ops.attention.trained import LARGE_LOGARITHM
from tessera.scheduling.families.attention.gpu.grid import AttentionGrid, name_operands
from tessera.scheduling.families.attention.gpu.seen import SeenRange, hides_blocks
from tessera.scheduling.families.attention.online_softmax import LOG2_E, KeyRange, OnlineSoftmax, State, scored
from tessera.scheduling.families.attention_gradient.gpu.walks import QueryRange, sums_beside, sums_of, walks_of
from tessera.scheduling.families.attention_gradient.space import apart_axes, needs_scores
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import with_hints
from tessera.scheduling.lowering.spec import AttentionGradientSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, TileWriter


def lower_gradient_gpu(spec: AttentionGradientSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of one walk (`gpu/walks.py` makes two of what asks for both): a grid over batch axes and blocks of
    the side that is summed for.

    Knobs: those of `gpu/space.py`; `warps` and `pipeline_depth` become attributes of the kernel.
    """
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _name_arguments(block, spec)
    _GradientLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return with_hints(module, schedule)


def _name_arguments(block: Block, spec: AttentionGradientSpec) -> None:
    operands = {"q": spec.q, "k": spec.k, "v": spec.v, "g": spec.g, "scale": spec.scale, "mask": spec.mask}
    name_operands(block, {**operands, "logarithms": spec.logarithms, "mean": spec.mean})
    for part in sums_of(spec):
        block.args[part.output.argument].name_hint = f"d{part.of}"
    for beside in sums_beside(spec):
        block.args[beside.output.argument].name_hint = "d_beside"


class _GradientLowering(AttentionGrid):
    def __init__(
        self, spec: AttentionGradientSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(spec, schedule, builder, arguments)
        self.spec = spec
        self.sides = ("k", "q") if walks_of(spec) == {"k"} else ("q", "k")
        """What a program holds a block of, and what it walks: the rows and the columns of tiles of scores."""
        self.blocks = dict(zip("qk", schedule.integers("tile"), strict=True))
        self.shape = tuple(self.blocks[side] for side in self.sides)
        self.softmax = OnlineSoftmax(builder, self.dtype, self.blocks["q"], axis=self.sides.index("k"))
        self.widths = {"d": self.head, "v": self.value_head}
        self.operands = {"q": {"d": spec.q, "v": spec.g}, "k": {"d": spec.k, "v": spec.v}}
        self.parts = sums_of(spec)
        self.beside = sums_beside(spec)
        self.summed = [part for part in self.beside if part.sums.along != "qk"]
        self.needs_scores = needs_scores(spec)

    def lower(self) -> None:
        builder, spec, (held, _) = self.builder, self.spec, self.sides
        apart = apart_axes(spec)
        own = [axis for axis in spec.batch if axis not in apart]
        self.queries, self.keys = self.extent("q"), self.extent("k")
        with self.over({**dict.fromkeys(own, 1), held: self.blocks[held]}) as at:
            self.at = dict(at)
            if spec.causal and held == "q":
                self.at["q"] = self.longest_first(at["q"], self.queries, self.blocks["q"])
            scale = self.write(spec.scale, {"q": self.blocks["q"], "": 1} if held == "q" else self._sizes(k=1), {})
            self.factor = self.softmax.scale_factor(scale, spec.scoring is not None)
            self.factor.name_hint = "factor"
            self.held = {axis: self._matrix(held, axis, {}, ()) for axis in self._multiplied}
            if held == "q":
                self.base = self._base({}, ())
            initial = [builder.splat(0.0, self.dtype, (self.shape[0], self.widths[each.axis])) for each in self.parts]
            for part, sums in zip(self.parts, self._over_heads(apart, tuple(initial)), strict=True):
                axes = spec.arguments[part.output.argument].axes
                begins = {**self.at, part.axis: builder.index(0)}
                place = [begins[axis] for axis in axes]
                dims = [axes.index(held), axes.index(part.axis)]
                builder.store(sums, self.arguments[part.output.argument].value, place, dims, [False, self.exact])

    @property
    def _multiplied(self) -> Sequence[str]:
        """Products along heads give scores; those along values their cotangents, where any are asked for."""
        return ("d", "v") if self.needs_scores else ("d",)

    def _sizes(self, **changes: int) -> dict[str, int]:
        """The extents of a tile of scores, axes in the order of its rows and columns."""
        sizes = {**self.blocks, **changes}
        return {side: sizes[side] for side in self.sides}

    # -- loops ----------------------------------------------------------------------------------------------------

    def _over_heads(self, axes: Sequence[str], sums: State) -> State:
        """The walk for each head that shares keys."""
        if not axes:
            nothing = self.builder.splat(0.0, self.dtype, (self.shape[0], 1))
            found = self._walk((*sums, *[nothing] * len(self.summed)))
            for part, total in zip(self.summed, found[len(sums) :], strict=True):
                self._store(part.output.argument, total, self.sides[:1], {})
            return found[: len(sums)]
        builder, (axis, *others) = self.builder, axes
        with builder.loop(builder.index(0), self.extent(axis), 1, sums) as loop:
            loop.index.name_hint = axis
            self.at[axis] = loop.index
            loop.yielded = self._over_heads(others, loop.carried)
        return loop.results

    def _walk(self, sums: State) -> State:
        builder, step = self.builder, self.blocks[self.sides[1]]
        names = (*(f"d{part.of}" for part in self.parts), *["beside"] * len(self.summed))
        seen, mask, extents = None, self.spec.mask, {"q": self.queries, "k": self.keys}
        pairs = len(self.summed) < len(self.beside)  # each has a cotangent, also those that nobody sees
        if mask is not None and hides_blocks(mask) and not self.spec.causal and not pairs:
            seen = SeenRange(self, mask, self.sides[1], extents, self.blocks).found()
        if self.sides[0] == "q":
            keys = KeyRange.of(builder, self.at["q"], self.blocks["q"], self.queries, self.keys, self.spec.causal)
            self.shift = keys.shift
            if seen is not None:
                keys = replace(keys, first=seen[0], whole=seen[1], end=seen[1])
            elif pairs:
                keys = replace(keys, end=self.keys)
            return keys.walk(builder, step, sums, self._block, names)
        self.shift = builder.sub(self.keys, self.queries)
        first = builder.sub(self.at["k"], self.shift) if self.spec.causal else None
        queries = QueryRange.of(builder, first, self.blocks["k"], self.queries, step)
        if seen is not None:
            queries = queries.within(builder, seen, step)
        return queries.walk(builder, step, sums, self._block, names)

    # -- one block ------------------------------------------------------------------------------------------------

    def _block(self, position: SSAValue, at_edge: bool, sums: State) -> Sequence[SSAValue]:
        """The sums after a block of the walked side from `position` on."""
        builder, walked = self.builder, self.sides[1]
        at, inside = {walked: position}, () if at_edge else (walked,)
        tiles = {axis: self._matrix(walked, axis, at, inside) for axis in dict.fromkeys(("d", *self._axes))}
        writer = self.writer(self._sizes(), at, inside)
        self.counted = self._counted(at) if at_edge else []
        weights = self._weights(writer, self._products("d", tiles["d"]), at, inside)
        weights.name_hint = "weights"
        factors = {"v": weights}
        if self.needs_scores:
            mean = self.write(self.spec.mean, self._sizes(k=1), at, inside)
            products = self._products("v", tiles["v"])
            less = builder.append(arith.SubfOp(products, self.softmax.spread(mean, products)))
            changed = builder.append(arith.MulfOp(weights, less))
            changed.name_hint = "d_scores"
            if self.spec.pulled is None:
                factors["d"] = changed
            else:
                writer.define(self.spec.pulled.changed, changed)
                if any(part.axis == "d" for part in self.parts):
                    factors["d"] = self._derived(writer, self.spec.pulled.derived)
        rows, columns, element = *self.shape, self._narrow
        heads = [
            builder.mma(
                builder.cast(factors[part.axis], element),
                builder.cast(tiles[part.axis], element),
                total,
                rows,
                self.widths[part.axis],
                columns,
                element,
            )
            for part, total in zip(self.parts, sums, strict=False)
        ]
        beside: list[SSAValue] = []
        for each in self.beside:
            tile = self._derived(writer, each.sums.derived)
            if each in self.summed:
                total = sums[len(heads) + len(beside)]
                beside.append(builder.append(arith.AddfOp(total, builder.reduce(tile, "add", 1))))
            else:
                self._store(each.output.argument, tile, self.sides, at)
        return [*heads, *beside]

    def _derived(self, writer: TileWriter, derivative: Value) -> SSAValue:
        """A tile of cotangents: 0 past an edge, where what a derivative reads may be anything."""
        return self._hidden(writer.write(derivative, self.shape), self.counted)

    def _hidden(self, tile: SSAValue, conditions: Sequence[SSAValue]) -> SSAValue:
        for condition in conditions:
            tile = self.softmax.select(condition, tile, self.builder.splat(0.0, self.dtype, self.shape))
        return tile

    def _store(self, argument: int, tile: SSAValue, walked: Sequence[str], at: dict[str, SSAValue]) -> None:
        """Writes a tile of sums for an operand beside the scores, which walks the sides `walked`, the first of both."""
        axes, place = self.spec.arguments[argument].axes, {**self.at, **at}
        dims = [axes.index(side) if side in walked else -1 for side in self.sides]
        whole = [side not in walked for side in self.sides]
        self.builder.store(tile, self.arguments[argument].value, [place[axis] for axis in axes], dims, whole)

    @property
    def _axes(self) -> Sequence[str]:
        """The axes of what is multiplied of the walked side."""
        return ("v",) if self.needs_scores or any(part.axis == "v" for part in self.parts) else ()

    @property
    def _narrow(self) -> DType:
        """Weights of 8 bits would be coarse; a value of 8 bits is exact in bf16."""
        return bf16 if self.element.itemsize == 1 else self.element

    def _matrix(self, side: str, axis: str, at: dict[str, SSAValue], inside: Sequence[str]) -> SSAValue:
        """A block of queries, keys, values or cotangents, a row for each query or key."""
        sizes = {side: self.blocks[side], axis: self.widths[axis]}
        return self.operand(self.operands[side][axis], sizes, {**at, axis: self.builder.index(0)}, inside)

    def _products(self, axis: str, walked: SSAValue) -> SSAValue:
        """Queries times keys (along d), or cotangents times values (along v)."""
        builder, (rows, columns) = self.builder, self.shape
        zero = builder.splat(0.0, self.dtype, self.shape)
        turned = builder.transpose(walked)
        return builder.mma(self.held[axis], turned, zero, rows, columns, self.widths[axis], self.element)

    # -- weights --------------------------------------------------------------------------------------------------

    def _weights(
        self, writer: TileWriter, scores: SSAValue, at: dict[str, SSAValue], inside: Sequence[str]
    ) -> SSAValue:
        """exp(scores - logarithms), 0 where a key is hidden."""
        builder, softmax, mask = self.builder, self.softmax, self.spec.mask
        scores = builder.append(arith.MulfOp(scores, softmax.spread(self.factor, scores)))
        scores = scored(writer, self.spec.scoring, scores)
        base, most = self.base if self.sides[0] == "q" else self._base(at, inside)
        scores = builder.append(arith.SubfOp(scores, softmax.spread(base, scores)))
        scores = builder.append(arith.MinimumfOp(scores, softmax.spread(most, scores)))
        weights = builder.append(math_dialect.Exp2Op(scores))
        seen = [] if mask is None else [writer.write(mask, self.shape)]
        return self._hidden(weights, [*seen, *self.counted])

    def _base(self, at: dict[str, SSAValue], inside: Sequence[str]) -> tuple[SSAValue, SSAValue]:
        """What is subtracted of scores, infinity for queries that see no key, and what is then the most of them."""
        softmax, spec = self.softmax, self.spec
        logarithms = self.write(spec.logarithms, self._sizes(k=1), at, inside)
        logarithms.name_hint = "logarithms"
        scaled = self.builder.append(arith.MulfOp(logarithms, softmax.splat(LOG2_E)))
        base = softmax.select(softmax.equals(logarithms, -math.inf), softmax.splat(math.inf), scaled)
        square = self.builder.append(arith.MulfOp(logarithms, logarithms))
        is_large = softmax.exceeds(square, softmax.splat(LARGE_LOGARITHM**2))
        return base, softmax.select(is_large, softmax.splat(0.0), softmax.splat(math.inf))

    def _counted(self, at: dict[str, SSAValue]) -> list[SSAValue]:
        """Which pairs of a block at an edge count: no query of the result sees past the last key."""
        builder, softmax, walked = self.builder, self.softmax, self.sides[1]
        found = []
        if self.spec.causal:
            place = {**self.at, **at}
            found.append(softmax.below_diagonal(place["q"], place["k"], self.shift, self.shape))
        if not (self.spec.causal and walked == "k") or self.beside:
            limit = self.keys if walked == "k" else self.queries
            found.append(builder.mask(at[walked], limit, self.shape, 1))
        return found
