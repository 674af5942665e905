"""Lowering attention for GPUs: a program owns a block of queries and walks the keys that they see.

Queries, scores and sums of a block stay in registers (or where the compiler that reads this Tile IR puts them); keys
and values arrive tile by tile. Blocks past the diagonal are not visited, and only blocks that touch it, or the last
key, are masked; with a mask that tells of positions, as a window does, only blocks from the first that it shows to the
last one are visited (`seen.py`). (Dao, "FlashAttention-2", 2023, section 3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from tessera.dtypes import DType, bool_
from tessera.scheduling.families.attention.gpu.grid import AttentionGrid, name_operands
from tessera.scheduling.families.attention.gpu.rules import weights_dtype
from tessera.scheduling.families.attention.gpu.seen import SeenRange, hides_blocks
from tessera.scheduling.families.attention.online_softmax import KeyRange, OnlineSoftmax, State, additive, scored
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import with_hints
from tessera.scheduling.lowering.spec import AttentionSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter
from tessera.target import Target

ENLARGED = 256.0
"""What weights of 8 bits are multiplied by, a power of two: of numbers up to 448 those from 2^-17 of the largest weight
on are told from 0."""


def lower_attention_gpu(spec: AttentionSpec, schedule: Schedule, target: Target) -> ModuleOp:
    """The Tile IR of attention: a grid over batch axes and blocks of queries, one loop over blocks of keys: of all, or
    of a part of them (`attention/parts.py`).

    Knobs: those of `attention/gpu/space.py`; `warps` and `pipeline_depth` become attributes of the kernel.
    """
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    name_arguments(block, spec)
    AttentionLowering(spec, schedule, TileBuilder(block), arguments, target).lower()
    return with_hints(module, schedule)


def name_arguments(block: Block, spec: AttentionSpec) -> None:
    """Names for readers."""
    name_operands(block, {"q": spec.q, "k": spec.k, "v": spec.v, "scale": spec.scale, "mask": spec.mask})
    for output in spec.outputs:
        block.args[output.argument].name_hint = "logarithms" if output.argument == spec.logarithms else "out"


class AttentionLowering(AttentionGrid):
    """The program of one block of queries."""

    def __init__(
        self,
        spec: AttentionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
        target: Target,
    ) -> None:
        super().__init__(spec, schedule, builder, arguments)
        self.spec = spec
        self.weights_element = weights_dtype(self.element, target)
        self.bm, self.bn = schedule.integers("tile")
        self.softmax = OnlineSoftmax(builder, self.dtype, self.bm, axis=1)

    def lower(self) -> None:
        """Writes the kernel."""
        builder, spec, softmax = self.builder, self.spec, self.softmax
        queries = self.extent("q")
        with self.over({**dict.fromkeys(spec.batch, 1), "q": self.bm}) as at:
            self.at = {**at, "q": self.longest_first(at["q"], queries, self.bm) if spec.causal else at["q"]}
            scale = self.write(spec.scale, {"q": self.bm, "": 1}, {})
            factor = softmax.scale_factor(scale, spec.scoring is not None)
            if not self._scales_scores:
                softmax.factor = factor
            self.factor = factor
            factor.name_hint = "factor"
            self.q = self.operand(spec.q, {"q": self.bm, "d": self.head}, {"d": builder.index(0)})
            self.keys = self.count_keys()
            self.range = self.key_range(queries)
            if spec.mask is not None and not spec.causal and hides_blocks(spec.mask):
                sides = {"q": queries, "k": self.keys}
                seen = SeenRange(self, spec.mask, "k", sides, {"q": self.bm, "k": self.bn}).found()
                self.range = replace(self.range, first=seen[0], whole=seen[1], end=seen[1])
            acc = builder.splat(0.0, self.dtype, (self.bm, self.value_head))
            if spec.logarithms is not None:
                axis = spec.batch[0]
                self.range = self.range.part(builder, self.bn, self.keys, at[axis], self.extent(axis))
            m, total, sums = self.range.walk(builder, self.bn, (*softmax.initial(), acc), self._block)
            if self._enlarges:
                sums = builder.append(arith.MulfOp(sums, softmax.spread(self._factor(1 / ENLARGED), sums)))
            logarithm = None if spec.logarithms is None and spec.saved is None else softmax.logarithm(m, total)
            if spec.logarithms is not None and logarithm is not None:
                self._store_logarithms(spec.logarithms, logarithm)
            self._epilogue(softmax.mean(sums, total), None if spec.saved is None else logarithm)

    def count_keys(self) -> SSAValue:
        """How many keys there are."""
        return self.extent("k")

    def key_range(self, queries: SSAValue) -> KeyRange:
        """The keys that the block of queries sees."""
        return KeyRange.of(self.builder, self.at["q"], self.bm, queries, self.keys, self.spec.causal)

    def place(self, step: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Where a step of the walk reads keys, and the number of its first key."""
        return step, step

    def hide_outside(self, scores: SSAValue, key: SSAValue, at_edge: bool) -> SSAValue:
        """The scores of the keys from `key` on, -inf where there are none or none of them is seen."""
        builder, softmax, shape = self.builder, self.softmax, (self.bm, self.bn)
        if at_edge and self.spec.causal:  # no query of the result sees past the last key
            return softmax.hide(scores, softmax.below_diagonal(self.at["q"], key, self.range.shift, shape))
        return softmax.hide(scores, builder.mask(key, self.keys, shape, 1)) if at_edge else scores

    def existing(self, values: SSAValue, element: DType, key: SSAValue, at_edge: bool) -> SSAValue:
        """The values of a step from `key` on, without what is none: past the last one zeros were loaded."""
        return values

    @property
    def _adds_mask(self) -> bool:
        return self.spec.mask is not None and self.spec.mask.dtype is not bool_

    @property
    def _scales_scores(self) -> bool:
        return self._adds_mask or self.spec.scoring is not None

    @property
    def _enlarges(self) -> bool:
        return self.weights_element.itemsize == 1

    def _enlarged(self, weights: SSAValue) -> SSAValue:
        """Weights, which are 1 at most, as far up as 8-bit floats go, so that small ones keep their bits."""
        if not self._enlarges:
            return weights
        return self.builder.append(arith.MulfOp(weights, self.softmax.spread(self._factor(ENLARGED), weights)))

    def _factor(self, value: float) -> SSAValue:
        return self.builder.splat(value, self.dtype, (self.bm, 1))

    # -- one block of keys ----------------------------------------------------------------------------------------

    def _block(self, step: SSAValue, at_edge: bool, state: State) -> Sequence[SSAValue]:
        builder, softmax = self.builder, self.softmax
        m, total, sums = state
        inside = () if at_edge else ("k",)
        at_key, key = self.place(step)
        scores = self._scores(at_key, key, at_edge, inside)
        m_next = softmax.raised(m, softmax.largest(scores))
        base = softmax.base(m_next)
        decay = softmax.decay(m, base)
        weights = softmax.weights(scores, base)
        named = {"scores": scores, "m_next": m_next, "base": base, "decay": decay, "weights": weights}
        for name, value in named.items():
            value.name_hint = name
        total = softmax.total(total, decay, builder.reduce(weights, "add", 1))
        at = {"k": at_key, "v": builder.index(0)}
        values = self.operand(self.spec.v, {"k": self.bn, "v": self.value_head}, at, inside)
        element = self.weights_element
        narrow, values = (
            builder.cast(self._enlarged(weights), element),
            self.existing(builder.cast(values, element), element, key, at_edge),
        )
        shrunk = softmax.shrunk(sums, decay)
        return m_next, total, builder.mma(narrow, values, shrunk, self.bm, self.value_head, self.bn, element)

    def _scores(self, at_key: SSAValue, key: SSAValue, at_edge: bool, inside: Sequence[str]) -> SSAValue:
        """The scores of a block, multiplied by the factor where a mask was added; those of hidden keys are -inf."""
        builder, softmax, shape = self.builder, self.softmax, (self.bm, self.bn)
        at = {"k": at_key, "d": builder.index(0)}
        keys = self.operand(self.spec.k, {"d": self.head, "k": self.bn}, at, inside)
        zero = builder.splat(0.0, self.dtype, shape)
        scores = builder.mma(self.q, keys, zero, self.bm, self.bn, self.head, self.element)
        mask = None
        if self.spec.mask is not None:
            mask = self.write(self.spec.mask, {"q": self.bm, "k": self.bn}, {"k": key}, inside)
        if self._scales_scores:
            scores = builder.append(arith.MulfOp(scores, softmax.spread(self.factor, scores)))
        scores = scored(self.writer({"q": self.bm, "k": self.bn}, {"k": key}, inside), self.spec.scoring, scores)
        if mask is not None:
            scores = additive(builder, scores, mask, self.dtype) if self._adds_mask else softmax.hide(scores, mask)
        return self.hide_outside(scores, key, at_edge)

    def _store_logarithms(self, argument: int, logarithm: SSAValue) -> None:
        axes = self.spec.arguments[argument].axes
        place = [self.at[axis] for axis in axes]
        self.builder.store(logarithm, self.arguments[argument].value, place, [axes.index("q"), -1], [False, True])

    def _epilogue(self, mean: SSAValue, logarithm: SSAValue | None) -> None:
        sizes = {"q": self.bm, "v": self.value_head}
        at = {**self.at, "v": self.builder.index(0)}
        writer = TileWriter(self.builder, self.arguments, sizes, Scope(frozenset(), 0))
        writer.enter(at, dict.fromkeys(sizes, False))
        writer.define(self.spec.accumulator, mean)
        for output in self.spec.outputs:
            if output.argument == self.spec.logarithms:
                continue
            axes = self.spec.arguments[output.argument].axes
            is_saved = self.spec.saved is not None and output.value is self.spec.saved.accumulator
            self.builder.store(
                logarithm if is_saved and logarithm is not None else writer.write(output.value, tuple(sizes.values())),
                self.arguments[output.argument].value,
                [at[axis] for axis in axes],
                [axes.index("q"), -1 if is_saved else axes.index("v")],
                [False, is_saved or self.exact],
            )
