"""What a family of kernels is: for one kind of problem its schedules, its costs and its lowerings, on CPUs and on GPUs.

Each folder beside this file is a family, and exports one constant, `FAMILY`, from its `family.py` (`registry.py` finds
them). What compiles, tunes and judges kernels looks a family up by the class of its specification or of its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.binding.arrays import Arrays, Copy, Limits, Pattern, ShapedArrays
from tessera.scheduling.binding.regions import Region
from tessera.scheduling.families.backends import with_backend
from tessera.scheduling.families.decomposition import Decomposition
from tessera.scheduling.language.columns import Knobs
from tessera.scheduling.language.knobs import Rule, Space
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import Argument
from tessera.scheduling.model.estimate import LEVELS
from tessera.scheduling.model.gpu_estimate import GpuEstimate
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.scheduling.model.machine import Machine, Work
from tessera.scheduling.model.shares import sharing_flops, waking
from tessera.target import Target

P = TypeVar("P")

PARALLEL_FLOPS = 2_000_000
"""Work below which starting a second worker costs more than it saves where that takes 1.1 us (Zen 4); the same of what
is bound by memory, in bytes.
"""
PARALLEL_BYTES = 1 << 18


def pays(target: Target, flops: float = 0.0, nbytes: float = 0.0) -> bool:
    """Whether work of so many FLOP, or over so many bytes, is worth waking a second worker of this CPU."""
    return flops >= sharing_flops(target, PARALLEL_FLOPS) or nbytes >= PARALLEL_BYTES * waking(target)


WIDEST_ACCESS_BYTES = 16
"""The widest access of one thread of a GPU."""

Layouts: TypeAlias = Mapping[int, tuple[int, int]]
"""For arguments of a kernel: the bytes, at most `WIDEST_ACCESS_BYTES`, that divide address and strides, and those that
divide the extent along stride 1 as well.
"""


class Problem(Protocol):
    """What every family's problem tells: the extents that a choice of schedule depends on, and the workers."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""

    @property
    def workers(self) -> int:
        """The workers that share the kernel's work."""


Poser: TypeAlias = Callable[..., Any]
"""(extents, workers) -> the problem; of kernels that read layouts (extents, workers, layouts), without which operands
are packed. On the path of binding.
"""


@dataclass(frozen=True)
class Packed:
    """A constant operand as a kernel reads it: the form of the copy (`runtime.derived.Form`), extents and strides of
    the constant in the order that the form has, what the kernel takes it for, and the extents of the copy.
    """

    form: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: Argument
    extents: tuple[int, ...]


PackedBy: TypeAlias = Callable[[Any, Mapping[str, int], Mapping[int, Sequence[int]], Target], Mapping[int, Packed]]
"""(specification, extents, strides of the arguments that are constants, target) -> those that are read packed, which
the specification and their own extents and strides decide.
"""

LayOut: TypeAlias = Callable[
    [Region, Sequence[int], Arrays[Any], Limits, Copy[Any]], tuple[Arrays[Any], ShapedArrays] | None
]
"""(kernel, extents of its domain, tensors, limits of the device, what makes copies of tensors that cannot be read as
they lie) -> the tensors, and their arrays. On the path of binding.
"""


