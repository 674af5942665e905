"""The kernel of a convolution that a schedule asks for, on CPUs."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.contraction_problem import MATRIX
from tessera.scheduling.convolution import ConvolutionLowering
from tessera.scheduling.convolution_matrix import MatrixConvolution
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import ConvolutionSpec, kernel_module


def lower_convolution(spec: ConvolutionSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `convolution_space`)."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    nest = MatrixConvolution if schedule.get("unit") == MATRIX else ConvolutionLowering
    nest(spec, schedule, TileBuilder(block), arguments).lower()
    return module
