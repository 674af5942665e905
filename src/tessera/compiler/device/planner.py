"""How one kind of device runs kernels: what its compiler has it make of launches, plans and candidates of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.contract import Backend
from tessera.compiler.bind.arrays import Storage, View
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, Memory
from tessera.compiler.bind.subjects import Subject
from tessera.dtypes import DType
from tessera.lazy.structures.structure import Plan
from tessera.profiling.recording.facts import Traffic
from tessera.profiling.tiles.device_tiles import DeviceTiles
from tessera.profiling.tiles.tiles import Tiles
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target
from tessera.tuning.measure.workload import GpuLaunch, KernelCall, SlotAddress

AnyTiles: TypeAlias = Sequence[Tiles | DeviceTiles | None]
"""Of each step of a plan what its tiles took; None for the steps that have no tiles."""


class Maker(Protocol):
    """What a planner asks of the compiler that it belongs to."""

    @property
    def target(self) -> Target:
        """The device that kernels are made for."""

    def tile_ir(self, subject: Subject, schedule: Schedule, timed: bool = False) -> ModuleOp:
        """The Tile IR of a subject under a schedule, marked as a `timed` build if need be."""

    def without_addresses(self, launch: Launch, unaligned: frozenset[int]) -> Launch:
        """The launch under a schedule that does not rely on the addresses of some slots."""

    def traffic(self, choice: Choice, extents: Mapping[str, int]) -> Traffic:
        """What a launch moves, by memory level, and its scratch memory, in bytes; nothing where no model says so."""


class Operands(NamedTuple):
    """Where a candidate finds its operands: the slot of each storage in the worker's address table, the byte of its
    storage at which an operand begins, and the value of scalar arguments by their dtype.
    """

    slots: Mapping[Storage, int]
    starts: Mapping[Storage, int]
    scalar: Callable[[DType], float]

    def place(self, view: View) -> SlotAddress:
        """Where a view begins."""
        return SlotAddress(self.slots[view.storage], view.offset_bytes - self.starts.get(view.storage, 0))


class Build(Protocol):
    """A launch of a candidate, whose kernel is still to be compiled."""

    @property
    def key(self) -> Hashable:
        """What tells compiled kernels apart."""

    def launched(self, kernel: Any, operands: Operands) -> KernelCall | GpuLaunch:
        """What a worker launches, of the kernel that was compiled."""


class TimedPlan(Protocol):
    """A plan of kernels that time their tiles."""

    @property
    def number(self) -> int:
        """The number that no other plan has."""


Made: TypeAlias = Callable[[TimedPlan, AnyTiles], None]
"""Hears of each timed plan, and of its tiles."""


class Planner(Protocol):
    """Makes plans and candidates of launches for one device."""

    @property
    def device(self) -> str:
        """Where results lie, by the name that structures have for it."""

    @property
    def largest_axis(self) -> int:
        """The largest extent that a kernel takes."""

    @property
    def backend(self) -> Backend[Any]:
        """What makes code of Tile IR."""

    def backend_of(self, schedule: Schedule) -> Backend[Any]:
        """What makes code under a schedule, which may name one. Raises DeviceError for one that there is not."""

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends that schedules may name and that make code here, the default first; none where
        there is no choice.
        """

    def kernel(self, choice: Choice) -> Any:
        """The kernel of a choice: one object for all calls that run it."""

    def scratch_bytes(self, choice: Choice) -> int:
        """The scratch memory of all workers of a choice."""

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> Plan:
        """The plan that runs the launches in order, its kernels compiled as far as they are new."""

    def timed_plan(
        self, launches: Sequence[AnyLaunch], memory: Memory, made: Made, refused: Callable[[str], None]
    ) -> Plan:
        """A plan of kernels that time their tiles; `refused` hears why a kernel does not."""

    @property
    def generator(self) -> str:
        """The revision of what makes code, which decides whether winners of tunings are fresh."""

    def build(self, launch: Launch) -> Build:
        """A launch of a candidate. Compiles nothing."""

    def compiled(self, builds: Sequence[Build]) -> list[Any]:
        """The kernels of candidates, compiled at once, each or the CompileError that says why there is none."""

    def occupancy_limit(self, kernels: Sequence[Any]) -> float | None:
        """The least occupancy that one of these kernels permits; None where that means nothing."""

    def adopt(self, launch: Launch) -> None:
        """Makes the code of a winner in this process, and keeps it on disk."""

    def abort(self) -> None:
        """Ends a compilation of candidates that is going on in another thread, where that can be done."""