class Kernels(Protocol):
    """A family's kernels on one kind of device, as compilers see them: those of CPUs are the `Family` itself, those of
    GPUs its `gpu`.
    """

    @property
    def name(self) -> str:
        """What the tuner calls their cost model."""

    @property
    def pose(self) -> Callable[[Any, Target], Poser]:
        """Gives what makes problems of a specification on a target."""

    @property
    def space(self) -> Callable[[Any], Space[Any]]:
        """All schedules of a problem."""

    @property
    def rules(self) -> tuple[Rule[Any], ...]:
        """The rules of these, whatever the problem."""

    @property
    def start(self) -> Callable[[Any], Schedule]:
        """The proven schedule of a problem."""

    @property
    def lower(self) -> Callable[[Any, Schedule, Target], ModuleOp]:
        """Gives the Tile IR of a specification under a schedule."""

    @property
    def accumulation(self) -> Callable[[Any], str]:
        """The name of the dtype of a problem's sums."""

    @property
    def shape(self) -> Callable[[Any, Mapping[str, int]], tuple[int, ...]]:
        """The size that a tuned schedule is remembered for."""

    @property
    def is_modelled(self) -> bool:
        """Whether a cost model knows them; without one they run under the start, and are not tuned."""

    @property
    def searched(self) -> Callable[[Space[Any], Any], Mapping[str, Sequence[KnobValue]]]:
        """The choices of knobs that a search looks at, but for pinned ones; of a knob that it does not name, all."""

    @property
    def sum_order(self) -> Callable[[Schedule, Any], tuple[KnobValue, ...]] | None:
        """What of a schedule decides the bits of a result, where a fixed order of sums limits schedules."""

    @property
    def is_shared(self) -> Callable[[Any], bool]:
        """Whether a problem is worth a second worker."""

    @property
    def in_blocks(self) -> Callable[[Schedule, Any], bool]:
        """Whether a problem takes several blocks of its reduced axis under a schedule, which is other code."""

    @property
    def packed(self) -> PackedBy | None:
        """Gives the constants that kernels read packed, and how."""

    @property
    def promises(self) -> Callable[[Any, Schedule, Mapping[str, int]], str | None]:
        """What a specification promises of extents that do not keep it under a schedule; None where all is well."""

    @property
    def reads_layouts(self) -> bool:
        """Whether schedules depend on how a call's operands lie."""

    @property
    def code_axes(self) -> frozenset[str]:
        """Axes whose extents decide what code is made, so that shapes of a bucket differ there."""

    @property
    def tunes_steps(self) -> bool:
        """Whether steps of decompositions are tuned like kernels that are alone; else they have one schedule."""

    @property
    def step_knobs(self) -> frozenset[str]:
        """Knobs of kernels that are one of several steps, which no space has."""


def _nothing_more(space: Space[Any], problem: Any) -> Mapping[str, Sequence[KnobValue]]:
    return {}


def _all_extents(problem: Any, extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extents.values())


def _all_kept(spec: Any, schedule: Schedule, extents: Mapping[str, int]) -> str | None:
    return None


@dataclass(frozen=True)
class GpuModel:
    """What is known of a family's schedules on GPUs, so that they can be estimated and tuned.

    `problem` is the class of its problems. `estimate` says what a schedule costs, with what the compiler reported of a
    block where that is known; `best` gives the schedules of one launch that cost least of those that are worth a look,
    and `chosen` the one that a problem has by default on a machine of such rates, of several launches too.
    """

    problem: type[Any]
    estimate: Callable[[Any, Schedule, GpuMachine, BlockResources | None], GpuEstimate]
    best: Callable[[Any, int, GpuMachine], Sequence[GpuEstimate]]
    chosen: Callable[[Any, GpuMachine], GpuEstimate]


@dataclass(frozen=True)
class GpuKernels:
    """A family's kernels on GPUs: `Kernels` says what each field is. One worker, the device, runs them all. All have
    the knob `backend`, which `space`, `start` and `rules` get here.
    """

    name: str
    pose: Callable[[Any, Target], Poser]
    space: Callable[[Any], Space[Any]]
    rules: tuple[Rule[Any], ...]
    start: Callable[[Any], Schedule]
    lower: Callable[[Any, Schedule, Target], ModuleOp]
    accumulation: Callable[[Any], str]
    model: GpuModel | None = None
    shape: Callable[[Any, Mapping[str, int]], tuple[int, ...]] = _all_extents
    searched: Callable[[Space[Any], Any], Mapping[str, Sequence[KnobValue]]] = _nothing_more
    sum_order: Callable[[Schedule, Any], tuple[KnobValue, ...]] | None = None
    is_shared: Callable[[Any], bool] = lambda problem: False
    in_blocks: Callable[[Schedule, Any], bool] = lambda schedule, problem: False
    packed: PackedBy | None = None
    promises: Callable[[Any, Schedule, Mapping[str, int]], str | None] = _all_kept
    reads_layouts: bool = False
    code_axes: frozenset[str] = frozenset()
    step_knobs: frozenset[str] = frozenset()
    tunes_steps: Literal[False] = False

    def __post_init__(self) -> None:
        for name, value in zip(
            ("space", "start", "rules"), with_backend(self.space, self.start, self.rules), strict=True
        ):
            object.__setattr__(self, name, value)

    @property
    def is_modelled(self) -> bool:
        """Whether a cost model knows them; without one they run under the start, and are not tuned."""
        return self.model is not None


