"""Lowering attention for GPUs: a program owns a block of queries and walks the keys that they see.

Queries, scores and sums of a block stay in registers (or where the compiler that reads this Tile IR puts them); keys
and values arrive tile by tile. Blocks past the diagonal are not visited, and only blocks that touch it, or the last
key, are masked. (Dao, "FlashAttention-2", 2023, section 3.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from tessera.dtypes import DType, bf16, bool_
from tessera.scheduling.families.attention.online_softmax import KeyRange, OnlineSoftmax, State, additive, scored
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import Grid, with_hints
from tessera.scheduling.lowering.spec import AttentionSpec, kernel_module, loaded_arguments
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter


def lower_attention_gpu(spec: AttentionSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of attention: a grid over batch axes and blocks of queries, one loop over blocks of keys: of all, or
    of a part of them (`attention/parts.py`).

    Knobs: those of `attention/gpu/space.py`; `warps` and `pipeline_depth` become attributes of the kernel.
    """
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _name_arguments(block, spec)
    _AttentionLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return with_hints(module, schedule)


def _name_arguments(block: Block, spec: AttentionSpec) -> None:
    """Names for readers."""
    named = {"q": spec.q, "k": spec.k, "v": spec.v, "scale": spec.scale, "mask": spec.mask}
    for name, value in named.items():
        if value is not None:
            for index in [value.argument] if value.operation == "scalar" else loaded_arguments(value):
                block.args[index].name_hint = name
    for output in spec.outputs:
        block.args[output.argument].name_hint = "logarithms" if output.argument == spec.logarithms else "out"


