"""Bound plans: a compiled graph with its extents fixed, ready to run as one native call.

A plan owns what does not change between calls (kernel addresses, descriptors, the layout of its frame) and keeps a
list of frames for what does. A call takes a frame, fills the table of addresses with one `pack_into`, calls the
driver, and puts the frame back; concurrent calls take different frames. Frame and step layout stand in
`runtime/native.py`.

Frames, descriptors, workspaces and the arena of temporaries are buffers of the allocator, so `memory_stats()` counts
them.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from tessera.lazy.leaf import Leaf
from tessera.lazy.structure import Structure
from tessera.profiling import facts as step_facts
from tessera.profiling import recorder
from tessera.profiling.schema import StepFacts
from tessera.runtime import buffers, native
from tessera.runtime.buffers import Buffer
from tessera.runtime.entry import make_entry
from tessera.runtime.liveness import round_up

SlotKind = Literal["leaf", "result", "arena"]

_WORD: Final = 8
_plan_numbers = itertools.count(1)


class LoadedKernel(Protocol):
    """A kernel in memory: the address stays valid as long as the object lives."""

    @property
    def address(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel launch: `descriptors` as in the kernel ABI, `workspace_bytes` per worker."""

    kernel: LoadedKernel
    descriptors: tuple[int, ...]
    workers: int = 1
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """What one slot of the address table holds in a call.

    `leaf`: the word of leaf `index` (an address, or a scalar's bits). `result`: the address of result buffer `index`.
    `arena`: the base of the temporaries' arena (descriptors hold the offsets).
    """

    kind: SlotKind
    index: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """One result of the plan: result buffer `index` read as `structure` (a buffer structure) or, where that is None,
    leaf `index` of the call itself.
    """

    index: int
    structure: Structure | None


class Frame:
    """What one call in progress needs to itself: the frame with its table and steps, and the workspace."""

    __slots__ = ("address", "memory", "workspace")

    def __init__(self, buffer: Buffer, workspace: Buffer | None) -> None:
        self.address = buffer.address
        self.memory = buffer.memory()
        self.workspace = workspace


class FramePool:
    """The frames of one plan. It knows nothing of the plan, so that a plan goes as soon as its last reference does."""

    __slots__ = ("__weakref__", "_descriptors", "_plan", "_steps", "_table_words", "_workspace_bytes", "idle")

    def __init__(self, plan: int, steps: tuple[Step, ...], table_words: int) -> None:
        self._plan = plan
        self._steps = steps
        self._table_words = table_words
        self._workspace_bytes = max((step.workers * _pitch(step) for step in steps), default=0)
        self._descriptors = _packed([word for step in steps for word in step.descriptors])
        self.idle: list[Frame] = []

    def drop_idle(self) -> None:
        """Lets go of the frames, and their workspaces, that no call in progress uses."""
        self.idle.clear()

    def new(self) -> Frame:
        """A frame with everything but the table filled in."""
        workspace = buffers.allocate(self._workspace_bytes) if self._workspace_bytes else None
        table_at = native.FRAME_WORDS
        steps_at = round_up(table_at + self._table_words, native.STEP_WORDS)
        words = steps_at + native.STEP_WORDS * len(self._steps)
        buffer = buffers.allocate(words * _WORD)
        header = (
            buffer.address + table_at * _WORD,
            len(self._steps),
            buffer.address + steps_at * _WORD,
            recorder.CELL_ADDRESS,
            self._plan,
        )
        body = self._step_words(workspace.address if workspace is not None else 0)
        frame = Frame(buffer, workspace)
        struct.pack_into(f"<{len(header)}q", frame.memory, 0, *header)
        struct.pack_into(f"<{len(body)}q", frame.memory, steps_at * _WORD, *body)
        return frame

    def _step_words(self, workspace: int) -> list[int]:
        words: list[int] = []
        descriptors = self._descriptors.address
        for number, step in enumerate(self._steps):
            words += (step.kernel.address, descriptors, step.workers, workspace, _pitch(step), number, 0, 0)
            descriptors += _WORD * len(step.descriptors)
        return words


class BoundPlan:
    """A plan that `run(leaves)` executes. Thread-safe; the GIL is released while kernels run.

    `run` takes the leaves of the structure, checked by the caller, and gives one leaf per `Output`. It raises
    MemoryLimitError (E_MEMORY_LIMIT) when results or temporaries do not fit the allocator's limit, and nothing else.
    """

    __slots__ = ("__weakref__", "arena_bytes", "frames", "number", "run", "steps")

    def __init__(
        self,
        *,
        steps: Sequence[Step],
        slots: Sequence[Slot],
        results: Sequence[int],
        outputs: Sequence[Output],
        arena_bytes: int = 0,
        facts: Callable[[], Sequence[StepFacts]] | Sequence[StepFacts] = (),
    ) -> None:
        """`results`: size in bytes of each result buffer. `arena_bytes`: temporaries, taken for each call and given
        back. `facts`: what reports say of each step, or a function that finds it out when a report asks.
        """
        self.number = next(_plan_numbers)
        self.steps = tuple(steps)
        self.arena_bytes = arena_bytes
        self.frames = FramePool(self.number, self.steps, len(slots))
        step_facts.register_plan(self.number, facts)
        buffers.shared().register(self.frames)
        self.run: Callable[[Sequence[Leaf]], tuple[Leaf, ...]] = make_entry(
            slots=tuple((slot.kind, slot.index) for slot in slots),
            results=tuple(results),
            outputs=tuple((output.index, output.structure) for output in outputs),
            arena_bytes=arena_bytes,
            frames=self.frames.idle,
            new_frame=self.frames.new,
            allocate=buffers.allocate,
            call=native.driver().run,
        )
        # No `__del__`: at the end of the process modules are gone before the last plan is.
        weakref.finalize(self, step_facts.retire_plan, self.number).atexit = False


def _pitch(step: Step) -> int:
    """Bytes from one worker's workspace to the next one's."""
    return round_up(step.workspace_bytes)


def _packed(words: Sequence[int]) -> Buffer:
    """The words in a buffer of their own."""
    buffer = buffers.allocate(len(words) * _WORD)
    ctypes.memmove(buffer.address, struct.pack(f"<{len(words)}q", *words), len(words) * _WORD)
    return buffer
