"""The pass of this room: Schedule IR to Tile IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from tessera import target as targets
from tessera.errors import IRError, TesseraError
from tessera.ir.passes import Pass
from tessera.ir.refusal import RefusalError
from tessera.ir.schedule import operations as schedule_ir
from tessera.scheduling.families.legality import check_schedule
from tessera.scheduling.families.registry import families, family_called, lower
from tessera.scheduling.lowering.schedule_reader import read_kernel
from tessera.target import Target

CPU = "cpu"


@dataclass(frozen=True)
class LowerSchedulePass(Pass):
    """Kernels over buffers become Tile IR for `target`: "cpu" is this machine's, others are GPUs and Arm CPUs by name.

    Before: `tessera.schedule.kernel` with its region and its knobs, after: the `tessera.tile.kernel` that its family's
    lowering writes of these. Everything else stays.
    """

    name: ClassVar[str] = "lower-schedule"
    target: str = CPU

    def apply(self, module: ModuleOp) -> None:
        machine = target_called(self.target)
        for operation in list(module.walk()):
            if isinstance(operation, schedule_ir.ScheduleKernelOp) and operation.is_bound:
                for made in list(lowered_kernel(operation, machine).ops):
                    made.detach()
                    Rewriter.insert_op(made, InsertPoint.before(operation))
                Rewriter.erase_op(operation)


SCHEDULING_PASSES: Mapping[str, str] = {LowerSchedulePass.name: f"{__name__}:{LowerSchedulePass.__name__}"}
"""The passes of this room: name -> "module:Class"."""


def target_called(name: str) -> Target:
    """The device of a name. Raises UnsupportedTargetError for an unknown one."""
    if name == CPU:
        return targets.detect()
    return targets.arm_cpu(name) if name in targets.ARM_CPUS else targets.gpu(name)


def lowered_kernel(operation: schedule_ir.ScheduleKernelOp, target: Target) -> ModuleOp:
    """The Tile IR of a kernel over buffers. Raises RefusalError for one that is none of its family, or whose schedule
    is not legal.
    """
    name = operation.family.data
    family = family_called(name)
    if family is None:
        known = ", ".join(family.name for family in families())
        error = IRError(f"no family is called {name!r}", hints=[f"families are {known}"], where="")
        raise RefusalError(error, operation, "family")
    spec, schedule, extents = read_kernel(operation, family.spec)
    try:
        wrong = check_schedule(spec, schedule, extents, target)
        if wrong is None:
            return lower(spec, schedule, target)
    except TesseraError as error:
        raise RefusalError(error, operation) from error
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        # Lowerings trust that a specification comes from binding, and say no more than what they tripped over.
        said = f"the lowering of {family.kernels} cannot take this kernel ({type(error).__name__}: {error})"
        raise RefusalError(IRError(said, where=""), operation) from error
    knob, objection = wrong
    raise RefusalError(objection, operation, f"knobs.{knob}" if knob in schedule else "knobs")