@dataclass(frozen=True)
class Family:
    """One family of kernels, by its name; `kernels` is what users call them.

    `lower` gives the Tile IR of a specification under a schedule, `space`, `rules` and `start` are the schedules of a
    problem and the proven one of them, `pose` gives what makes problems of extents, `work` is what one makes a worker
    do, and `sum_order` what of one decides the bits of a result. `is_shared` says whether a problem is worth a second
    worker, `accumulation` names the dtype of its sums. All of these are of CPUs; `gpu` has what GPUs run, if they run
    any.
    """

    name: str
    kernels: str
    spec: type[Any]
    problem: type[Any]
    lower: Callable[[Any, Schedule, Target], ModuleOp]
    space: Callable[[Any], Space[Any]]
    rules: tuple[Rule[Any], ...]
    start: Callable[[Any], Schedule]
    pose: Callable[[Any, Target], Poser]
    work: Callable[[Any, Knobs, Machine], Work]
    sum_order: Callable[[Schedule, Any], tuple[KnobValue, ...]]
    is_shared: Callable[[Any], bool]
    accumulation: Callable[[Any], str]
    counted: tuple[str, ...] = LEVELS
    """The memory levels of which `work` has all traffic; of others it has what can hold a kernel up."""
    shape: Callable[[Any, Mapping[str, int]], tuple[int, ...]] = _all_extents
    """The size that a tuned schedule is remembered for."""
    identity: Callable[[Any], str] = lambda spec: ""
    """What tells specifications of one operator and one layout apart."""
    promises: Callable[[Any, Schedule, Mapping[str, int]], str | None] = _all_kept
    """What a specification promises of extents that do not keep it under a schedule; None where all is well."""
    gpu: GpuKernels | None = None
    regions: tuple[str, ...] = ()
    """The families of Schedule IR's kernels that are computed so."""
    lay_out: LayOut | None = None
    """Gives the arrays of such a kernel over merged axes, of the extents of its domain; None where its operands, as
    they lie, have no axes in common.
    """
    read: Callable[[Region, Pattern], Any] | None = None
    """Gives the specification of such a kernel, whose arguments a pattern describes."""
    packed: PackedBy | None = None
    """Gives the constants that kernels read packed, and how."""
    takes_any_order: bool = False
    """Whether kernels are as fast whichever dimension of what they read is contiguous."""
    in_blocks: Callable[[Schedule, Any], bool] = lambda schedule, problem: False
    """Whether a problem takes several blocks of its reduced axis under a schedule, which is other code."""
    under_math: Callable[[Any, bool, bool], Any] = lambda spec, tf32, rewrites: spec
    """Gives a specification the math that a policy permits: `tf32` for all, or, where arithmetic may be rewritten, what
    its operators permit.
    """
    math: Callable[[Any], Literal["ieee", "tf32"]] = lambda spec: "ieee"
    """The math of a specification's products."""
    reads_before: Callable[[Any, Set[int], int], bool] = lambda spec, sources, target: False
    """Whether a kernel reads each element of the arguments `sources` before it writes the element of the argument
    `target` that lies at the same place of its domain, so that these may be the same memory.
    """
    between: Callable[[Sequence[int]], int] | None = None
    """The elements that algebra in the place of a kernel would have in memory, by the extents of the kernel's domain;
    None where kernels stand for no algebra.
    """
    is_anchored: bool = False
    """Whether its kernels are made around one operation; the kernel that holds it keeps the schedule of the whole."""
    decompositions: tuple[Decomposition, ...] = ()
    """The ways in which a call becomes several, in the order in which they are tried."""
    searched: Callable[[Space[Any], Any], Mapping[str, Sequence[KnobValue]]] = _nothing_more
    is_modelled: Literal[True] = True
    reads_layouts: Literal[False] = False
    code_axes: frozenset[str] = frozenset()
    step_knobs: frozenset[str] = frozenset()
    tunes_steps: Literal[True] = True

    def on(self, target: Target) -> Kernels | None:
        """What the family has on a device; None where it has nothing."""
        return self if target.kind == "cpu" else self.gpu


def like(problem: P, **changes: int) -> P:
    """A problem with some fields changed. The constructor of a frozen dataclass, and `replace`, set field by field,
    which takes four times as long.
    """
    made = object.__new__(type(problem))
    vars(made).update(vars(problem), **changes)
    return made


def dtype_of_sums(problem: Any) -> str:
    """The name of the dtype that a problem of products adds up in."""
    name: str = problem.accumulator.name
    return name
