"""Decompositions: a call that runs as several, as a small program over workspaces.

    attention of one query     ->    means, logarithms = attention of each part of the keys;   result = joined(both)
    gelu(x) - mean(gelu(x))    ->    its operations, fused anew with reductions apart from dear maps

A `Decomposition` says of which calls it is one, why, and which steps it takes. It stands in the folder of its family,
whose `Family` value lists it. `compiler/decompose` tries the decompositions of a family in that order, on CPUs and on
GPUs, and the first that applies runs in the place of the call. A step that is the call itself over other memory is
tried anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from xdsl.dialects.builtin import ModuleOp

from tessera.dtypes import DType
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.ops.record import Operator
from tessera.rewrite.fusion.kernels import Bounds
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Argument, Spec
from tessera.scheduling.model.estimate import Estimate
from tessera.target import Target

T = TypeVar("T")

When: TypeAlias = Literal["layout", "call", "schedule"]
"""When a decomposition is tried: where no kernel takes the operands as they lie, and the arguments of the call are the
kernel's inputs; before a schedule is chosen for the call, which none can change; or under it.
"""
Memory: TypeAlias = int | str
"""An argument of the call, by its number, or a workspace, by its name."""


class CallOperand(Protocol):
    """A tensor that a call reads or writes."""

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Its strides, in elements."""


@dataclass(frozen=True)
class Workspace:
    """Memory between steps, contiguous: it lives from the first step that writes it to the last one that reads it."""

    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Array:
    """What a step takes of a memory: the extents and strides, in elements, that its descriptor holds. `dtype` and
    `shape` are those that the memory is seen in, where these are not its own.
    """

    memory: Memory
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None
    offset_bytes: int = 0
    stands_for: int | None = None
    """The argument that reports see in its place."""


@dataclass(frozen=True)
class KernelStep:
    """A kernel of its own: a specification over arrays. Without a `schedule` it runs under its default, `workers` are
    then those that it can use. With `moves` it only moves what the call computes with, and reports say so.
    """

    spec: Spec
    arrays: tuple[Array, ...]
    extents: Mapping[str, int]
    schedule: Schedule | None = None
    workers: int = 1
    moves: bool = False


@dataclass(frozen=True)
class Itself:
    """The call over other arrays in place of some of its arguments, with what its kernel takes each of them for (that
    of inputs is found).
    """

    arrays: Mapping[int, tuple[Argument | None, Array]]
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Copied:
    """A copy of one array into another one of the same extents."""

    source: Array
    result: Array


@dataclass(frozen=True)
class Called:
    """A call of a library on an array, for what no kernel does."""

    operator: Operator
    attributes: Mapping[str, Any]
    source: Array
    result: Array


@dataclass(frozen=True)
class Parts:
    """Another kernel over the operands of the call, with `count` equal parts of its last dimension as a new first one,
    of the same name as the extent `axis`. It writes one workspace, over all but the last of these dimensions.
    """

    kernel: ScheduleKernelOp
    axis: str
    count: int
    result: str
    schedule: Schedule


@dataclass(frozen=True)
class Function:
    """The kernels of a fused function over workspaces and then all operands of the call; `extents` are those that it
    has beside those of the call.
    """

    module: ModuleOp
    workspaces: tuple[str, ...]
    extents: Mapping[str, int]


@dataclass(frozen=True)
class Fused:
    """The operations of the kernel, fused anew within bounds; a kernel of the same family runs under `schedule`."""

    bounds: Bounds
    schedule: Schedule | None = None


Step: TypeAlias = KernelStep | Itself | Copied | Called | Parts | Function | Fused


@dataclass(frozen=True)
class Steps:
    """What runs in the place of a call, in order."""

    steps: tuple[Step, ...]
    workspaces: Mapping[str, Workspace] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What the cost model expects of a launch under its schedule."""

    schedule: Schedule
    seconds: float


class DecomposableCall(Protocol):
    """A call that may be decomposed, on a device. What it tells is found when it is asked for."""

    @property
    def target(self) -> Target:
        """The device."""

    @property
    def kernel(self) -> ScheduleKernelOp:
        """What is computed, as operators."""

    @property
    def spec(self) -> Any:
        """What is computed, over the axes of the call."""

    @property
    def extents(self) -> Mapping[str, int]:
        """The extents of the axes."""

    @property
    def named(self) -> Mapping[str, int]:
        """The extents of the kernel's dimensions, by their names."""

    @property
    def arguments(self) -> Sequence[tuple[CallOperand, tuple[int, ...]]]:
        """Each argument of the kernel, with the extents and strides that its descriptor holds."""

    @property
    def kinds(self) -> Sequence[Argument]:
        """What the kernel takes each argument for."""

    @property
    def pins(self) -> Schedule:
        """The knobs that the user pinned."""

    @property
    def fixed_order(self) -> bool:
        """Whether the order of sums may depend on nothing but the operands."""

    @property
    def schedule(self) -> Schedule:
        """The schedule that was chosen (under "schedule")."""

    @property
    def asked(self) -> Schedule | None:
        """The schedule that somebody asked for; None where one is chosen."""

    @property
    def is_given(self) -> bool:
        """Whether somebody asked for a schedule."""

    @property
    def workers(self) -> int:
        """The workers that share the work under that schedule."""

    def problem(self) -> Any:
        """What rules and cost models need to know of the call, for all workers that there are."""

    def estimate(self, problem: Any, schedule: Schedule) -> Estimate:
        """What the cost model of a CPU expects of a problem under a schedule."""

    def itself(self) -> Expected:
        """What it expects of the call under its schedule."""

    def expected(self, steps: Steps) -> Sequence[Expected]:
        """What it expects of each launch of other steps."""

    def is_laid_out_contiguously(self) -> bool:
        """Whether the kernel would take contiguous copies of what it reads (under "layout")."""

    def is_divided(self, bounds: Bounds) -> bool:
        """Whether the kernel becomes several where it is fused anew within bounds."""

    def once(self, make: Callable[[Any], T]) -> T:
        """What `make` gives for the specification, made once for each kernel and layout."""

    def once_of_kernel(self, make: Callable[[ScheduleKernelOp], T]) -> T:
        """What `make` gives for the kernel, made once."""


@dataclass(frozen=True, eq=False)
class Decomposition:
    """One way in which a call becomes several: its name, and the reason in words.

    `applies` says exactly whether it can, or has to, run so; it is asked at every binding. Where `pays` is given, that
    decides among what applies: it asks the cost model, once for extents of about the same size. `proposes` gives, for a
    specification, extents and a target, the schedule under which a call that nobody pinned should run so.
    """

    name: str
    why: str
    when: When
    applies: Callable[[DecomposableCall], bool]
    steps: Callable[[DecomposableCall], Steps]
    pays: Callable[[DecomposableCall], bool] | None = None
    proposes: Callable[[Any, Mapping[str, int], Target], Schedule | None] | None = None
