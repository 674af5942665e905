"""Bound plans: a compiled graph with its extents fixed, ready to run as one native call.

A plan owns what does not change between calls (steps with their descriptors, the layout of its frame) and keeps a list
of frames for what does. A call takes a frame, fills the table of addresses with one `pack_into`, calls the
driver, and puts the frame back; concurrent calls take different frames (`runtime/plans/frames.py`).

Frames, workspaces and the arena of temporaries are buffers of the allocator, so `memory_stats()` counts them.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures.structure import Structure
from tessera.lazy.threads import worker_count
from tessera.profiling.recording import facts as step_facts
from tessera.profiling.recording import ranges
from tessera.profiling.recording.facts import StepFacts
from tessera.runtime.memory import buffers
from tessera.runtime.memory.derived import ReadInstead
from tessera.runtime.plans import native
from tessera.runtime.plans.entry import FRAME_TABLE_OFFSET, make_entry
from tessera.runtime.plans.frames import FramePool, SharedSteps, Step, shared_steps

SlotKind = Literal["leaf", "result", "arena", "derived"]

FactsSource = Callable[[], Sequence[StepFacts]] | Sequence[StepFacts]

_plan_numbers = itertools.count(1)


def next_plan_number() -> int:
    """A number that no other plan of this process has."""
    return next(_plan_numbers)


class Slot(NamedTuple):
    """What one slot of the address table holds in a call.

    `leaf`: the word of leaf `number` (an address, or a scalar's bits). `result`: the address of result buffer `number`.
    `arena`: the base of the temporaries' arena (descriptors hold the offsets). `derived`: the address of copy `number`
    of a constant.
    """

    kind: SlotKind
    number: int = 0


class PlanOutput(NamedTuple):
    """One result of the plan: result buffer `number` read as `structure` (a buffer structure) or, where that is None,
    leaf `number` of the call itself.
    """

    number: int
    structure: Structure | None


class _Watch(weakref.ref["BoundPlan"]):
    """A weak reference that knows its plan's number; `weakref.finalize` takes four times as long to make."""

    __slots__ = ("number",)

    number: int


_alive: dict[int, _Watch] = {}


def _retire(watch: _Watch, at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
    if at_the_end():  # of the process, when modules, and the globals used below, may be gone before the last plan
        return
    _alive.pop(watch.number, None)
    step_facts.retire_plan(watch.number)


def _renew_frames() -> None:
    """In a fork plans make their frames anew, which is how it learns that it runs plans itself, and listens."""
    for watch in list(_alive.values()):
        plan = watch()
        if plan is not None:
            plan.frames.drop_idle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_frames)


class BoundPlan:
    """A plan that `run(leaves)` executes. Thread-safe; the GIL is released while kernels run.

    `run` takes the leaves of the structure, checked by the caller, and gives one leaf per `PlanOutput`. It raises
    MemoryLimitError (E_MEMORY_LIMIT) when results or temporaries do not fit the allocator's limit, and nothing else
    but what calls of libraries raise (`runtime/libraries/library.py`).
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_outputs",
        "_results",
        "_slots",
        "arena_bytes",
        "derived",
        "frames",
        "number",
        "run",
        "threads",
    )

    def __init__(
        self,
        *,
        steps: Sequence[Step] | SharedSteps,
        slots: Sequence[Slot],
        results: Sequence[int],
        outputs: Sequence[PlanOutput],
        arena_bytes: int = 0,
        facts: FactsSource = (),
        derived: Sequence[tuple[int, ReadInstead]] = (),
        call: Callable[[int], None] | None = None,
    ) -> None:
        """`results`: size in bytes of each result buffer. `arena_bytes`: temporaries, taken for each call and given
        back. `facts`: what reports say of each step, or a function that finds it out when a report asks.
        `derived`: copies of constants that are read, as (number of the leaf, what is made of it). `call`: what runs a
        frame, by default the driver itself.
        """
        self.number = next_plan_number()
        self.threads: int | None = worker_count()
        self.arena_bytes = arena_bytes
        self._slots, self._results, self._outputs = tuple(slots), tuple(results), tuple(outputs)
        self.derived = tuple(derived)
        shared = steps if isinstance(steps, SharedSteps) else shared_steps(steps)
        self.frames = FramePool(self.number, shared, len(slots))
        self._call = ranges.around(call or native.driver().run, self.number)
        step_facts.register_plan(self.number, facts)
        buffers.shared().register(self.frames)
        self.run: Callable[[Sequence[Leaf]], tuple[Leaf, ...]] = make_entry(
            slots=self._slots,
            results=self._results,
            outputs=self._outputs,
            arena_bytes=arena_bytes,
            frames=self.frames,
            allocator=buffers.shared(),
            call=self._call,
            derived=self.derived,
        )
        watch = _alive[self.number] = _Watch(self, _retire)
        watch.number = self.number

    def run_into(self, leaves: Sequence[Leaf], targets: Sequence[Leaf]) -> bool:
        """Runs with the results written to memory that exists: `targets`, one per output, which share nothing with
        `leaves`.

        Gives False, and has done nothing, where a target is not of exactly the output's structure, or two outputs are
        one buffer. Raises what `run` raises.
        """
        # By value: structures of results may have been forgotten, and made anew, since this plan was bound.
        wanted = [layout_of(output.structure) for output in self._outputs]
        if [layout_of(target.structure) for target in targets] != wanted or len(wanted) != len(self._results):
            return False
        if len({output.number for output in self._outputs}) != len(wanted):
            return False
        self.fill(leaves, targets)
        return True

    @property
    def layout(self) -> tuple[tuple[Slot, ...], tuple[int, ...], tuple[PlanOutput, ...]]:
        """The slots, the size in bytes of each result buffer, and the outputs."""
        return self._slots, self._results, self._outputs

    @property
    def workers(self) -> int:
        """Threads that its widest step uses."""
        return self.frames.workers

    @property
    def steps(self) -> tuple[Step, ...]:
        """What a call runs, in order."""
        return self.frames.steps

    def reserve(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """What `run(leaves)` would give, with memory but without values: `fill` writes them. Raises as `run` does."""
        memory = [buffers.allocate(nbytes) for nbytes in self._results]
        return tuple(
            [
                leaves[number] if structure is None else Leaf(structure, memory[number].address, memory[number], 0)
                for number, structure in self._outputs
            ]
        )

    def fill(self, leaves: Sequence[Leaf], targets: Sequence[Leaf]) -> None:
        """Runs with the results written to `targets`, which `reserve` gave or `run_into` accepted. Raises as `run`
        does.
        """
        addresses = {
            output.number: target.address
            for output, target in zip(self._outputs, targets, strict=True)
            if output.structure is not None
        }
        copies = [derivation.of(leaves[leaf]) for leaf, derivation in self.derived]
        frame = self.frames.take()
        arena = buffers.allocate(self.arena_bytes)
        words = []
        for kind, number in self._slots:
            if kind == "arena":
                words.append(arena.address)
            elif kind == "result":
                words.append(addresses[number])
            else:
                words.append(leaves[number].address if kind == "leaf" else copies[number].address)
        struct.pack_into(f"<{len(words)}Q", frame.memory, FRAME_TABLE_OFFSET, *words)
        self._call(frame.address)
        self.frames.idle.append(frame)


def layout_of(structure: Structure | None) -> tuple[object, ...] | None:
    """What memory must be to take a result of this structure: shape, strides, dtype; None for a leaf of the call."""
    return None if structure is None else (structure.shape, structure.strides, structure.dtype)
