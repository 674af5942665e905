"""Candidates of a tuning: the kernels of each schedule of a call, compiled a batch at a time, ready to be measured.

Compilers take from a tenth of a second to seconds for a kernel, and their processes more to start: a batch is compiled
at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.compiler.bind.arrays import Call, Storage, View
from tessera.compiler.bind.launcher import Launcher, is_decomposed
from tessera.compiler.bind.launches import Launch, kernel_launches
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.planner import Build, Operands
from tessera.compiler.tune.workloads import extents_of_call, operands_of_call, scalar_bits, workload_of
from tessera.errors import CompileError
from tessera.scheduling.language.schedule import Schedule
from tessera.system.priority import current_niceness
from tessera.tuning.measure.workload import Case, OperandSpec, Workload


@dataclass(frozen=True)
class Launched:
    """What a schedule of a call launches, in order, the slot of each storage in the worker's address table, and the
    temporaries that follow the call's own arguments there.
    """

    launches: tuple[Launch, ...]
    builds: tuple[Build, ...]
    slots: dict[Storage, int]
    temporaries: tuple[OperandSpec, ...]


class Candidates:
    """The candidates of one call, compiled as far as they were asked for."""

    def __init__(self, call: Call, compiler: DeviceCompiler) -> None:
        self._call, self._compiler = over_storages_of_its_own(call), compiler
        self._starts = {view.storage: view.offset_bytes for view, _ in self._call.arguments}
        self._launched: dict[Schedule, Launched | CompileError] = {}
        self._kernels: dict[Hashable, Any] = {}
        self._workload: Workload | None = None

    def prepare(self, schedules: Sequence[Schedule]) -> None:
        """Compiles what the schedules need and is not compiled yet, in one go; beside a running program, of which that
        would take too much at once, one is compiled when it is built.
        """
        if not current_niceness():
            self._compile(schedules)

    def _compile(self, schedules: Sequence[Schedule]) -> None:
        missing: dict[Hashable, Build] = {}
        for schedule in schedules:
            launched = self._under(schedule)
            for build in () if isinstance(launched, CompileError) else launched.builds:
                if build.key not in self._kernels:
                    missing[build.key] = build
        made = self._compiler.planner.compiled(list(missing.values()))
        self._kernels.update(zip(missing, made, strict=True))

    def build(self, schedule: Schedule) -> Case:
        """The candidate of a schedule. Raises CompileError where it does not compile, or spills registers."""
        self._compile([schedule])
        launched = self._required(schedule)
        kernels = [self._kernel(build) for build in launched.builds]
        if self._workload is None:
            self._workload = workload_of(self._call, self._compiler.device)
        operands = Operands(launched.slots, self._starts, lambda dtype: scalar_bits(dtype)[1])
        launches: tuple[Any, ...] = tuple(
            build.launched(kernel, operands) for build, kernel in zip(launched.builds, kernels, strict=True)
        )
        return Case(self._workload, launches, launched.temporaries, self._compiler.planner.occupancy_limit(kernels))

    def abort(self) -> None:
        """Ends a compilation that is going on in another thread."""
        self._compiler.planner.abort()

    def adopt(self, schedule: Schedule) -> None:
        """Makes the code of a winner in this process, and keeps it on disk."""
        for launch in self._required(schedule).launches:
            self._compiler.planner.adopt(launch)

    def _kernel(self, build: Build) -> Any:
        made = self._kernels[build.key]
        if isinstance(made, CompileError):
            raise made
        return made

    def _required(self, schedule: Schedule) -> Launched:
        launched = self._under(schedule)
        if isinstance(launched, CompileError):
            raise launched
        return launched

    def _under(self, schedule: Schedule) -> Launched | CompileError:
        known = self._launched.get(schedule)
        if known is None:
            try:
                known = launched_under(self._call, schedule, self._compiler)
            except CompileError as error:
                known = error
            self._launched[schedule] = known
        return known


def over_storages_of_its_own(call: Call) -> Call:
    """The call over a storage for each operand, as workers have them: also where several inputs are views of one
    tensor, or the same view of it. An input that is read under two alignments is one operand.
    """
    loads = call.item.loads
    own: dict[tuple[int, View], View] = {}
    arguments = []
    for index, (view, words) in enumerate(call.arguments):
        operand = loads[index][0] if index < len(loads) else len(loads) + index
        moved = own.setdefault((operand, view), view._replace(storage=Storage(view.storage.nbytes)))
        arguments.append((moved, words))
    return Call(call.item, tuple(arguments), call.shaped)


def launched_under(call: Call, schedule: Schedule, compiler: DeviceCompiler) -> Launched:
    """What a call launches under a schedule: its kernel, or the parts of one that is not fused, or split."""
    launches = [Launch(call, compiler.choose(call, schedule))]
    if is_decomposed(call, schedule, compiler):
        inputs, outputs = operands_of_call(call)
        launcher = Launcher(compiler, extents_of_call(call))
        launcher.launch(call.item, inputs, outputs, schedule)
        launches = kernel_launches(launcher.launches)
    slots = _slots(call)
    temporaries: list[OperandSpec] = []
    for launch in launches:
        for view, _ in launch.call.arguments:
            if view.storage not in slots:
                slots[view.storage] = len(call.arguments) + len(temporaries)
                temporaries.append(OperandSpec(view.shape, view.strides, view.dtype.name, "zero"))
    builds = tuple(map(compiler.planner.build, launches))
    return Launched(tuple(launches), builds, slots, tuple(temporaries))


def _slots(call: Call) -> dict[Storage, int]:
    """The slots of the arguments: buffers first, then scalars."""
    slots: dict[Storage, int] = {}
    buffers, scalars = 0, sum(not view.is_scalar for view, _ in call.arguments)
    for view, _ in call.arguments:
        if view.is_scalar:
            slots.setdefault(view.storage, scalars)
            scalars += 1
        else:
            slots.setdefault(view.storage, buffers)
            buffers += 1
    return slots
