"""Launches: what binding collects, and what it asks of the compiler of a device.

Binding turns a program and extents into launches over views, and decides where results and temporaries lie. Which
schedule a launch has, and what kernel and plan come of it, is the business of the device's compiler (`DeviceCompiler`).
A launch holds a choice, not a kernel: launches can be looked at without compiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from tessera.compiler.bind.arrays import Call, View
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.ops.record import Operator
from tessera.runtime.memory.derived import Derivation
from tessera.runtime.plans.plan import PlanOutput, Slot
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ScheduleSource
from tessera.target import Target


class Choice(NamedTuple):
    """How a call runs: its subject (on CPUs with code for several K blocks if need be), schedule and number of workers
    (1 on GPUs, whose grid follows from the schedule); `source` says who chose the schedule.
    """

    subject: Subject
    schedule: Schedule
    workers: int
    source: ScheduleSource


class Launch(NamedTuple):
    """One kernel launch before slots and arena offsets are known. `whole` is the call that this is a step of, where it
    takes several: that is what has a schedule to be chosen, and tuned.
    """

    call: Call
    choice: Choice
    whole: Call | None = None

    @property
    def subject(self) -> Subject:
        """What is launched."""
        return self.choice.subject

    @property
    def schedule(self) -> Schedule:
        """How it is launched."""
        return self.choice.schedule


class LibraryLaunch(NamedTuple):
    """One call of a library before slots and arena offsets are known."""

    operator: Operator
    attributes: Mapping[str, Any]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]


AnyLaunch: TypeAlias = Launch | LibraryLaunch


def views_of(launch: AnyLaunch) -> list[View]:
    """The tensors that a launch reads and writes."""
    if isinstance(launch, Launch):
        return [view for view, _ in launch.call.arguments]
    return [*launch.inputs, *launch.outputs]


def kernel_launches(launches: Sequence[AnyLaunch]) -> list[Launch]:
    """The launches of kernels among all."""
    return [launch for launch in launches if isinstance(launch, Launch)]


class Memory(NamedTuple):
    """Where the tensors of a plan lie: its slots (every storage of the launches has its number), the size in bytes of
    each result and of the arena of temporaries, the outputs, and the copies of constants: (leaf, what is made of it).
    """

    slots: Sequence[Slot]
    results: Sequence[int]
    outputs: Sequence[PlanOutput]
    arena_bytes: int
    derived: Sequence[tuple[int, Derivation]] = ()


PlanT_co = TypeVar("PlanT_co", covariant=True)


class PlanCompiler(Protocol[PlanT_co]):
    """The compiler of one device, as binding sees it."""

    @property
    def device(self) -> str:
        """Where results lie, by the name that structures have for it."""

    @property
    def target(self) -> Target:
        """The device that kernels are made for."""

    @property
    def model(self) -> RooflineModel | None:
        """What says what calls cost; None where nobody does."""

    @property
    def decided(self) -> dict[object, bool]:
        """What that model has decided about decompositions."""

    @property
    def largest_axis(self) -> int:
        """The largest extent that a kernel takes: dimensions are not merged beyond it."""

    def subject(self, call: Call) -> Subject:
        """What a call is on this device: one object for each kernel, layout pattern, and policy that it depends on."""

    def over_constants(self, call: Call) -> Call:
        """The call as it runs: over copies of the constants among its operands, where these are faster to read."""

    def choose(self, call: Call, schedule: Schedule | None = None) -> Choice:
        """How a call will run: under `schedule` if one is given, else as tuned, else by default. Compiles nothing."""

    def choose_default(self, subject: Subject, call: Call) -> Choice:
        """How one step of a call will run under the default schedule of its subject."""

    def copy_item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor of this dtype and rank; extents of 1 are static."""

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> PlanT_co:
        """The plan that runs the launches in order, its kernels compiled as far as they are new."""
