"""Micro-kernels: each of the three forms the same product, by one protocol, inside the same loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.dtypes import DType, bf16, fp32
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile, LoopNest
from tessera.scheduling.lowering.microkernel.dot_product import DotProductKernel
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS, MatrixUnitKernel
from tessera.scheduling.lowering.microkernel.panels import PanelReader, packed_panels
from tessera.scheduling.lowering.microkernel.protocol import MicroKernel, Read, Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import VectorKernel
from tessera.scheduling.lowering.ranges import rounded_up
from tessera.scheduling.lowering.spec import ContractionSpec, kernel_module
from tests.unit.scheduling import specs

PART = 64
"""Elements of K after which a sum begins anew."""


class Multiplied(NamedTuple):
    """A micro-kernel for one register tile, what reads its operands from an element of K on, and the axes, sizes and
    corners of the tiles of results.
    """

    kernel: MicroKernel
    left: Callable[[SSAValue], Read]
    right: Callable[[SSAValue], Read]
    sizes: dict[str, int]
    corners: list[tuple[int, int]]


Form: TypeAlias = Callable[[LoopNest, ContractionSpec, AxisTile, AxisTile], Multiplied]


def by_vectors(nest: LoopNest, spec: ContractionSpec, m: AxisTile, n: AxisTile) -> Multiplied:
    """Columns along lanes."""
    kernel = VectorKernel(nest.builder, m.size, n.size, 1, fp32, fp32)

    def left(k: SSAValue) -> Read:
        return lambda _: nest.write(spec.a, {"m": m.size, "k": 1}, {"m": m.start, "k": k})

    def right(k: SSAValue) -> Read:
        return lambda _: nest.write(spec.b, {"k": 1, "n": n.size}, {"k": k, "n": n.start})

    return Multiplied(kernel, left, right, {"m": m.size, "n": n.size}, [(0, 0)])


def by_dot_products(nest: LoopNest, spec: ContractionSpec, m: AxisTile, n: AxisTile) -> Multiplied:
    """K along lanes."""
    builder, lanes = nest.builder, 16
    kernel = DotProductKernel(builder, m.size, n.size, lanes, fp32, fused=True)

    def left(k: SSAValue) -> Read:
        def row(number: int) -> SSAValue:
            at = {"m": builder.add(m.start, builder.index(number)), "k": k}
            return nest.write(spec.a, {"m": 1, "k": lanes}, at)

        return row

    def right(k: SSAValue) -> Read:
        return lambda _: nest.write(spec.b, {"n": n.size, "k": lanes}, {"n": n.start, "k": k})

    return Multiplied(kernel, left, right, {"n": n.size, "m": 1}, [(row, 0) for row in range(m.size)])


def by_matrix_unit(nest: LoopNest, spec: ContractionSpec, m: AxisTile, n: AxisTile) -> Multiplied:
    """Tiles of 16 by 16, of B in pairs of rows."""
    builder, depth = nest.builder, 2 * UNIT_ROWS
    rows, columns = range(0, m.size, UNIT_ROWS), range(0, n.size, UNIT_ROWS)
    kernel = MatrixUnitKernel(builder, rows, columns, UNIT_ROWS, depth, bf16, fp32)
    a, b = spec.a.arguments[0], spec.b.arguments[0]
    extents = rounded_up(builder, nest.extent("k"), depth), builder.index(n.size)
    with packed_panels(builder, extents, (256, n.size), n.size, bf16, "L2", 2) as stage:
        at = {"k": stage.row, "n": builder.add(n.start, stage.column)}
        stage.tile = nest.write(b, {"k": 2, "n": n.size}, at)
    panels = PanelReader(builder, stage.buffer, 2)

    def left(k: SSAValue) -> Read:
        sizes = {"m": UNIT_ROWS, "k": depth}
        return lambda row: nest.write(a, sizes, {"m": builder.add(m.start, builder.index(row)), "k": k})

    def right(k: SSAValue) -> Read:
        zero, shape = builder.index(0), (UNIT_ROWS, UNIT_ROWS, 2)
        return lambda column: panels.groups([zero], panels.group_of(k), builder.index(column), shape)

    return Multiplied(kernel, left, right, {"m": UNIT_ROWS, "n": UNIT_ROWS}, kernel.tiles)


def lowered(form: Form, spec: ContractionSpec, tile: tuple[int, int]) -> ModuleOp:
    """The product in loops around a register tile."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    builder = TileBuilder(block)
    nest = LoopNest(builder, arguments)
    k = nest.extent("k")
    with nest.shares({axis: nest.extent(axis) for axis in "mn"}, dict(zip("mn", tile, strict=True)), 0) as share:
        for m in nest.tiles(share["m"], tile[:1]):
            for n in nest.tiles(share["n"], tile[1:]):
                made = form(nest, spec, m, n)

                def step(k: SSAValue, sums: Sums, whole: bool, made: Multiplied = made) -> Sums:
                    return made.kernel.step(made.left(k), made.right(k), sums)

                kernel, span = made.kernel, (builder.index(0), k)
                sums = summed(builder, span, kernel.depth, kernel.zeros(), step, part=PART, has_rest=True)
                for (row, column), total in zip(made.corners, kernel.finish(sums), strict=True):
                    at = {
                        "m": builder.add(m.start, builder.index(row)),
                        "n": builder.add(n.start, builder.index(column)),
                    }
                    nest.store(spec.outputs, {spec.accumulator: total}, made.sizes, at)
    verify(module)
    return module


@pytest.mark.parametrize("k", [0, 1, 31, 64, 150])
@pytest.mark.parametrize(
    ("form", "dtype", "b_axes", "tile"),
    [
        (by_vectors, fp32, "kn", (3, 16)),
        (by_dot_products, fp32, "nk", (2, 4)),
        (by_matrix_unit, bf16, "kn", (32, 32)),
    ],
    ids=["vectors", "dot products", "matrix unit"],
)
def test_each_micro_kernel_forms_the_product(
    form: Form, dtype: DType, b_axes: str, tile: tuple[int, int], k: int
) -> None:
    m, n = 7, 21
    spec = specs.matmul(dtype, b_axes=b_axes)
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randn(shape, generator=generator).to(dtype.torch) for shape in ((m, k), (k, n)))
    stored = b if b_axes == "kn" else b.T.contiguous()
    out = torch.full((m, n), float("nan"), dtype=dtype.torch)
    run_kernel(lowered(form, spec, tile), [a, stored, out], partition=random.Random(k))
    torch.testing.assert_close(out.double(), a.double() @ b.double(), atol=2e-2 if dtype is bf16 else 1e-4, rtol=1e-2)


def test_tiles_cover_a_range_with_ever_smaller_sizes() -> None:
    spec = specs.matmul(fp32)
    _, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    nest = LoopNest(TileBuilder(block), arguments)
    tiles = list(nest.tiles((nest.builder.index(0), nest.extent("m")), (8, 4, 1)))
    assert [(tile.size, tile.inside) for tile in tiles] == [(8, True), (4, True), (1, True)]
    (masked,) = nest.tiles((nest.builder.index(0), nest.extent("m")), (8,))
    assert not masked.inside, "the last size takes all that is left"
