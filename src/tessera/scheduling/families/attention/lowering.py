"""The kernel of attention that a schedule asks for, on CPUs."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.families.attention.blocks import BlockedAttention
from tessera.scheduling.families.attention.decode import DecodingAttention
from tessera.scheduling.families.attention.matrix import MatrixAttention
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import AttentionSpec, kernel_module


def lower_attention(spec: AttentionSpec, schedule: Schedule, vector_bytes: int, native_bf16: bool) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `attention/space.py`) for a target with vectors of so
    many bytes; `native_bf16` says that it multiplies bf16 pairs.
    """
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    builder = TileBuilder(block)
    if schedule["lanes"] == "head":
        lanes = vector_bytes // spec.accumulator.dtype.itemsize
        DecodingAttention(spec, schedule, lanes, builder, arguments).lower()
    else:
        nest = MatrixAttention if schedule.get("unit") == MATRIX else BlockedAttention
        nest(spec, schedule, native_bf16, builder, arguments).lower()
    return module
