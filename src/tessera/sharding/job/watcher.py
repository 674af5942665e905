"""The watcher: a thread of every rank that sees other ranks end, and answers their questions.

It holds a pidfd of each rank on this host, and links to other hosts (`elsewhere.py`). When a rank ends other than by
the end of its program, the fault word is set, and whoever waits is woken and raises the fault. Descriptors of shared
memory come and go through it, and so do the last lines of exceptions, and where this rank's program is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tessera.errors import RankLostError
from tessera.sharding.job import faults
from tessera.sharding.job.elsewhere import Elsewhere
from tessera.sharding.job.faults import Fault
from tessera.sharding.job.links import Door, Listening
from tessera.sharding.job.mail import Letter, Mailbox
from tessera.sharding.job.members import Member, started
from tessera.sharding.job.page import OwnPage, Page, SentPage, State

_BEAT_S: Final = 0.2
_STATUS_S: Final = 0.25
"""How long an exit status may take to come: from the kernel once the parent has asked, or from the launcher."""
_SOON_S: Final = 0.01
_ANSWER_S: Final = 2.0
"""How long a rank may take to tell where its program is: on a busy host, or by way of a rank that is busy itself."""
_STACK_BYTES: Final = 8_000


class Watcher:
    """What this process knows of the other ranks of its job. Its thread ends with the process."""

    def __init__(self, rank: int, launcher: str | None) -> None:
        self.rank, self.launcher = rank, launcher
        self.mailbox, self.page = Mailbox(), OwnPage()
        self.fault: Fault | None = None
        self._word = ctypes.c_int32(0)
        self.fault_address = ctypes.addressof(self._word)
        self.wakes: list[Callable[[], None]] = []
        """What wakes those that wait in shared memory."""
        self.pages: dict[int, Page] = {rank: self.page}
        self.left: set[int] = set()
        self.groups: dict[int, tuple[int, ...]] = {}
        """By key, the ranks of the groups that this rank is in."""
        self._changed = threading.Condition()
        self._received: dict[tuple[str, int, int], int] = {}
        self._answers: dict[int, str] = {}
        self._codes: dict[int, int] = {}
        self._members: dict[int, Member] = {rank: Member(rank, os.getpid(), 0, "", "", self.mailbox.name, ())}
        self._processes: dict[int, int] = {}
        self._ending: dict[int, tuple[int, float]] = {}
        self._poll = select.poll()
        self._poll.register(self.mailbox.fileno(), select.POLLIN)
        self.elsewhere: Elsewhere | None = None
        """The ranks of other hosts, where there are any."""
        self._owner = os.getpid()
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._run, name="tessera-watcher", daemon=True).start()
        if launcher is not None:
            self.mailbox.send(launcher, {"kind": "hello", "rank": rank, "mailbox": self.mailbox.name})

    # What the program asks

    def watch(self, members: Sequence[Member]) -> None:
        """From now on these ranks, all on this host, are watched."""
        for member in members:
            self._members[member.rank] = member
            if member.rank == self.rank:
                continue
            try:
                process = os.pidfd_open(member.pid)
            except ProcessLookupError:
                process = -1
            if process < 0 or started(member.pid) != member.started:
                self.lose(member.rank, self._how(member.rank, self._codes.get(member.rank)))
                continue
            self._processes[process] = member.rank
            self._poll.register(process, select.POLLIN)

    def meet_elsewhere(self, members: Sequence[Member], listening: Mapping[int, Listening], door: Door | None) -> None:
        """From now on these ranks of other hosts are watched, through links to those that listen."""
        self.elsewhere = Elsewhere(self, members, listening, door, self._poll)

    def give(self, rank: int, kind: str, key: int, descriptor: int) -> None:
        """Gives another rank of this host a descriptor of this one's memory."""
        content = {"kind": kind, "rank": self.rank, "key": key}
        self.mailbox.send(self._members[rank].mailbox, content, [descriptor])

    def take(self, rank: int, kind: str, key: int, doing: str) -> int:
        """The descriptor that another rank gives this one, which may take a while. Raises the fault of the job."""
        wanted = (kind, rank, key)
        with self._changed:
            while wanted not in self._received:
                self.check(doing)
                self._changed.wait(_BEAT_S)
            return self._received.pop(wanted)

    def check(self, doing: str) -> None:
        """Raises the fault of the job, if there is one."""
        if self.fault is not None:
            raise self.fault.error(doing)

    def wait_for_fault(self, seconds: float) -> None:
        """Returns as soon as the job has a fault."""
        with self._changed:
            self._changed.wait_for(lambda: self.fault is not None, seconds)

    def stack(self, rank: int) -> str:
        """Where another rank's program is: its main thread's stack as text; "" where it does not answer, or others have
        found a fault meanwhile.
        """
        member = self._members.get(rank)
        self._answers.pop(rank, None)
        if member is not None:
            self.locate(member.rank, self.rank)
        elif self.elsewhere is None or not self.elsewhere.locate(rank):
            return ""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._answers or self.fault is not None, _ANSWER_S)
            return self._answers.get(rank, "")

    def tell(self, code: str, told: str) -> None:
        """This rank ends by an exception: all others hear its last line before the process ends."""
        if os.getpid() != self._owner:
            return
        self.page.leave(State.RAISED, told)
        content = {"kind": "raised", "rank": self.rank, "code": code, "told": told, "last": self._last(self.rank)}
        self.tell_all(content)
        if self.launcher is not None:
            self.mailbox.send(self.launcher, content)

    def tell_all(self, content: Mapping[str, Any], *, here_alone: bool = False) -> None:
        """All other ranks hear something; those of other hosts by the first of their host."""
        for member in list(self._members.values()):
            if member.rank != self.rank:
                self.mailbox.send(member.mailbox, content)
        if self.elsewhere is not None and not here_alone:
            self.elsewhere.tell(content)

    def locate(self, rank: int, asks: int) -> None:
        """Asks a rank of this host where its program is, for a rank that `asks`."""
        content = {"kind": "locate", "rank": self.rank, "mailbox": self.mailbox.name, "asks": asks}
        self.mailbox.send(self._members[rank].mailbox, content)

    def spread(self, fault: Fault) -> None:
        """This rank has found a fault: all others have it, too."""
        self.fail(fault)
        self.tell_all({"kind": "fault", **fault._asdict(), "rank": self.rank, "blamed": fault.rank})

    def leave(self) -> None:
        """This rank's program has ended, by itself: nobody is to blame it, unless somebody waits for it."""
        if os.getpid() == self._owner and self.page.state == State.RUNNING:
            self.page.leave(State.LEFT)
            if self.elsewhere is not None:
                self.elsewhere.leave()

    @property
    def has_raised(self) -> bool:
        """Whether this rank's program ended by an exception, or the job has a fault."""
        return self.fault is not None or self.page.state == State.RAISED

    def describe(self, rank: int) -> str:
        """A rank as it is named in messages."""
        member = self._members.get(rank)
        if member is not None:
            return f"rank {rank} (pid {member.pid})"
        return f"rank {rank}" if self.elsewhere is None else self.elsewhere.describe(rank)

    def fail(self, fault: Fault) -> None:
        """Sets the fault of the job, if it has none, and wakes whoever waits."""
        with self._changed:
            if self.fault is None:
                self.fault = fault
                self._word.value = 1
            self._changed.notify_all()
        for wake in list(self.wakes):
            wake()

    # What the thread does

    def _run(self) -> None:
        while True:
            self.page.beat()
            elsewhere = self.elsewhere
            is_ending = self._ending or (elsewhere is not None and elsewhere.beat())
            for descriptor, _ in self._poll.poll(1000 * (_SOON_S if is_ending else _BEAT_S)):
                if descriptor == self.mailbox.fileno():
                    letter = self.mailbox.receive()
                    if letter is not None:
                        self._read(letter)
                elif descriptor not in self._processes:
                    if self.elsewhere is not None:
                        self.elsewhere.look(descriptor)
                else:
                    self._poll.unregister(descriptor)
                    self._ending[self._processes.pop(descriptor)] = (descriptor, time.monotonic() + _STATUS_S)
            for rank in list(self._ending):
                self._look_at(rank)

    def _look_at(self, rank: int) -> None:
        """A rank's process has ended: how, as soon as somebody knows."""
        process, deadline = self._ending[rank]
        status = faults.exit_status(process)
        code = self._codes.get(rank) if status is None else os.waitstatus_to_exitcode(status)
        if code is None and time.monotonic() < deadline:
            return
        page = self.pages.get(rank)
        if page is not None and page.state == State.LEFT and not code:
            self.left.add(rank)
        else:
            self.lose(rank, self._how(rank, code))
        os.close(process)
        del self._ending[rank]

    def lose(self, rank: int, how: str) -> None:
        """A rank is lost: this one and all others have the fault."""
        fault = Fault(RankLostError.code, rank, f"{self.describe(rank)} {how}{self._last(rank)}")
        self.fail(fault)
        if self.elsewhere is not None:
            content = {"kind": "lost there", "rank": self.rank, "blamed": rank, "message": fault.message}
            self.tell_all(content, here_alone=rank not in self._members)

    def code_of(self, rank: int) -> int | None:
        """The exit code that the launcher told."""
        return self._codes.get(rank)

    def _how(self, rank: int, code: int | None) -> str:
        page = self.pages.get(rank)
        said = page.told if page is not None and page.state == State.RAISED else ""
        return f"raised {said}" if said else "has ended" if code is None else faults.ended_by(code)

    def _last(self, rank: int) -> str:
        page = self.pages.get(rank)
        if isinstance(page, SentPage):
            return ""  # what it did since it sent the page is not known
        latest = page.latest() if page is not None else None
        if latest is None:
            return ", before its first collective"
        return f"; its last collective was number {latest.number}, {latest.description}"

    def _read(self, letter: Letter) -> None:
        content = letter.content
        kind, rank = content.get("kind"), content.get("rank")
        if not isinstance(rank, int):
            return
        if letter.descriptors and isinstance(kind, str) and isinstance(content.get("key"), int):
            with self._changed:
                self._received[kind, rank, content["key"]] = letter.descriptors[0]
                self._changed.notify_all()
        else:
            self.hear(kind, rank, content)

    def hear(self, kind: object, rank: int, content: Mapping[str, Any]) -> None:
        """Reads what a rank says, or the launcher of it."""
        if kind == "raised":
            self._relayed(rank, content)
        elif kind == "fault" and content.get("code") in faults.SHARED:
            hints = tuple(str(hint) for hint in content.get("hints", ()))
            self.fail(Fault(str(content["code"]), content.get("blamed"), str(content.get("message")), hints))
        elif kind == "lost there":
            self.fail(Fault(RankLostError.code, content.get("blamed"), str(content.get("message"))))
        elif kind == "left" and self.elsewhere is not None:
            self.elsewhere.leaves(rank)
        elif kind == "lost" and isinstance(content.get("code"), int):
            self._codes[rank] = content["code"]
            # A rank that nobody here holds a pidfd of: it ended before it joined, or before this one did.
            if rank not in self._processes.values() and rank not in self._ending and rank not in self.left:
                self.lose(rank, self._how(rank, content["code"]))
        elif kind == "locate":
            answer = {"kind": "located", "rank": self.rank, "asks": content.get("asks"), "stack": _main_stack()}
            self.mailbox.send(str(content.get("mailbox")), answer)
        elif kind == "located" and content.get("asks") == self.rank:
            with self._changed:
                self._answers[rank] = str(content.get("stack"))
                self._changed.notify_all()
        elif kind == "located" and self.elsewhere is not None:
            self.elsewhere.answer(content.get("asks"), content)

    def _relayed(self, rank: int, content: Any) -> None:
        code, told = str(content.get("code")), str(content.get("told"))
        if faults.is_consequence(code):
            return
        kind = code if code in faults.SHARED else RankLostError.code
        self.fail(Fault(kind, rank, f"{self.describe(rank)} raised {told}{content.get('last', '')}"))

    def _forked(self) -> None:
        """In a fork there is no job; what its parent shares with other ranks is not the fork's to hold."""
        self.fault = faults.FORKED
        self._word.value = 1
        self._changed = threading.Condition()
        for descriptor in (*self._processes, self.mailbox.fileno()):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self.elsewhere is not None:
            self.elsewhere.close()


def _main_stack() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame))[-_STACK_BYTES:] if frame is not None else ""
