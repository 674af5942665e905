"""Plans of GPUs: the launches of a program over one table of addresses, run one by one or as a graph.

A plan owns what does not change between calls: for each launch the kernel, the grid, and a template of the arguments
whose holes are filled from the table. A call takes memory for results and temporaries from the device's driver, fills
the table, and hands it to the plan's `GraphRunner`, which knows what the device holds already. Nothing waits: results
are there in the order of the stream, as torch's are.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from tessera.lazy.leaves.leaf import Leaf
from tessera.profiling.attach import listener
from tessera.profiling.recording import facts as step_facts
from tessera.profiling.recording import instrumentation
from tessera.profiling.recording.device_kernels import COLLECTOR
from tessera.profiling.session import replay
from tessera.runtime.devices.device import DeviceMemory, Driver, Grid, LaunchOf, Loaded
from tessera.runtime.plans.gpu_graphs import GraphRunner, Table
from tessera.runtime.plans.plan import FactsSource, PlanOutput, Slot, layout_of, next_plan_number

ALIGNMENT: Final = 16
"""What divides the addresses that kernels are compiled to rely on, in bytes."""


class Hole(NamedTuple):
    """An argument that changes from call to call: number `position` of a launch.

    Of a buffer it is the table's word `slot` plus `offset` bytes; of a scalar (`kind`, Triton's name of its type, is
    set) the number whose bits are that word.
    """

    position: int
    slot: int
    offset: int = 0
    kind: str = ""


class DeviceStep(NamedTuple):
    """One launch: `arguments` has a number for each of the kernel's parameters, whatever stands in the holes."""

    kernel: Loaded
    grid: Grid
    arguments: tuple[int | float, ...]
    holes: tuple[Hole, ...]

    def launch(self, table: Table) -> LaunchOf:
        """The launch over the memory of one call."""
        arguments = list(self.arguments)
        for position, slot, offset, kind in self.holes:
            arguments[position] = _scalar(table[slot], kind) if kind else table[slot] + offset
        return LaunchOf(self.kernel, self.grid, arguments)


