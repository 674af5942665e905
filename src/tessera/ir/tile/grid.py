"""The number of programs that a kernel is launched with, as a function of its arguments' extents."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.target import Target

Extents: TypeAlias = Sequence[Sequence[int]]
"""The extents of each argument of a kernel; nothing for scalars."""
Programs: TypeAlias = Callable[[Extents], int]

_INTEGERS: Mapping[type[Operation], Callable[[int, int], int]] = {
    arith.AddiOp: operator.add,
    arith.SubiOp: operator.sub,
    arith.MuliOp: operator.mul,
    arith.DivSIOp: operator.floordiv,
    arith.DivUIOp: operator.floordiv,
    arith.CeilDivSIOp: lambda a, b: -(-a // b),
    arith.CeilDivUIOp: lambda a, b: -(-a // b),
    arith.MinSIOp: min,
    arith.MaxSIOp: max,
}
"""Arithmetic on extents, none of which is negative."""


def programs_of(module: ModuleOp, target: Target) -> Programs:
    """The function that gives the number of programs of a module's kernel: one for each step of its grid, and on a
    grid whose programs walk the steps at most one for each multiprocessor of `target`. Raises what `steps_of` raises.
    """
    steps = steps_of(module)
    if "grid" not in _grid(module).attributes:
        return steps
    return lambda extents: min(steps(extents), target.cores)


def steps_of(module: ModuleOp) -> Programs:
    """The function that gives the number of steps of a module's grid.

    Raises CompileError for a kernel without exactly one grid, and for extents that are no arithmetic of extents.
    """
    grid = _grid(module)
    counts = [(_extent(extent), step) for extent, step in zip(grid.extents, tile.integers(grid.steps), strict=True)]
    return lambda extents: math.prod([-(-extent(extents) // step) for extent, step in counts])


def _grid(module: ModuleOp) -> tile.ParallelOp:
    grids = [op for op in module.body.walk() if isinstance(op, tile.ParallelOp)]
    if len(grids) != 1:
        raise CompileError(f"a kernel for a GPU is one tessera.tile.parallel; this one has {len(grids)}")
    return grids[0]


def _extent(value: SSAValue) -> Callable[[Extents], int]:
    """A value of the host's side of a kernel as a function of its arguments' extents."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        number = owner.value.value.data
        return lambda _: number
    if isinstance(owner, memref.DimOp) and isinstance(owner.source, BlockArgument):
        argument, dimension = owner.source.index, _extent(owner.index)(())
        return lambda extents: extents[argument][dimension]
    if isinstance(owner, Operation) and type(owner) in _INTEGERS:
        apply, (a, b) = _INTEGERS[type(owner)], (_extent(operand) for operand in owner.operands)
        return lambda extents: apply(a(extents), b(extents))
    raise CompileError(f"the grid's extent is {owner.name if isinstance(owner, Operation) else value.type}")
