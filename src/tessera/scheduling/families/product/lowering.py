"""Lowering a matrix product: expressions and a schedule in, a Tile IR kernel out."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.families.product.blocks import BlockedProduct
from tessera.scheduling.families.product.dots import DotProducts
from tessera.scheduling.families.product.matrix.lowering import MatrixProduct
from tessera.scheduling.families.product.matrix.turned import turned_schedule, turned_spec
from tessera.scheduling.families.product.panels import are_packed
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import ContractionSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile


def lower_contraction(
    spec: ContractionSpec, schedule: Schedule, native_bf16: bool, native_int8: bool = False
) -> ModuleOp:
    """The Tile IR of `spec` under `schedule`, for a target that multiplies bf16 pairs, and bytes, or not."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    if schedule["order"] == "dots":
        DotProducts(spec, schedule, TileBuilder(block), arguments).lower()
        return module
    if schedule.get("unit") == MATRIX and not schedule["pack_b"] and not are_packed(spec):
        spec, schedule = turned_spec(spec), turned_schedule(schedule)
        arguments = {index: ArgumentTile(each.value, spec.arguments[index].axes) for index, each in arguments.items()}
    lowering = MatrixProduct if schedule.get("unit") == MATRIX else BlockedProduct
    lowering(spec, schedule, (native_bf16, native_int8), TileBuilder(block), arguments).lower()
    return module
