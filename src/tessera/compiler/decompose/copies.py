"""The kernel that copies: for roots that are inputs or parts, for reshapes of strided memory, and for concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.ir.attributes import names_of
from tessera.rewrite.fusion.alignment import align_region
from tessera.scheduling.families.rows.copy_kernel import copy_kernel


class CopyKernels:
    """The kernels that copy, each made once: one for each dtype, rank and set of dimensions of extent 1."""

    def __init__(self) -> None:
        self._items: dict[tuple[DType, tuple[bool, ...]], KernelItem] = {}

    def item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor of this dtype and rank; extents of 1 are static."""
        ones = tuple(extent == 1 for extent in shape)
        item = self._items.get((dtype, ones))
        if item is None:
            item = self._items.setdefault((dtype, ones), _copy_item(dtype, ones))
        return item


def _copy_item(dtype: DType, ones: tuple[bool, ...]) -> KernelItem:
    operation = copy_kernel(dtype, ones)
    load = align_region(operation).uses[operation.body.block.args[0]][0]
    domain = names_of(operation.attributes["domain"])
    name, family = operation.sym_name.data, operation.family.data
    return KernelItem(operation, name, family, (0,), (1,), domain, None, ((0, load),), (load,))
