"""What the lowerings for GPUs share: the grid over a kernel's axes, names for readers, and hints on the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, SSAValue

from tessera.ir.tile import operations as tile
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import Output, loaded_arguments
from tessera.scheduling.lowering.writer import ArgumentTile, extent_of


def kernel_of(module: ModuleOp) -> tile.KernelOp:
    """The kernel of a module that has been lowered."""
    kernel = module.body.block.first_op
    assert isinstance(kernel, tile.KernelOp)
    return kernel


def with_hints(module: ModuleOp, schedule: Schedule) -> ModuleOp:
    """Notes on the kernel what is no part of its meaning: warps per program, and how deep loads are pipelined."""
    for knob in ("warps", "pipeline_depth"):
        if knob in schedule:
            kernel_of(module).attributes[knob] = IntegerAttr(schedule.integer(knob), i64)
    return module


def name_arguments(block: Block, outputs: Sequence[Output], operands: Sequence[Value]) -> None:
    """Names for readers: `a` and `b` are what a product reads, `out` is what a kernel writes, `x` all else."""
    written = [output.argument for output in outputs]
    for index, argument in enumerate(block.args):
        if index in written:
            argument.name_hint = "out" if len(written) == 1 else f"out{written.index(index)}"
        else:
            argument.name_hint = f"x{index}"
    for name, value in zip(("a", "b"), operands, strict=False):
        for index in loaded_arguments(value)[:1]:
            block.args[index].name_hint = name


class Grid:
    """What both lowerings share: extents of axes, and one loop per dimension of the grid."""

    def __init__(self, builder: TileBuilder, arguments: dict[int, ArgumentTile]) -> None:
        self.builder, self.arguments = builder, arguments

    def extent(self, axis: str) -> SSAValue:
        """The run-time extent of an iteration axis."""
        return extent_of(self.builder, self.arguments.values(), axis)

    @contextmanager
    def over(
        self, axes: Mapping[str, int], group: int = 1, grid: str | None = None, warp_specialize: bool = False
    ) -> Iterator[dict[str, SSAValue]]:
        """The grid over `axes`, each cut into steps of the given size; yields where the program's tile begins.

        The loops run once on a GPU, where a program's share is one step. Without axes one program does the work. Of the
        last two axes `group` steps of the former are taken side by side. `grid` and `warp_specialize` are those of the
        Tile IR's `parallel`.
        """
        extents = [self.extent(axis) for axis in axes] or [self.builder.index(1)]
        steps = list(axes.values()) or [1]
        names = list(axes) or ["program"]
        with ExitStack() as nest:
            bounds = nest.enter_context(self.builder.parallel(extents, steps, 0, group, grid, warp_specialize))
            at: dict[str, SSAValue] = {}
            for name, step, (lower, upper) in zip(names, steps, bounds, strict=True):
                lower.name_hint, upper.name_hint = name, f"{name}_end"
                at[name] = nest.enter_context(self.builder.loop(lower, upper, step)).index
                at[name].name_hint = name
            yield at
