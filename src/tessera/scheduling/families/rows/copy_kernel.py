"""The kernel that copies a tensor, as fusion would have made it of a cast to the tensor's own dtype."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Block, Region

from tessera.dtypes import DType
from tessera.ir.attributes import ELEMENT_TYPES, dimension_names, tensor_type, to_attribute
from tessera.ir.graph import operations as graph
from tessera.ir.schedule import operations as schedule_ir


def copy_kernel(dtype: DType, ones: Sequence[bool]) -> schedule_ir.ScheduleKernelOp:
    """A kernel over a tensor of this dtype; `ones` says which extents are static 1."""
    kind = tensor_type(tuple(1 if one else None for one in ones), ELEMENT_TYPES[dtype.name])
    names = tuple("1" if one else f"s{i}" for i, one in enumerate(ones))
    block = Block(arg_types=[kind])
    copy = graph.create("cast", [block.args[0]], kind, {"dtype": dtype.name})
    copy.attributes |= {"mapping": to_attribute(tuple(range(len(ones)))), "dims": dimension_names(names)}
    block.add_ops([copy, schedule_ir.ScheduleYieldOp.create(operands=[copy.result])])
    dims = ArrayAttr([dimension_names(names)])
    return schedule_ir.ScheduleKernelOp.create(
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