class DevicePlan:
    """A plan that `run(leaves)` executes on a device. Thread-safe.

    `aligned` are the slots whose words must be multiples of `ALIGNMENT`: where a leaf's address is not, `realigned`
    gives the plan of the same launches that does not rely on it there. `run` raises MemoryLimitError (E_MEMORY_LIMIT)
    when results or temporaries do not fit the device, and what the driver reports of launches.
    """

    threads: Final[int | None] = None
    """It runs on a GPU, whatever number of threads the program has."""

    __slots__ = (
        "__weakref__",
        "_aligned",
        "_others",
        "_outputs",
        "_realigned",
        "_results",
        "_runner",
        "_slots",
        "arena_bytes",
        "driver",
        "number",
        "steps",
    )

    def __init__(
        self,
        *,
        driver: Driver,
        steps: Sequence[DeviceStep],
        slots: Sequence[Slot],
        results: Sequence[int],
        outputs: Sequence[PlanOutput],
        arena_bytes: int = 0,
        facts: FactsSource = (),
        aligned: Sequence[int] = (),
        realigned: Callable[[frozenset[int]], Self] | None = None,
        runner: GraphRunner | None = None,
    ) -> None:
        """`results`: size in bytes of each result. `arena_bytes`: temporaries, taken for each call and given back.
        `facts`: what reports say of each step. `runner`: one that plans of the same kernels share.
        """
        self.number = next_plan_number()
        self.driver = driver
        self.steps = tuple(steps)
        self.arena_bytes = arena_bytes
        self._slots, self._results, self._outputs = tuple(slots), tuple(results), tuple(outputs)
        self._aligned, self._realigned = tuple(aligned), realigned
        self._others: dict[frozenset[int], Self] = {}
        self._runner = runner or GraphRunner(driver)
        step_facts.register_plan(self.number, facts)
        listener.listen()
        weakref.finalize(self, step_facts.retire_plan, self.number).atexit = False

    def run(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """Enqueues the launches over `leaves`, and gives a leaf per output, whose values come in the stream's order."""
        memories = [self.driver.allocate(nbytes) for nbytes in self._results]
        self._enqueue(leaves, [memory.address for memory in memories])
        return tuple([self._leaf(output, leaves, memories) for output in self._outputs])

    def run_into(self, leaves: Sequence[Leaf], targets: Sequence[Leaf]) -> bool:
        """As `BoundPlan.run_into`: writes to memory that exists, or gives False with nothing done."""
        wanted = [layout_of(output.structure) for output in self._outputs]
        if [layout_of(target.structure) for target in targets] != wanted or len(wanted) != len(self._results):
            return False
        addresses = {output.number: target.address for output, target in zip(self._outputs, targets, strict=True)}
        if len(addresses) != len(wanted):
            return False
        self._enqueue(leaves, [addresses[number] for number in range(len(self._results))])
        return True

    def reserve(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """As `BoundPlan.reserve`: memory of the stream that is torch's current one."""
        memories = [self.driver.allocate(nbytes) for nbytes in self._results]
        return tuple([self._leaf(output, leaves, memories) for output in self._outputs])

    def fill(self, leaves: Sequence[Leaf], targets: Sequence[Leaf]) -> None:
        """As `BoundPlan.fill`; enqueues, and does not wait."""
        addresses = {
            output.number: target.address
            for output, target in zip(self._outputs, targets, strict=True)
            if output.structure is not None
        }
        self._enqueue(leaves, [addresses[number] for number in range(len(self._results))])

    def _enqueue(self, leaves: Sequence[Leaf], results: Sequence[int]) -> None:
        if not self.steps:
            return
        arena, table = self._table(leaves, results)
        stream = self.driver.stream()
        counting = replay.current
        if counting is not None and counting.counts(self.driver.name) and not self.driver.is_capturing():
            plan = self._serving(table)
            counting.run(lambda: plan.launch_each(table, stream), plan.number, len(plan.steps), self.driver.name)
            return
        timed = COLLECTOR.enter(self.number, len(self.steps), self.driver.name)
        try:
            # The graph as it is, first: addresses that it holds have been looked at.
            if not self._runner.repeat(self.number, table, stream):
                plan = self._serving(table)
                plan._runner.run(plan.number, plan.steps, table, stream)
            instrumentation.note_unmeasured(self.driver.name, len(self.steps))
        finally:
            if timed is not None:
                timed.leave()
        del arena  # goes back to torch's allocator, which hands it out again in the order of the stream

    def _table(self, leaves: Sequence[Leaf], results: Sequence[int]) -> tuple[DeviceMemory | None, Table]:
        """The temporaries' memory, and the words of one call."""
        arena = self.driver.allocate(self.arena_bytes) if self.arena_bytes else None
        base = 0 if arena is None else arena.address
        return arena, tuple(
            [
                leaves[number].address if kind == "leaf" else results[number] if kind == "result" else base
                for kind, number in self._slots
            ]
        )

    def launch_each(self, table: Table, stream: int) -> None:
        """Launches the steps one by one, not as a graph, and waits for them."""
        for step in self.steps:
            self.driver.launch(*step.launch(table), stream)
        self.driver.synchronize(stream)

    def _serving(self, table: Table) -> Self:
        """The plan for the memory of one call: this one, or one that relies less on where leaves start."""
        unaligned = frozenset([slot for slot in self._aligned if table[slot] % ALIGNMENT])
        return self._relying_less(unaligned) if unaligned else self

    def _relying_less(self, unaligned: frozenset[int]) -> Self:
        """The plan for leaves that start anywhere, made at its first call."""
        other = self._others.get(unaligned)
        if other is None:
            assert self._realigned is not None
            other = self._others[unaligned] = self._realigned(unaligned)
        return other

    def _leaf(self, output: PlanOutput, leaves: Sequence[Leaf], memories: Sequence[DeviceMemory]) -> Leaf:
        if output.structure is None:
            return leaves[output.number]
        memory = memories[output.number]
        return Leaf(output.structure, memory.address, memory.owner, 0)


def _scalar(word: int, kind: str) -> int | float:
    """The number whose bits are a word of the table, as a kernel's parameter of this kind takes it."""
    data = struct.pack("<Q", word)
    formats = {"fp32": "<f", "fp64": "<d", "i32": "<i", "i64": "<q"}
    if kind not in formats:
        return word & 1
    value: int | float = struct.unpack_from(formats[kind], data)[0]
    return value
