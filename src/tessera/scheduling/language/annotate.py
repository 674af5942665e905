"""Schedules in Schedule IR: the knobs as attributes of a kernel, and the tile on its matrix product.

"tessera.schedule.kernel"(%A, %B) ({            "tessera.schedule.kernel"(%A, %B) ({
  %0 = "tessera.graph.matmul"(%a, %b)      ->     %0 = "tessera.graph.matmul"(%a, %b)
                                                  %1 = "tessera.schedule.tile"(%0) {m = 144, n = 2048, k = 256}
  "tessera.schedule.yield"(%0)                    "tessera.schedule.yield"(%1)
}) {family = "contraction"}                     }) {family = "contraction", tile = [144, 2048, 256], unroll = 4}
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute

from tessera.errors import ScheduleError
from tessera.ir import schedule as schedule_ir
from tessera.ir.attributes import integers_of, to_attribute, to_value
from tessera.ir.graph import GraphOperation
from tessera.ops.record import family_of
from tessera.scheduling.language.schedule import KnobValue, Schedule

MODEL = "roofline"
"""The cost model that ranks the schedules of a kernel; see `scheduling.cost`."""

_OWN = frozenset({"sym_name", "family", "argument_dims", "result_dims", "domain", "reduced"})
"""Attributes of a kernel that say what it computes; all others are knobs."""


def annotate(kernel: schedule_ir.KernelOp, schedule: Schedule, cost_model: str = MODEL) -> None:
    """Writes `schedule` onto `kernel`, in place: an attribute for each knob, and the tile of its matrix product.

    A kernel without a matrix product gets the attributes only. A schedule that stood there before is replaced.
    """
    for name in kernel.attributes.keys() - _OWN:
        del kernel.attributes[name]
    for knob, value in schedule.items():
        kernel.attributes[knob] = to_attribute(value)
    anchor = _anchor(kernel)
    if anchor is None:
        return
    for use in list(anchor.result.uses):
        if isinstance(use.operation, schedule_ir.TileOp):
            use.operation.result.replace_all_uses_with(anchor.result)
            kernel.body.block.erase_op(use.operation)
    sizes = dict(zip("mnk", schedule.integers("tile"), strict=True))
    attributes: dict[str, Attribute] = {side: to_attribute(size) for side, size in sizes.items()}
    tile = schedule_ir.TileOp.create(
        operands=[anchor.result],
        result_types=[anchor.result.type],
        attributes={**attributes, "cost_model": StringAttr(cost_model)},
    )
    anchor.result.replace_all_uses_with(tile.result)
    tile.operands[0] = anchor.result
    kernel.body.block.insert_op_after(tile, anchor)


def schedule_of(kernel: schedule_ir.KernelOp) -> Schedule:
    """The schedule that `annotate` wrote. Raises ScheduleError for an attribute that is no knob's value."""
    return Schedule({name: _knob(name, value) for name, value in kernel.attributes.items() if name not in _OWN})


def _knob(name: str, attribute: Attribute) -> KnobValue:
    value = to_value(attribute)
    if isinstance(value, tuple):
        return integers_of(attribute)
    if not isinstance(value, bool | int | str):
        raise ScheduleError(f"{name} = {attribute} is no knob's value", hints=["a boolean, integer, text or integers"])
    return value


def _anchor(kernel: schedule_ir.KernelOp) -> GraphOperation | None:
    """The matrix product of a contraction."""
    products = (op for op in kernel.body.block.ops if isinstance(op, GraphOperation))
    return next((op for op in products if family_of(op.operator) == "contraction"), None)
