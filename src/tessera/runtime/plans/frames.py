"""Steps of plans, and frames: what one call of a plan in progress needs to itself, in the form that the driver reads.

Frame and step layout stand in `runtime/plans/native.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tessera.profiling.attach import listener
from tessera.profiling.ring import recorder
from tessera.runtime.memory import buffers, workspace
from tessera.runtime.memory.buffers import Buffer
from tessera.runtime.memory.liveness import round_up
from tessera.runtime.plans import native

_WORD: Final = 8

Descriptors = tuple[int, ...]
"""The words that a kernel reads of its operands, as the kernel ABI has them."""

Launched = tuple["KernelCode", int, int, int]
"""Kernel, workers, workspace bytes and threads of a step, as a `Step` has them."""


class KernelCode(Protocol):
    """A kernel in memory: the address stays valid as long as the object lives."""

    @property
    def address(self) -> int: ...


class Step(NamedTuple):
    """One kernel launch: `descriptors` as in the kernel ABI, `workspace_bytes` per worker. `threads` are those that it
    uses beside its workers'.
    """

    kernel: KernelCode
    descriptors: Descriptors
    workers: int = 1
    workspace_bytes: int = 0
    threads: int = 0


class StepTable:
    """What the steps of a plan launch, beside their descriptors: plans for other sizes may have the same."""

    __slots__ = ("_rows", "launched", "scratch_bytes")

    def __init__(self, launched: Sequence[Launched]) -> None:
        self.launched = tuple(launched)
        needed = [workspace.total(nbytes, workers) for _, workers, nbytes, _ in launched if nbytes]
        self.scratch_bytes = max(needed, default=0)
        self._rows = [(kernel.address, workers, workspace.pitch(nbytes)) for kernel, workers, nbytes, _ in launched]

    @property
    def workers(self) -> int:
        """Threads that the widest step uses, at least 1."""
        return max([max(workers, threads) for _, workers, _, threads in self.launched], default=1)

    def replaced(self, steps: Mapping[int, Step]) -> StepTable:
        """The same but for some steps, by their places, of which it knew nothing."""
        made = object.__new__(StepTable)
        launched, rows, scratch = list(self.launched), list(self._rows), self.scratch_bytes
        for place, (kernel, _, workers, nbytes, threads) in steps.items():
            launched[place] = kernel, workers, nbytes, threads
            rows[place] = kernel.address, workers, workspace.pitch(nbytes)
            scratch = max(scratch, workspace.total(nbytes, workers))
        made.launched, made._rows, made.scratch_bytes = tuple(launched), rows, scratch
        return made

    def steps(self, descriptors: Sequence[Descriptors]) -> tuple[Step, ...]:
        """The steps with their descriptors."""
        return tuple(
            Step(kernel, words, workers, nbytes, threads)
            for (kernel, workers, nbytes, threads), words in zip(self.launched, descriptors, strict=True)
        )

    def words(self, descriptors: Sequence[Descriptors], address: int, scratch: int) -> list[int]:
        """The words of all steps, and then all descriptors, which lie at that address; `scratch` is that of the scratch
        memory.
        """
        assert len(descriptors) == len(self._rows)
        words: list[int] = []
        for number, own in enumerate(descriptors):
            kernel, workers, pitch = self._rows[number]
            words += (kernel, address, workers, scratch, pitch, number, 0, 0)
            address += _WORD * len(own)
        for own in descriptors:
            words += own
        return words


class _Nothing:
    address = 0


UNKNOWN: Final[Launched] = (_Nothing(), 1, 0, 0)
"""A step of a table that is to be replaced."""


class SharedSteps(NamedTuple):
    """The steps of a plan, which shares a table with plans for other sizes."""

    table: StepTable
    descriptors: Sequence[Descriptors]


def shared_steps(steps: Sequence[Step]) -> SharedSteps:
    """The steps of a plan that shares nothing."""
    launched = [(step.kernel, step.workers, step.workspace_bytes, step.threads) for step in steps]
    return SharedSteps(StepTable(launched), [step.descriptors for step in steps])


class Frame:
    """What one call in progress needs to itself: the frame with its table and steps, and the workspace."""

    __slots__ = ("address", "memory", "workspace")

    def __init__(self, buffer: Buffer, workspace: Buffer | None) -> None:
        self.address = buffer.address
        self.memory = buffer.memory()
        self.workspace = workspace


class FramePool:
    """The frames of one plan. It knows nothing of the plan, so that a plan goes as soon as its last reference does."""

    __slots__ = ("__weakref__", "_descriptors", "_plan", "_steps", "_table_words", "idle")

    def __init__(self, plan: int, steps: SharedSteps, table_words: int) -> None:
        self._plan = plan
        self._steps, self._descriptors = steps
        self._table_words = table_words
        self.idle: list[Frame] = []

    @property
    def steps(self) -> tuple[Step, ...]:
        """What a call runs, in order."""
        return self._steps.steps(self._descriptors)

    @property
    def workers(self) -> int:
        """Threads that the widest step uses, at least 1."""
        return self._steps.workers

    def drop_idle(self) -> None:
        """Lets go of the frames, and their workspaces, that no call in progress uses."""
        self.idle.clear()

    def take(self) -> Frame:
        """A frame that no other call uses; it goes back into `idle`."""
        try:
            return self.idle.pop()
        except IndexError:
            return self.new()

    def new(self) -> Frame:
        """A frame with everything but the table filled in: header, table, steps, descriptors."""
        listener.listen()
        scratch = buffers.allocate(self._steps.scratch_bytes) if self._steps.scratch_bytes else None
        count = len(self._descriptors)
        steps_at = round_up(native.FRAME_WORDS + self._table_words, native.STEP_WORDS)
        descriptors_at = steps_at + native.STEP_WORDS * count
        words = descriptors_at + sum(map(len, self._descriptors))
        buffer = buffers.allocate(words * _WORD)
        base = buffer.address
        body = self._steps.words(
            self._descriptors, base + descriptors_at * _WORD, scratch.address if scratch is not None else 0
        )
        frame = Frame(buffer, scratch)
        table, first_step = base + native.FRAME_WORDS * _WORD, base + steps_at * _WORD
        header = (table, count, first_step, recorder.CELL_ADDRESS, self._plan)
        struct.pack_into(f"<{len(header)}q", frame.memory, 0, *header)
        struct.pack_into(f"<{len(body)}q", frame.memory, steps_at * _WORD, *body)
        return frame
