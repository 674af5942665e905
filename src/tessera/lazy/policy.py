"""The numerics policy in force: how far the compiler may change the order and the precision of arithmetic.

`tessera.numerics` is the door to it. The state lives here because structures and schedules read it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeAlias, get_args

from torch import get_num_threads

from tessera import settings
from tessera.errors import ArgumentError
from tessera.lazy.threads import within_quota
from tessera.system import forks

Mode: TypeAlias = Literal["fast", "deterministic", "strict"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Policy:
    """One choice of numerics; hashable, and part of what identifies a compiled kernel.

    `tf32` lets fp32 matrix products round their operands to 10 mantissa bits where the hardware is faster so; sums stay
    in fp32. Raises ArgumentError for an unknown mode, and for `tf32` under "strict".
    """

    mode: Mode = "fast"
    tf32: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ArgumentError(f"{self.mode!r} is no numerics policy", hints=[f"one of {', '.join(MODES)}"])
        if self.tf32 and self.mode == "strict":
            raise ArgumentError("a strict policy cannot use tf32", hints=["use policy('deterministic', tf32=True)"])

    @property
    def fixed_order(self) -> bool:
        """Whether the order of every sum must depend on the shapes alone: not on the schedule, nor on the threads."""
        return self.mode != "fast"

    @property
    def rewrites_arithmetic(self) -> bool:
        """Whether identities that hold for real numbers but not for rounded ones may be applied."""
        return self.mode != "strict"


FAST = Policy()
"""What holds while nobody asks for anything else; the plans that structures carry were bound under it."""

_default = FAST
_in_force: ContextVar[Policy | None] = ContextVar("tessera_numerics_policy", default=None)


def current_policy() -> Policy:
    """The policy of this thread (and asyncio task): the one it set last, else the default."""
    return _in_force.get() or _default


_lock = forks.lock()
_asked = False
_detours: frozenset[str] = frozenset()
_plain = True
"""Neither of the two: one look at one variable on the path of every evaluation."""


def is_current(threads: int | None) -> bool:
    """Whether a plan that was bound under `FAST` for so many threads (None: for any number) may be run here without
    further ado: this thread may use as many now (`threads.worker_count`), no other policy is in force, and nobody asked
    for a detour. Costs 40 ns while that is so everywhere.
    """
    return (_plain or (not _detours and current_policy() == FAST)) and (
        threads is None
        or threads == (settings.fixed_threads or get_num_threads())
        or (settings.fixed_threads is None and threads == within_quota(get_num_threads()))
    )


def take_detour(wanted: bool, reason: str = "queue") -> None:
    """From now on every evaluation takes the long way, `evaluation.evaluate`, which asks `promise.settle` and then the
    compiler for a plan; or no more, once nobody has a `reason`. Streams turn this on while queued work writes to memory
    of users, and timed builds while they stand in for the usual ones.
    """
    global _detours, _plain  # noqa: PLW0603 - see is_current
    with _lock:
        _detours = _detours | {reason} if wanted else _detours - {reason}
        _plain = not _asked and not _detours


def set_default_policy(mode: Mode, *, tf32: bool = False) -> None:
    """Sets the policy of all threads that have set none of their own. Raises ArgumentError as `Policy` does."""
    global _default, _asked, _plain  # noqa: PLW0603 - the one place that holds the process's policy
    _default = Policy(mode, tf32)
    _asked, _plain = True, False


class policy:  # noqa: N801 - users write it as a function
    """Sets the policy of this thread: `policy("strict")` from here on, `with policy("strict"):` until the block ends.

    The block gives the `Policy` in force. Work is compiled under the policy in force where it is evaluated. Raises
    ArgumentError as `Policy` does.
    """

    __slots__ = ("_before", "_chosen", "_is_set")

    def __init__(self, mode: Mode, *, tf32: bool = False) -> None:
        global _asked, _plain
        self._chosen = Policy(mode, tf32)
        _asked, _plain = True, False
        self._before: list[Policy | None] = [_in_force.get()]
        self._is_set = True  # by this constructor; a second `with` on the same object sets it again
        _in_force.set(self._chosen)

    def __enter__(self) -> Policy:
        if not self._is_set:
            self._before.append(_in_force.get())
            _in_force.set(self._chosen)
        self._is_set = False
        return self._chosen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _in_force.set(self._before.pop())
