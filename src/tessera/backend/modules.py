"""What backends look for in the modules of Tile IR that they are given."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.errors import CompileError
from tessera.ir import tile


def find_kernel(module: ModuleOp) -> tile.KernelOp:
    """The one kernel of a module. Raises CompileError when there is none or several."""
    kernels = [op for op in module.body.walk() if isinstance(op, tile.KernelOp)]
    if len(kernels) != 1:
        names = ", ".join(kernel.sym_name.data for kernel in kernels) or "none"
        raise CompileError(f"a module with exactly one tessera.tile.kernel is meant; this one has {names}")
    return kernels[0]
