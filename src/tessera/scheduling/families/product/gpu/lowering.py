"""Lowering of matrix products for GPUs: a grid over batch, M / BM and N / BN, one loop over K in steps of BK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import SSAValue

from tessera.dtypes import fp32, tf32
from tessera.errors import ScheduleError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.divisors import divisors_attribute
from tessera.scheduling.families.product.gpu.operands import multiplied, stored
from tessera.scheduling.families.product.gpu.problem import knob, number
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import Grid, kernel_of, name_arguments, with_hints
from tessera.scheduling.lowering.spec import Argument, ContractionSpec, kernel_module, loaded_arguments
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter


def lower_contraction_gpu(spec: ContractionSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a matrix product on a GPU.

    Knobs: those of `product/gpu/space.py`. Raises ScheduleError for `split_k` above 1, which makes several kernels:
    parts as a batch of products, and what adds them up.
    """
    if number(schedule, "split_k") > 1:
        raise ScheduleError("a product whose K is split is two kernels", hints=["lower its parts with split_k=1"])
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    name_arguments(block, spec.outputs, [spec.a, spec.b])
    _ContractionLowering(spec, schedule, TileBuilder(block), arguments).lower()
    kernel = kernel_of(module)
    if number(schedule, "max_registers"):
        kernel.attributes["max_registers"] = IntegerAttr(number(schedule, "max_registers"), i64)
    if knob(schedule, "grid") == "fused":
        # Elsewhere the next tile's sums begin when this one's are stored.
        kernel.attributes["accumulators"] = IntegerAttr(number(schedule, "accumulators"), i64)
    if number(schedule, "vector_bytes"):
        kernel.attributes["divisors"] = divisors_attribute(
            tuple([_divisors(argument, number(schedule, "vector_bytes")) for argument in spec.arguments])
        )
    return with_hints(module, schedule)


def _divisors(argument: Argument, vector_bytes: int) -> tuple[int, ...]:
    """What is in units of a vector: the address, the extent along stride 1 and the strides that are no constants of a
    buffer with a stride of 1, of others only the address in units of an element.
    """
    if argument.is_scalar:
        return ()
    size, strides = argument.dtype.itemsize, argument.strides
    count = max(vector_bytes // size, 1) if 1 in strides else 1
    extents = [count if stride == 1 else 1 for stride in strides]
    return (count * size, *extents, *[count if stride is None else 1 for stride in strides])


class _ContractionLowering(Grid):
    def __init__(
        self, spec: ContractionSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(builder, arguments)
        self.spec, self.schedule = spec, schedule
        self.bm, self.bn, self.bk = schedule.integers("tile")
        self.grid = str(knob(schedule, "grid"))
        self.specialized = bool(knob(schedule, "warp_specialize"))

    def lower(self) -> None:
        spec, builder = self.spec, self.builder
        depth = self.extent("k")
        flat = self.grid == "flat"
        axes = {**dict.fromkeys(spec.batch, 1), "m": self.bm, "n": self.bn}
        group = number(self.schedule, "group")
        with self.over(axes, group, None if flat else self.grid, self.specialized and not flat) as at:
            zero = builder.splat(0, spec.accumulator.dtype, (self.bm, self.bn))
            with builder.loop(
                builder.index(0), depth, self.bk, [zero], warp_specialize=self.specialized and flat
            ) as loop:
                loop.index.name_hint, loop.carried[0].name_hint = "k", "acc"
                where = {**at, "k": loop.index}
                left, right = multiplied(spec)
                a = self._operand("a", left, {"m": self.bm, "k": self.bk}, where, depth)
                b = self._operand("b", right, {"k": self.bk, "n": self.bn}, where, depth)
                element = left.dtype
                if element is fp32 and spec.math == "tf32":
                    element = tf32
                loop.yielded = (builder.mma(a, b, loop.carried[0], self.bm, self.bn, self.bk, element),)
            self._epilogue(loop.results[0], at)

    def _hints(self, name: str, is_plain: bool = True) -> dict[str, str]:
        """`access` and `eviction` of the loads or stores of "a", "b" or "out"."""
        indexing, eviction = str(knob(self.schedule, f"{name}_indexing")), str(knob(self.schedule, f"{name}_eviction"))
        hints = {} if indexing == "pointer" or not is_plain else {"access": indexing}
        return hints if eviction == "normal" else {**hints, "eviction": eviction}

    def _writer(self, sizes: dict[str, int], at: Mapping[str, SSAValue]) -> TileWriter:
        writer = TileWriter(self.builder, self.arguments, sizes, Scope(frozenset(), 0))
        writer.enter(at, dict.fromkeys(sizes, False))
        return writer

    def _operand(
        self, name: str, value: Value, sizes: dict[str, int], at: Mapping[str, SSAValue], depth: SSAValue
    ) -> SSAValue:
        """One block of an operand; beyond K it is zero."""
        shape = tuple(sizes.values())
        raw = stored(value)
        writer = self._writer(sizes, at)
        writer.hints = dict.fromkeys(loaded_arguments(value), self._hints(name, raw.operation == "load"))
        if raw.operation == "load":
            return writer.write(value, shape)
        # What a prologue makes of the zeros beyond K need not be zero.
        written = writer.write(value, shape)
        mask = self.builder.mask(at["k"], depth, shape, list(sizes).index("k"))
        zero = self.builder.splat(0, value.dtype, shape)
        return self.builder.append(tile.SelectOp.create(operands=[mask, written, zero], result_types=[written.type]))

    def _epilogue(self, acc: SSAValue, at: Mapping[str, SSAValue]) -> None:
        """Stores the outputs, part by part of the tile's columns."""
        parts = self._parts([acc], number(self.schedule, "epilogue_parts"))
        width = self.bn // len(parts)
        for index, part in enumerate(parts):
            column = self.builder.add(at["n"], self.builder.index(index * width)) if index else at["n"]
            self._store(part, {**at, "n": column}, (self.bm, width))

    def _parts(self, tiles: list[SSAValue], wanted: int) -> list[SSAValue]:
        while len(tiles) < wanted:
            tiles = [half for whole in tiles for half in self.builder.split(whole, 1)]
        return tiles

    def _store(self, acc: SSAValue, at: Mapping[str, SSAValue], shape: Sequence[int]) -> None:
        writer = self._writer({"m": shape[0], "n": shape[1]}, at)
        writer.define(self.spec.accumulator, acc)
        for output in self.spec.outputs:
            axes = self.spec.arguments[output.argument].axes
            self.builder.store(
                writer.write(output.value, (shape[0], shape[1])),
                self.arguments[output.argument].value,
                [at[axis] for axis in axes],
                [axes.index("m"), axes.index("n")],
                [False, False],
                hints=self._hints("out"),
            )
