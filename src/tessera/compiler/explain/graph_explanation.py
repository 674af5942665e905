"""What expressions became, as data and as text: kernels, rewrites, schedules, predictions, traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.scheduling.language.sources import ScheduleSource
from tessera.sharding.planner.local_programs import ProgramTime
from tessera.system.notebooks import ShownAsText
from tessera.tuning.explanation import duration

_MB = 1e6


@dataclass(frozen=True)
class KernelExplanation(ShownAsText):
    """One kernel of a plan, or one call of a library. What is not known is None.

    `name` is the kernel's in `inspect("schedule")`, `label` that of `graph.profile`. `predicted_us` is the cost model's
    time of a call, `binding` the resource that it waits for most, `ceilings` where the model's rates come from.
    `traffic` are the bytes that a call moves to and from each memory level, and the scratch memory it uses, by the
    model; `rewrites` the rules behind the kernel.
    """

    name: str
    label: str
    operators: tuple[str, ...]
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    flops: float
    bytes: float
    workers: int | None = None
    schedule: str = ""
    source: ScheduleSource | None = None
    predicted_us: float | None = None
    binding: str | None = None
    ceilings: str | None = None
    traffic: Mapping[str, float] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()

    def __str__(self) -> str:
        facts = [("schedule", f"{self.schedule} ({self.source})" if self.schedule else "a call of a library")]
        if self.predicted_us is not None:
            workers = "" if self.workers is None else f" with {self.workers} worker{'s' if self.workers != 1 else ''}"
            waits = f"waits for {self.binding} (ceilings: {self.ceilings})"
            facts.append(("predicted", f"{duration(self.predicted_us / 1e6)}{workers}, {waits}"))
        moved = [f"{level} {nbytes / _MB:.3g} MB" for level, nbytes in self.traffic.items() if nbytes]
        if moved:
            facts.append(("traffic", ", ".join(moved)))
        if self.rewrites:
            facts.append(("rewrites", ", ".join(self.rewrites)))
        return "\n".join([f"{self.label}  {self.name}", *(f"  {name:<9}  {text}" for name, text in facts)])


@dataclass(frozen=True)
class PlanExplanation(ShownAsText):
    """What one evaluation runs: its kernels in order, the rewrites as `inspect("rewrites")` lists them, and why what
    goes through memory between kernels does.
    """

    device: str
    kernels: tuple[KernelExplanation, ...]
    rewrites: tuple[str, ...]
    through_memory: tuple[str, ...]

    @property
    def predicted_us(self) -> float | None:
        """The model's time of all kernels, None where it does not know one of them."""
        known = [kernel.predicted_us for kernel in self.kernels if kernel.predicted_us is not None]
        return sum(known) if len(known) == len(self.kernels) else None

    def __str__(self) -> str:
        count = f"{len(self.kernels)} kernel{'s' if len(self.kernels) != 1 else ''}"
        time = "" if self.predicted_us is None else f", {duration(self.predicted_us / 1e6)} predicted"
        parts = [f"{count} on {self.device}{time}", *map(str, self.kernels)]
        return "\n".join(
            [*parts, *_section("rewrites", self.rewrites), *_section("through memory", self.through_memory)]
        )


@dataclass(frozen=True)
class MoveExplanation:
    """A step between devices: "AllReduce[tp]", the bytes that each device receives, from which layout to which, and
    why. It is `implicit` where it brings data together that the program neither sums nor asks for.
    """

    step: str
    bytes: int
    source: str
    target: str
    reason: str
    implicit: bool

    def __str__(self) -> str:
        asked = "  (implicit)" if self.implicit else ""
        return f'{self.step}  {self.bytes:,} bytes  "{self.source}" -> "{self.target}"  {self.reason}{asked}'


@dataclass(frozen=True)
class MeshExplanation(ShownAsText):
    """What an expression over tensors of a mesh became: the program of each device as text, what moves between devices,
    what the model expects it to take, by the rates of a topology of this name, and in which order what is computed,
    begun and waited for where it has run.
    """

    mesh: str
    program: str
    moves: tuple[MoveExplanation, ...]
    predicted: ProgramTime
    topology: str
    schedule: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes that each device receives."""
        return sum(move.bytes for move in self.moves)

    def __str__(self) -> str:
        head = f"mesh {self.mesh}: each device receives {self.bytes:,} bytes"
        time = f"{self.predicted} (rates of {self.topology})"
        moves, program = _section("moves", tuple(map(str, self.moves))), _section("program", (self.program,))
        return "\n".join([head, time, *moves, *program, *_section("schedule", self.schedule)])


@dataclass(frozen=True)
class GraphExplanation(ShownAsText):
    """What `graph.explain` gives: the plans of a step, each once, in the order in which they first ran, and what became
    of expressions over tensors of a mesh. Printing it shows the text.
    """

    plans: tuple[PlanExplanation, ...]
    meshes: tuple[MeshExplanation, ...] = ()

    @property
    def kernels(self) -> tuple[KernelExplanation, ...]:
        """The kernels of all plans."""
        return tuple(kernel for plan in self.plans for kernel in plan.kernels)

    def __str__(self) -> str:
        return "\n\n".join(map(str, (*self.meshes, *self.plans))) or "nothing is computed"


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return [heading, *(f"  {line}" for line in lines)] if lines else []
