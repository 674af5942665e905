"""A lane: the memory in which one rank of a group announces its exchanges to the others of its host.

Every rank makes one lane for a group, as a memfd, and maps those of the others. It writes records and words of its own
lane alone; bells are rung by whoever wakes those that sleep on them. Nothing is locked, so that a rank that is killed
leaves nothing half done, and nothing has a name, so that it leaves nothing behind.

| bytes from | field | meaning |
| --- | --- | --- |
| 0 | bell | a futex: its number changes whenever the lane's owner has written something |
| 64 | sleepers | how many sleep on it; may stay too high after a kill, which costs a system call |
| 128 | finished | for each of `DEPTH` exchanges, the number of the last one whose operands the owner has read |
| 1024 | records | for each of `DEPTH` exchanges: number, fingerprint, offset of the operand in the owner's heap or -1 for its slot, the instant in nanoseconds of the monotonic clock |
| 4096 | slots | for each of `DEPTH` exchanges, room for an operand of at most `SLOT_BYTES` |

Exchange n stands in place n % `DEPTH`. A rank announces it when all have finished n - `DEPTH`. The first is `DEPTH`.
"""  # noqa: E501 - a table

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

DEPTH: Final = 16
SLOT_BYTES: Final = 1 << 16
LAYOUT: Final = {"sleepers": 64, "finished": 128, "records": 1024, "record": 64, "slots": 4096}
LANE_BYTES: Final = LAYOUT["slots"] + DEPTH * SLOT_BYTES
_WORD: Final = 8


class Lane:
    """A mapped lane, of this rank or of another."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, LANE_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def record(self, number: int) -> int:
        """The address of an exchange's record."""
        return self.address + LAYOUT["records"] + number % DEPTH * LAYOUT["record"]

    def finished(self, number: int) -> int:
        """The address of the word that says whether the owner has read an exchange's operands."""
        return self.address + LAYOUT["finished"] + number % DEPTH * _WORD

    def slot(self, number: int) -> int:
        """The address of the memory for an exchange's small operand."""
        return self.address + LAYOUT["slots"] + number % DEPTH * SLOT_BYTES

    def announced(self, number: int) -> tuple[int, int, int]:
        """Fingerprint, offset and instant of an exchange that the owner has announced."""
        words = (ctypes.c_int64 * 4).from_address(self.record(number))
        return words[1] & (1 << 64) - 1, words[2], words[3]

    def has_announced(self, number: int) -> bool:
        """Whether the owner has come to an exchange."""
        return ctypes.c_int64.from_address(self.record(number)).value == number

    def has_finished(self, number: int) -> bool:
        """Whether the owner reads the operands of an exchange no more."""
        return ctypes.c_int64.from_address(self.finished(number)).value >= number


def new_lane() -> tuple[Lane, int]:
    """A lane of this rank, and the descriptor that others map it by."""
    descriptor = os.memfd_create("tessera-lane", os.MFD_CLOEXEC)
    os.truncate(descriptor, LANE_BYTES)
    lane = Lane(descriptor)
    for number in range(DEPTH):
        ctypes.c_int64.from_address(lane.finished(number)).value = number
    return lane, descriptor
