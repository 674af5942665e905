"""The ranks of other hosts, as the watcher of this one knows them: through links to the first rank of each host.

That one passes on to its host what it hears, and answers for the others of its host: with their pages, and with where
their programs are.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from tessera.sharding.job.links import Door, Listening, WatcherLink, connect
from tessera.sharding.job.members import Member
from tessera.sharding.job.page import OwnPage, Page, SentPage, State

_TOLD_S: Final = 0.25
"""How long the others of a host may take to tell how one of them ended, whose connection has."""
_BEAT_S: Final = 0.2
_PASSED_ON: Final = ("raised", "fault", "lost there", "left")


class Watching(Protocol):
    """The watcher of this process."""

    rank: int
    page: OwnPage
    pages: dict[int, Page]
    left: set[int]

    @property
    def has_raised(self) -> bool:
        """Whether there is nothing more to watch for."""

    def hear(self, kind: object, rank: int, content: Mapping[str, Any]) -> None:
        """Reads what a rank says."""

    def tell_all(self, content: Mapping[str, Any], *, here_alone: bool = False) -> None:
        """Has others hear something."""

    def lose(self, rank: int, how: str) -> None:
        """A rank is lost."""

    def locate(self, rank: int, asks: int) -> None:
        """Asks a rank of this host where its program is."""


class Elsewhere:
    """Ranks of other hosts. `poll` is what the watcher's thread waits for, which alone reads links. Raises OSError
    where one that listens cannot be reached.
    """

    def __init__(
        self,
        watcher: Watching,
        members: Sequence[Member],
        listening: Mapping[int, Listening],
        door: Door | None,
        poll: select.poll,
    ) -> None:
        self._watcher, self._door, self._poll = watcher, door, poll
        self._members = {member.rank: member for member in members}
        firsts = {self._members[rank].host: rank for rank in listening}
        self._first = {member.rank: firsts[member.host] for member in members}
        """By rank, the one that answers for its host."""
        self._changing = threading.Lock()
        self._links: dict[int, WatcherLink] = {}
        self._ending: dict[int, tuple[str, float]] = {}
        self._beaten = 0.0
        watcher.pages |= {rank: SentPage() for rank in self._members}
        self._ways = {rank: connect(at, watcher.rank, rank) for rank, at in listening.items()}
        for link in self._ways.values():
            self._add(link)
        if door is not None:
            poll.register(door.fileno(), select.POLLIN)

    def describe(self, rank: int) -> str:
        """A rank as it is named in messages."""
        member = self._members.get(rank)
        return f"rank {rank}" if member is None else f"rank {rank} (pid {member.pid} on {member.hostname})"

    def tell(self, content: Mapping[str, Any]) -> None:
        """All other hosts hear something."""
        for link in self._ways.values():
            link.send(content)

    def leave(self) -> None:
        """This rank's program has ended, by itself."""
        for link in self._known():
            link.send({"kind": "left", "rank": self._watcher.rank})

    def ask(self, ranks: Sequence[int]) -> None:
        """Asks for the pages of ranks that are on other hosts, which come by and by."""
        by_first: dict[int, list[int]] = {}
        for rank in ranks:
            if rank in self._first:
                by_first.setdefault(self._first[rank], []).append(rank)
        for first, wanted in by_first.items():
            self._ways[first].send({"kind": "show", "rank": self._watcher.rank, "of": wanted})

    def locate(self, rank: int) -> bool:
        """Asks where the program of a rank is; gives whether somebody was asked."""
        first = self._first.get(rank)
        if first is not None:
            self._ways[first].send({"kind": "find", "rank": self._watcher.rank, "of": rank})
        return first is not None

    def answer(self, asks: object, content: Mapping[str, Any]) -> None:
        """Passes an answer on to a rank that has asked."""
        for link in self._known():
            if link.rank == asks:
                link.send(content)

    def leaves(self, rank: int) -> None:
        """A rank's program has ended, by itself."""
        self._watcher.left.add(rank)

    # What the watcher's thread does

    def beat(self) -> bool:
        """Says now and then that this rank is there, so that the kernel finds out whether others are; gives whether a
        rank is looked after whose connection has ended.
        """
        now = time.monotonic()
        if now - self._beaten > _BEAT_S:
            self._beaten = now
            for link in self._known():
                link.send({"kind": "beat", "rank": self._watcher.rank})
        for rank, (how, deadline) in list(self._ending.items()):
            if now > deadline:
                del self._ending[rank]
                if rank not in self._watcher.left and not self._watcher.has_raised:
                    self._watcher.lose(rank, how)
        return bool(self._ending)

    def look(self, descriptor: int) -> None:
        """Something has come."""
        if self._door is not None and descriptor == self._door.fileno():
            link = self._door.accept()
            if link is not None:
                self._add(link)
            return
        link = self._links.get(descriptor)
        if link is None:
            return
        contents = link.receive()
        if contents is None:
            self._drop(descriptor, link)
            return
        for content in contents:
            if link.rank < 0 and (self._door is None or not self._door.knows(content)):
                self._drop(descriptor, link)
                return
            link.rank = int(content["rank"]) if link.rank < 0 else link.rank
            self._hear(link, content)

    def close(self) -> None:
        """In a fork: what the parent shares with other ranks is not the fork's to hold."""
        for link in self._known():
            link.close()
        if self._door is not None:
            self._door.close()

    def _hear(self, link: WatcherLink, content: Mapping[str, Any]) -> None:
        kind, rank, of = content.get("kind"), content.get("rank"), content.get("of")
        if not isinstance(rank, int):
            return
        if kind in _PASSED_ON:
            self._watcher.hear(kind, rank, content)
            if self._door is not None:
                self._watcher.tell_all(content, here_alone=True)
        elif kind == "show" and isinstance(of, list):
            for each in of:
                page = self._watcher.pages.get(each) if isinstance(each, int) and each not in self._members else None
                if page is not None:
                    text, age_ns = page.sent()
                    link.send({"kind": "shown", "rank": each, "page": text, "age_ns": age_ns})
        elif kind == "shown":
            page = self._watcher.pages.get(rank)
            if isinstance(page, SentPage) and isinstance(content.get("age_ns"), int):
                page.take(str(content.get("page")), content["age_ns"])
                if page.state == State.LEFT:
                    self.leaves(rank)
        elif kind == "find" and isinstance(of, int) and of not in self._members:
            self._watcher.locate(of, rank)
        elif kind == "located":
            self._watcher.hear(kind, rank, content)

    def _add(self, link: WatcherLink) -> None:
        with self._changing:
            self._links[link.fileno()] = link
        self._poll.register(link.fileno(), select.POLLIN)

    def _drop(self, descriptor: int, link: WatcherLink) -> None:
        self._poll.unregister(descriptor)
        with self._changing:
            del self._links[descriptor]
        link.close()
        if link.rank >= 0:
            how = "cannot be reached any more" if link.is_cut else "has ended"
            self._ending.setdefault(link.rank, (how, time.monotonic() + (0 if link.is_cut else _TOLD_S)))

    def _known(self) -> list[WatcherLink]:
        with self._changing:
            return list(self._links.values())