class _AttentionLowering(Grid):
    def __init__(
        self, spec: AttentionSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(builder, arguments)
        self.spec = spec
        self.bm, self.bn = schedule.integers("tile")
        self.head, self.value_head = schedule.integers("head")
        self.exact = bool(schedule["exact"])
        self.dtype = spec.accumulator.dtype
        self.softmax = OnlineSoftmax(builder, self.dtype, self.bm, axis=1)

    def lower(self) -> None:
        builder, spec, softmax = self.builder, self.spec, self.softmax
        queries, self.keys = self.extent("q"), self.extent("k")
        with self.over({**dict.fromkeys(spec.batch, 1), "q": self.bm}) as at:
            self.at = {**at, "q": self._longest_first(at["q"], queries) if spec.causal else at["q"]}
            scale = self._write(spec.scale, {"q": self.bm, "": 1}, {})
            factor = softmax.scale_factor(scale, spec.scoring is not None)
            if not self._scales_scores:
                softmax.factor = factor
            self.factor = factor
            factor.name_hint = "factor"
            self.q = self._operand(spec.q, {"q": self.bm, "d": self.head}, {"d": builder.index(0)})
            self.range = KeyRange.of(builder, self.at["q"], self.bm, queries, self.keys, spec.causal)
            acc = builder.splat(0.0, self.dtype, (self.bm, self.value_head))
            if spec.logarithms is not None:
                axis = spec.batch[0]
                self.range = self.range.part(builder, self.bn, self.keys, at[axis], self.extent(axis))
            m, total, sums = self.range.walk(builder, self.bn, (*softmax.initial(), acc), self._block)
            logarithm = None if spec.logarithms is None and spec.saved is None else softmax.logarithm(m, total)
            if spec.logarithms is not None and logarithm is not None:
                self._store_logarithms(spec.logarithms, logarithm)
            self._epilogue(softmax.mean(sums, total), None if spec.saved is None else logarithm)

    def _longest_first(self, query: SSAValue, queries: SSAValue) -> SSAValue:
        """The blocks of queries from the last one on, which sees the most keys: the short ones fill the end."""
        builder, step = self.builder, self.builder.index(self.bm)
        blocks = builder.floor_div(builder.sub(queries, builder.index(1)), step)
        mirrored = builder.sub(builder.mul(blocks, step), query)
        first = builder.maximum(builder.index(0), mirrored)
        first.name_hint = "first"
        return first

    @property
    def _adds_mask(self) -> bool:
        return self.spec.mask is not None and self.spec.mask.dtype is not bool_

    @property
    def _scales_scores(self) -> bool:
        return self._adds_mask or self.spec.scoring is not None

    # -- access ---------------------------------------------------------------------------------------------------

    def _write(
        self, value: Value, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Sequence[str] = ()
    ) -> SSAValue:
        """The tile of an expression over axes of the given sizes, of which a tile fits along those `inside`."""
        return self._writer(sizes, at, inside).write(value, tuple(sizes.values()))

    def _writer(self, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Sequence[str]) -> TileWriter:
        writer = TileWriter(self.builder, self.arguments, dict(sizes), Scope(frozenset(), 0))
        writer.enter({**self.at, **at}, {axis: axis in inside for axis in sizes})
        return writer

    def _operand(
        self, value: Value, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Sequence[str] = ()
    ) -> SSAValue:
        """A tile as it is multiplied: narrow floats as they lie in memory, as their products are exact in fp32."""
        raw = value.arguments[0] if value.operation == "cast" else value
        is_narrow = raw.operation == "load" and raw.dtype.itemsize <= 2
        return self._write(raw if is_narrow else value, sizes, at, (*inside, *(("d", "v") if self.exact else ())))

    @property
    def element(self) -> DType:
        """The dtype in which operands are multiplied."""
        raw = self.spec.q.arguments[0] if self.spec.q.operation == "cast" else self.spec.q
        return raw.dtype if raw.dtype.itemsize <= 2 else self.dtype

    # -- one block of keys ----------------------------------------------------------------------------------------

    def _block(self, key: SSAValue, at_edge: bool, state: State) -> Sequence[SSAValue]:
        builder, softmax = self.builder, self.softmax
        m, total, sums = state
        inside = () if at_edge else ("k",)
        scores = self._scores(key, at_edge, inside)
        m_next = softmax.raised(m, softmax.largest(scores))
        base = softmax.base(m_next)
        decay = softmax.decay(m, base)
        weights = softmax.weights(scores, base)
        named = {"scores": scores, "m_next": m_next, "base": base, "decay": decay, "weights": weights}
        for name, value in named.items():
            value.name_hint = name
        total = softmax.total(total, decay, builder.reduce(weights, "add", 1))
        at = {"k": key, "v": builder.index(0)}
        values = self._operand(self.spec.v, {"k": self.bn, "v": self.value_head}, at, inside)
        # Weights of 8 bits would be coarse; a value of 8 bits is exact in bf16.
        element = bf16 if self.element.itemsize == 1 else self.element
        narrow, values = builder.cast(weights, element), builder.cast(values, element)
        shrunk = softmax.shrunk(sums, decay)
        return m_next, total, builder.mma(narrow, values, shrunk, self.bm, self.value_head, self.bn, element)

    def _scores(self, key: SSAValue, at_edge: bool, inside: Sequence[str]) -> SSAValue:
        """The scores of a block, multiplied by the factor where a mask was added; those of hidden keys are -inf."""
        builder, softmax, shape = self.builder, self.softmax, (self.bm, self.bn)
        keys = self._operand(self.spec.k, {"d": self.head, "k": self.bn}, {"k": key, "d": builder.index(0)}, inside)
        zero = builder.splat(0.0, self.dtype, shape)
        scores = builder.mma(self.q, keys, zero, self.bm, self.bn, self.head, self.element)
        mask = None
        if self.spec.mask is not None:
            mask = self._write(self.spec.mask, {"q": self.bm, "k": self.bn}, {"k": key}, inside)
        if self._scales_scores:
            scores = builder.append(arith.MulfOp(scores, softmax.spread(self.factor, scores)))
        scores = scored(self._writer({"q": self.bm, "k": self.bn}, {"k": key}, inside), self.spec.scoring, scores)
        if mask is not None:
            scores = additive(builder, scores, mask, self.dtype) if self._adds_mask else softmax.hide(scores, mask)
        if at_edge and self.spec.causal:  # no query of the result sees past the last key
            return softmax.hide(scores, softmax.below_diagonal(self.at["q"], key, self.range.shift, shape))
        return softmax.hide(scores, builder.mask(key, self.keys, shape, 1)) if at_edge else scores

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
