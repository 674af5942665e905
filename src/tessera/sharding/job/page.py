"""A rank's page: what it last did, in memory that the other ranks of its host still see when it is dead.

| bytes from | field | meaning |
| --- | --- | --- |
| 0 | state | 0: running, 1: its program has ended, 2: it ends by an exception |
| 8 | beat | nanoseconds of the monotonic clock at which its watcher last ran |
| 16 | latest | the place of the group whose collective it began last |
| 24 | waits | the key of the group in whose collective it waits, after a while; 0: in none |
| 32 | for | the number of that collective |
| 64 | told | the last line of the exception: length, then UTF-8 |
| 1024 | groups | for each place: the group's key, the number begun last, the number finished last, and the last `KEPT` collectives (number, fingerprint, description) |
| 33792 | descriptions | of collectives: length, then UTF-8 |

Groups and descriptions take each other's places when there are too many: the page is for messages, nothing depends on it.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import mmap
import os
import struct
import time
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

KEPT: Final = 8
_GROUPS: Final = 64
_GROUP_BYTES: Final = 512
_GROUPS_AT: Final = 1024
_DESCRIPTIONS: Final = 256
_DESCRIPTION_BYTES: Final = 192
_DESCRIPTIONS_AT: Final = _GROUPS_AT + _GROUPS * _GROUP_BYTES
PAGE_BYTES: Final = _DESCRIPTIONS_AT + _DESCRIPTIONS * _DESCRIPTION_BYTES
_TOLD_AT: Final = 64
_TOLD_BYTES: Final = 900
_ENTRIES_AT: Final = 64

_WORD: Final = struct.Struct("<q")
_GROUP: Final = struct.Struct("<Qqq")
_ENTRY: Final = struct.Struct("<qQq")
_WAIT: Final = struct.Struct("<Qq")
_WAIT_AT: Final = 24


class State(IntEnum):
    """How far a rank's program is."""

    RUNNING = 0
    LEFT = 1
    RAISED = 2


class Seen(NamedTuple):
    """A collective that a rank has begun: its number in the group, its fingerprint, and what it is, in words."""

    number: int
    fingerprint: int
    description: str


class Page:
    """A page, of this rank or of another."""

    def __init__(self, descriptor: int) -> None:
        self._memory: mmap.mmap | bytearray = mmap.mmap(descriptor, PAGE_BYTES, prot=mmap.PROT_READ)

    @property
    def state(self) -> State:
        """How far the rank's program is."""
        return State(self._word(0))

    @property
    def beat_ns(self) -> int:
        """When the rank's watcher last ran, by the monotonic clock."""
        return self._word(8)

    @property
    def told(self) -> str:
        """The last line of the exception by which the rank ends."""
        return self._text(_TOLD_AT)

    def begun(self, key: int) -> int:
        """The number of the collective that the rank began last in a group; -1 where it has begun none."""
        found, number, _ = _GROUP.unpack_from(self._memory, _group_at(key))
        return number if found == key else -1

    def waits(self) -> tuple[int, Seen] | None:
        """The group and the collective that the rank waits in; None where it does something else meanwhile."""
        key, number = _WAIT.unpack_from(self._memory, _WAIT_AT)
        seen = self.entry(key, number) if key else None
        return None if seen is None else (key, seen)

    def latest(self) -> Seen | None:
        """The collective that the rank has begun last."""
        key, begun, _ = _GROUP.unpack_from(self._memory, self._word(16))
        return self.entry(key, begun) if key else None

    def entry(self, key: int, number: int) -> Seen | None:
        """One of the last collectives of a group; None where the rank has not begun it, or it was long ago."""
        at = _group_at(key)
        if _GROUP.unpack_from(self._memory, at)[0] != key:
            return None
        found, fingerprint, index = _ENTRY.unpack_from(self._memory, _entry_at(at, number))
        if found != number:
            return None
        return Seen(number, fingerprint, self._text(_DESCRIPTIONS_AT + index % _DESCRIPTIONS * _DESCRIPTION_BYTES))

    def sent(self) -> tuple[str, int]:
        """The page as text, and how long ago its rank's watcher ran, in nanoseconds."""
        data = bytes(self._memory[:PAGE_BYTES])
        return base64.b64encode(zlib.compress(data, 1)).decode(), time.monotonic_ns() - self.beat_ns

    def _word(self, at: int) -> int:
        return int(_WORD.unpack_from(self._memory, at)[0])

    def _text(self, at: int) -> str:
        length = self._word(at)
        return bytes(self._memory[at + 8 : at + 8 + length]).decode(errors="replace")


class SentPage(Page):
    """The page of a rank on another host, as it was when that last sent it."""

    def __init__(self) -> None:
        self._memory = bytearray(PAGE_BYTES)
        _WORD.pack_into(self._memory, 16, _GROUPS_AT)
        self._heard()

    def _heard(self, age_ns: int = 0) -> None:
        _WORD.pack_into(self._memory, 8, time.monotonic_ns() - age_ns)

    def take(self, text: str, age_ns: int) -> None:
        """Takes what `sent` made; hosts have clocks of their own, and tell each other ages."""
        try:
            data = zlib.decompress(base64.b64decode(text))
        except (ValueError, zlib.error):
            return
        if len(data) == PAGE_BYTES:
            self._memory[:] = data
            self._heard(age_ns)


class OwnPage(Page):
    """The page that this rank writes. `descriptor` is what others map it by."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("tessera-page", os.MFD_CLOEXEC)
        os.truncate(self.descriptor, PAGE_BYTES)
        self._memory = mmap.mmap(self.descriptor, PAGE_BYTES)
        self._described = 0
        _WORD.pack_into(self._memory, 16, _GROUPS_AT)

    def beat(self) -> None:
        """The watcher runs."""
        _WORD.pack_into(self._memory, 8, time.monotonic_ns())

    def leave(self, state: State, told: str = "") -> None:
        """The program ends."""
        self._write(_TOLD_AT, told, _TOLD_BYTES)
        _WORD.pack_into(self._memory, 0, state)

    def describe(self, description: str) -> int:
        """Writes down what a collective is; gives the number by which `begin` is told."""
        index, self._described = self._described, self._described + 1
        self._write(_DESCRIPTIONS_AT + index % _DESCRIPTIONS * _DESCRIPTION_BYTES, description, _DESCRIPTION_BYTES)
        return index

    def begin(self, key: int, number: int, fingerprint: int, description: int) -> None:
        """A collective of a group begins."""
        at = _group_at(key)
        _ENTRY.pack_into(self._memory, _entry_at(at, number), number, fingerprint, description)
        found, _, finished = _GROUP.unpack_from(self._memory, at)
        _GROUP.pack_into(self._memory, at, key, number, finished if found == key else -1)
        _WORD.pack_into(self._memory, 16, at)

    def wait(self, key: int, number: int) -> None:
        """The rank waits in a collective of a group; in none where the key is 0."""
        _WAIT.pack_into(self._memory, _WAIT_AT, key, number)

    def finish(self, key: int, number: int) -> None:
        """A collective of a group is done."""
        _WORD.pack_into(self._memory, _group_at(key) + 16, number)

    def _write(self, at: int, text: str, room: int) -> None:
        data = text.encode()[: room - 8]
        self._memory[at + 8 : at + 8 + len(data)] = data
        _WORD.pack_into(self._memory, at, len(data))


def _group_at(key: int) -> int:
    return _GROUPS_AT + key % _GROUPS * _GROUP_BYTES


def _entry_at(group_at: int, number: int) -> int:
    return group_at + _ENTRIES_AT + number % KEPT * _ENTRY.size
