"""Faults of a job: what every surviving rank raises, and how a process that ended is described."""

from __future__ import annotations

import fcntl
import signal
import struct
from typing import Final, NamedTuple

from tessera.errors import (
    CollectiveMismatchError,
    CollectiveStalledError,
    ForkedError,
    RankLostError,
    TesseraError,
)

_KINDS: Final = {
    kind.code: kind for kind in (RankLostError, CollectiveMismatchError, CollectiveStalledError, ForkedError)
}
_INFO: Final = struct.Struct("<QQ12I")
"""`struct pidfd_info` of Linux: mask, control group, numbers of process and users, and the exit code as the last."""
_GET_INFO: Final = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT: Final = 1 << 3


class Fault(NamedTuple):
    """Why a job cannot go on: the code of the error, the rank that is to blame if one is, and what is said."""

    code: str
    rank: int | None
    message: str
    hints: tuple[str, ...] = ()

    def error(self, doing: str) -> TesseraError:
        """What a rank raises, made where it is raised; `doing` says what the rank does."""
        kind = _KINDS.get(self.code, RankLostError)
        return kind(f"{self.message}; {doing}" if doing else self.message, hints=self.hints)


FORKED: Final = Fault(
    ForkedError.code,
    None,
    "this process is a fork of a rank, and the job is its parent's",
    ("collectives are called by the process that was started as a rank; forks may compute and load data",),
)

SHARED: Final = {CollectiveMismatchError.code, CollectiveStalledError.code}
"""Errors that all ranks of a job raise alike."""


def is_consequence(code: str) -> bool:
    """Whether an error is what other ranks raise of themselves: it is news to nobody."""
    return code == RankLostError.code


def ended_by(code: int) -> str:
    """How a process ended, from its exit code, which is negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def exit_status(descriptor: int) -> int | None:
    """The status of a process that has ended and was waited for, by its pidfd (Linux 6.15 and later); None where the
    kernel does not say.
    """
    info = bytearray(_INFO.size)
    struct.pack_into("<Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    words = _INFO.unpack(info)
    return int(words[-1]) if words[0] & _EXIT else None
