"""The kernel that copies: for roots that are inputs or parts, for reshapes of strided memory, and for concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Block, Region

from tessera.compiler.graph.building import element
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.ir.attributes import dimension_names, tensor_type, to_attribute
from tessera.ir.graph import operations as graph
from tessera.ir.schedule import operations as schedule_ir
from tessera.rewrite.fusion.alignment import align_region


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
    """A kernel that copies a tensor of this dtype; `ones` says which extents are static 1."""
    kind = tensor_type(tuple(1 if one else None for one in ones), element(dtype))
    names = tuple("1" if one else f"s{i}" for i, one in enumerate(ones))
    block = Block(arg_types=[kind])
    copy = graph.create("cast", [block.args[0]], kind, {"dtype": dtype.name})
    mapping = tuple(range(len(ones)))
    copy.attributes |= {"mapping": to_attribute(mapping), "dims": dimension_names(names)}
    block.add_ops([copy, schedule_ir.ScheduleYieldOp.create(operands=[copy.result])])
    dims = ArrayAttr([dimension_names(names)])
    operation = schedule_ir.ScheduleKernelOp.create(
        operands=[],
        result_types=[],
        attributes={
            "sym_name": StringAttr("copy"),
            "family": StringAttr("row"),
            "argument_dims": dims,
            "result_dims": dims,
            "domain": dimension_names(names),
        },
        regions=[Region(block)],
    )
    alignments = align_region(operation)
    load = alignments.uses[block.args[0]][0]
    return KernelItem(operation, "copy", "row", (0,), (1,), names, None, ((0, load),), (load,))
