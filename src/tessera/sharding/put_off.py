"""Steps of programs that are put off: taken when somebody first reads what they make.

A program is left when all its exchanges have begun. What it gives then are shards that are yet to come (`Later`); who
reads one, the next program for most, waits for the exchanges that it hangs on, and computes what comes behind them.
Memory that this will read stays as it is: whoever might write to it has the steps taken first.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from typing import Final, Protocol

from tessera.errors import TesseraError
from tessera.lazy.leaves.leaf import Leaf
from tessera.runtime.memory import buffers
from tessera.runtime.memory.buffers import AwaitedBuffer, Buffer
from tessera.sharding.exchange.order import reading
from tessera.system import forks

_counted: Final = itertools.count()


class PutOffStep(Protocol):
    """A step with what it works on, by the numbers of values."""

    @property
    def may_wait(self) -> bool:
        """Whether what it waits for comes about by itself."""

    def held(self) -> Sequence[Leaf]:
        """Of what it reads, what is there already."""

    def take(self) -> None:
        """Takes the step."""

    def given(self, root: int) -> Mapping[int, Leaf]:
        """The shards of a root of the program, which is there."""


class Rest:
    """The steps of one call of a program that are yet to be taken, in their order. Those that cannot wait are taken at
    once: exchanges that do not go on by themselves, and steps that read memory which somebody may write to.
    """

    def __init__(self, steps: Sequence[PutOffStep]) -> None:
        self.number = next(_counted)
        self._steps, self._taken = list(steps), 0
        self._context = copy_context()  # with what holds at the call, which is what steps are taken under
        self._lock = forks.recursive_lock()
        self._error: TesseraError | None = None
        self._readings: dict[int, _Reading] = {}
        self._laters: list[tuple[int, int, weakref.ref[Later]]] = []
        now = 0
        for at, step in enumerate(steps, start=1):
            if not step.may_wait or not all(_is_own(leaf) for leaf in step.held()):
                now = at
        for at, step in enumerate(steps[now:], start=now + 1):
            owners = {id(leaf.owner): leaf.owner for leaf in step.held() if leaf.structure.kind != "scalar"}
            self._readings[at] = made = _Reading(self, at)
            for owner in owners.values():
                if not made.watch(owner):
                    now = at
        self.take(now)

    def later(self, root: int, count: int) -> Later:
        """The shards of a root, which is there, and read no more, when so many steps are taken."""
        made = Later(self, count)
        self._laters.append((count, root, weakref.ref(made)))
        self._hand_out()
        return made

    def take(self, count: int) -> None:
        """Takes steps until so many are taken. Raises what waiting for others raises, at every call again."""
        with self._lock:
            if self._taken < count:
                if self._error is not None:
                    raise self._error
                self._context.run(self._take, count)

    def _take(self, count: int) -> None:
        try:
            with reading():
                while self._taken < count:
                    self._steps[self._taken].take()
                    self._taken += 1
                    self._release(self._taken)
                    self._hand_out()
        except TesseraError as error:
            self._error = error
            for at in list(self._readings):
                self._release(at)
            raise

    def _release(self, at: int) -> None:
        made = self._readings.pop(at, None)
        if made is not None:
            made.release()

    def _hand_out(self) -> None:
        """Gives shards that are there to those who have them, so that they no more keep what else there is."""
        there = [each for each in self._laters if each[0] <= self._taken]
        self._laters = [each for each in self._laters if each[0] > self._taken]
        for count, root, reference in there:
            later = reference()
            if later is not None:
                later.made, later.rest = self._steps[count - 1].given(root), None


class Later:
    """Shards that are yet to come."""

    __slots__ = ("__weakref__", "_count", "made", "rest")

    def __init__(self, rest: Rest, count: int) -> None:
        self.rest: Rest | None = rest
        self.made: Mapping[int, Leaf] | None = None
        self._count = count

    def take(self) -> Mapping[int, Leaf]:
        """The shards by place, when they are there. Raises what waiting for other ranks raises."""
        rest = self.rest
        if rest is not None:
            rest.take(self._count)
        assert self.made is not None, "what is taken is handed out"
        return self.made


class _Reading:
    """A step that is yet to read buffers."""

    def __init__(self, rest: Rest, at: int) -> None:
        self._rest, self._at = weakref.ref(rest), at
        self._buffers: list[Buffer] = []

    def watch(self, owner: Buffer) -> bool:
        """Has the step taken before anybody may write to a buffer; False where somebody may already."""
        watched = buffers.put_off(owner, self)
        if watched:
            self._buffers.append(owner)
        return watched

    def __call__(self) -> None:
        rest = self._rest()
        # An error is raised again to whoever reads what the step should have made; the buffer itself is as it was.
        with contextlib.suppress(TesseraError):
            if rest is not None:
                rest.take(self._at)
        self.release()

    def release(self) -> None:
        """The step reads no more."""
        while self._buffers:
            buffers.read(self._buffers.pop(), self)


def _is_own(leaf: Leaf) -> bool:
    """Whether nobody can write to what a leaf reads."""
    return leaf.structure.kind == "scalar" or type(leaf.owner) in (Buffer, AwaitedBuffer)
