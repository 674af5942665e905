"""Schedule IR: what one kernel computes, and how (`tessera.schedule.*`).

A kernel is first one over tensors, as fusion makes it: a region of graph operations, whatever their operands' layout.
Bound to a layout it is one over buffers, which is what lowerings take: its region is arithmetic on elements
(`region.py`), `arguments` has the axes that each buffer walks, `knobs` is the schedule, and `extents`, where
they are there, are those that the schedule was chosen for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BoolAttr,
    DictionaryAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    TensorType,
)
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    opt_attr_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from tessera.ir.anchors.rules import product
from tessera.ir.attributes import to_value
from tessera.ir.graph import product_rules as products
from tessera.ir.graph.checks import expect_anchor
from tessera.ir.schedule.region import REGION_OPERATIONS


@irdl_op_definition
class ScheduleYieldOp(IRDLOperation):
    """Ends a kernel's region; its operands are the kernel's results."""

    name = "tessera.schedule.yield"
    values = var_operand_def(TensorType)
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ScheduleKernelOp(IRDLOperation):
    """One kernel: over tensors a region of graph operations over its operands, which are the region's arguments and
    whose results it yields; over buffers, which no operand stands for, a region of operations on elements.

    `family` says what kind of kernel it is; the folders of `scheduling/families` say which kinds there are. Over
    buffers a kernel has more attributes, which its family reads: what else there is to know of what is computed.
    """

    name = "tessera.schedule.kernel"
    inputs = var_operand_def(TensorType)
    sym_name = attr_def(StringAttr)
    family = attr_def(StringAttr)
    arguments = opt_attr_def(ArrayAttr[DictionaryAttr])
    knobs = opt_attr_def(DictionaryAttr)
    extents = opt_attr_def(DictionaryAttr)
    body = region_def("single_block")
    outputs = var_result_def(TensorType)
    traits = traits_def(IsolatedFromAbove(), NoTerminator(), Pure())

    @property
    def is_bound(self) -> bool:
        """Whether this is a kernel over buffers."""
        return self.arguments is not None

    def verify_(self) -> None:
        if self.is_bound:
            self._verify_bound()
        else:
            self._verify_fused()

    def _verify_fused(self) -> None:
        arguments = [argument.type for argument in self.body.block.args]
        if arguments != [value.type for value in self.inputs]:
            raise VerifyException("the region's arguments differ in type from the kernel's operands")
        last = self.body.block.last_op
        if not isinstance(last, ScheduleYieldOp):
            raise VerifyException("the region ends in tessera.schedule.yield")
        if [value.type for value in last.values] != [value.type for value in self.outputs]:
            raise VerifyException("the yielded values differ in type from the kernel's results")

    def _verify_bound(self) -> None:
        assert self.arguments is not None
        if self.inputs or self.outputs:
            raise VerifyException("a kernel over buffers has neither operands nor results")
        arguments = self.body.block.args
        if len(arguments) != len(self.arguments):
            raise VerifyException(f"`arguments` describes {len(self.arguments)} of {len(arguments)} arguments")
        for argument in arguments:
            if not isinstance(argument.type, (MemRefType, IntegerType, AnyFloat)):
                raise VerifyException(f"kernel argument of type {argument.type}: only memrefs and scalars")
        for op in self.body.block.ops:
            if not isinstance(op, tuple(REGION_OPERATIONS)):
                raise VerifyException(f"{op.name} is no operation on elements")


@irdl_op_definition
class TileOp(IRDLOperation):
    """How a value is tiled: of one operand the identity, of two operands their tiled matrix product.

    The tile is written `tile_sizes = [128, 128, 32]` or `m = 128, n = 128, k = 64`; `autotune` lets the tuner change
    it, `cost_model` names the model that chose it.
    """

    name = "tessera.schedule.tile"
    inputs = var_operand_def(TensorType)
    tile_sizes = opt_attr_def(ArrayAttr[IntegerAttr])
    m = opt_attr_def(IntegerAttr)
    n = opt_attr_def(IntegerAttr)
    k = opt_attr_def(IntegerAttr)
    cost_model = opt_attr_def(StringAttr)
    autotune = opt_attr_def(BoolAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    @property
    def sizes(self) -> tuple[int, ...]:
        """The tile, however it is written."""
        if self.tile_sizes is not None:
            return cast("tuple[int, ...]", to_value(self.tile_sizes))
        return tuple(side.value.data for side in (self.m, self.n, self.k) if side is not None)

    def verify_(self) -> None:
        sides = [side for side in (self.m, self.n, self.k) if side is not None]
        if (self.tile_sizes is None) == (not sides):
            raise VerifyException("a tile is written either as tile_sizes or as m, n, k")
        if sides and len(sides) != 3:
            raise VerifyException("m, n and k stand together")
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise VerifyException(f"tile sizes {list(self.sizes)} should be positive")
        if len(self.inputs) == 2:
            expect_anchor(self, product)
            products.contraction(self)
        elif len(self.inputs) != 1:
            raise VerifyException(f"tiles one value or a product of two, not {len(self.inputs)} operands")
        elif self.inputs[0].type != self.result.type:
            raise VerifyException(f"tiling {self.inputs[0].type} does not give {self.result.type}")


SCHEDULE_OPERATIONS: Sequence[type[IRDLOperation]] = (ScheduleYieldOp, ScheduleKernelOp, TileOp, *REGION_OPERATIONS)
