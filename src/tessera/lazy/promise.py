"""Values that are on their way: results that queued work (`runtime/streams/stream.py`) is still computing, and memory
of users that it still touches.

A result on its way is a leaf like any other, over memory that was taken when the work was enqueued. Its owner is a
`Promise`, which looks like a tensor that was written to until the value is there, so that the check of versions before
every evaluation stops at it, at no cost to evaluations without one; see `evaluation.check_versions`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias

from tessera.lazy.leaves.leaf import Leaf

Guard: TypeAlias = Callable[[Sequence[Leaf], Sequence[Leaf]], None]

KEPT: Final = 0
"""The version of leaves whose owner is a promise, and of a promise whose value is there."""

_ON_ITS_WAY: Final = -1


class PendingWork(Protocol):
    """Something enqueued that will compute a value."""

    def result(self) -> None:
        """Returns when the value is there. Raises what the work failed with, at the place of the call that enqueued
        it.
        """


class Promise:
    """The owner of a result that `work` computes into `memory`, which it keeps alive."""

    __slots__ = ("__weakref__", "_version", "memory", "work")

    def __init__(self, memory: Any, work: PendingWork) -> None:
        self.memory = memory
        self.work = work
        self._version = _ON_ITS_WAY

    @property
    def is_kept(self) -> bool:
        """Whether the value is there."""
        return self._version == KEPT

    def keep(self) -> None:
        """The value is there: from now on the leaf is read without asking."""
        self._version = KEPT

    def share(self) -> Any:
        """What owns the memory of a kept promise, which others may write to from now on: `_version` is that one's."""
        self.__class__ = SharedPromise
        return self.memory

    def wait(self) -> None:
        """Returns when the value may be read and the work is known to be done. Raises as `PendingWork.result`."""
        self.work.result()


class SharedPromise(Promise):
    """A kept promise whose value somebody else may write to."""

    __slots__ = ()

    @property
    def _version(self) -> int:  # type: ignore[override] # of what was a number, for the sake of those who read it
        version: int = self.memory._version
        return version

    def keep(self) -> None:
        """Nothing: it is."""


guard: Guard | None = None
"""What `settle` asks about memory of users, None while there are no streams; set by `set_guard`."""


def set_guard(wanted: Guard | None) -> Guard | None:
    """Installs what `settle` asks about memory of users, and gives the one it replaces."""
    global guard
    previous, guard = guard, wanted
    return previous


def is_guarded() -> bool:
    """Whether there are streams, whose work may touch memory of users."""
    return guard is not None


_ordered: Final = threading.local()


@contextmanager
def ordered() -> Iterator[None]:
    """What this thread does in the block comes after all that it has to come after: `settle` asks the guard nothing.
    For queued work, which must not wait for what is queued behind it. Writes to what it reads are looked for by who
    queued it (`lazy/leaves/writes.py`), since those of work behind it are announced already.
    """
    _ordered.here = True
    try:
        yield
    finally:
        _ordered.here = False


def is_ordered() -> bool:
    """Whether this thread is in a block of `ordered`."""
    here: bool = getattr(_ordered, "here", False)
    return here


def settle(reads: Sequence[Leaf], writes: Sequence[Leaf] = ()) -> None:
    """Returns when this thread may read and write the memory of these leaves: when what is queued and has to come
    before is done.

    Raises what the work failed with that should have written what is read.
    """
    for leaf in reads:
        if type(leaf.owner) is Promise:
            leaf.owner.wait()
    if guard is not None and not is_ordered():
        guard(reads, writes)
