"""The kernel of a convolution that a schedule asks for, on CPUs."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.families.convolution.matrix import MatrixConvolution
from tessera.scheduling.families.convolution.nest import BlockedConvolution
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import ConvolutionSpec, kernel_module


def lower_convolution(spec: ConvolutionSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `convolution/space.py`)."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    nest = MatrixConvolution if schedule.get("unit") == MATRIX else BlockedConvolution
    nest(spec, schedule, TileBuilder(block), arguments).lower()
    return module
