"""Patience: what is found out about the others while a collective waits for them, and when the wait is given up."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Final, NoReturn

from tessera import settings
from tessera.errors import CollectiveMismatchError, CollectiveStalledError, LibraryError
from tessera.sharding.job.faults import Fault
from tessera.sharding.job.members import Member, is_stopped
from tessera.sharding.job.page import Seen, State
from tessera.sharding.job.watcher import Watcher

_COMPARED_S: Final = 0.1
_SILENT_S: Final = 1.0
_WARNED_S: Final = 2.0
_LOST_S: Final = 1.0
"""How long a transport that has failed waits for the watcher to say why."""


class SilentRankWarning(RuntimeWarning):
    """A rank that others wait for gives no sign of life, but has not ended."""


class Patience:
    """The wait of one communicator: `ranks` are the job's numbers of its group, `key` is the group's. `current` is the
    collective that it waits in. Part of `Waiting`.
    """

    def __init__(self, watcher: Watcher, ranks: Sequence[int], key: int, members: Sequence[Member]) -> None:
        self._watcher, self._ranks, self._key = watcher, ranks, key
        self._members = {member.rank: member for member in members}
        self._host = self._members[watcher.rank].host
        self.fault_address = watcher.fault_address
        self.current = Seen(0, 0, "")
        self._since: float | None = None
        self._compared = self._warned = 0.0

    def begin(self, current: Seen) -> None:
        """Another collective is waited in."""
        self.current, self._since = current, None

    def end(self) -> None:
        """It is waited in no more."""
        if self._since is not None:
            self._watcher.page.wait(0, 0)

    def again(self, missing: Sequence[int]) -> None:
        """See `Waiting`."""
        self._watcher.check(self.doing())
        now = time.monotonic()
        if self._since is None:
            self._since, self._compared, self._warned = now, now, 0.0
            self._watcher.page.wait(self._key, self.current.number)
        if now - self._compared > _COMPARED_S:
            self._compared = now
            self._compare()
        awaited = [self._ranks[peer] for peer in missing]
        ranks = self._absent(awaited)
        self._check_left(ranks)
        waited = now - self._since
        if waited > _SILENT_S and now - self._warned > _WARNED_S:
            self._warn(awaited, now)
        if waited > settings.current().collective_timeout_s and ranks:
            self._stalled(ranks, waited)

    def mismatch(self, peer: int) -> NoReturn:
        """See `Waiting`."""
        rank = self._ranks[peer]
        page = self._watcher.pages.get(rank)
        seen = page.entry(self._key, self.current.number) if page is not None else None
        self._differs(rank, seen.description if seen is not None else "another one")

    def failed(self, error: Exception) -> NoReturn:
        """See `Waiting`."""
        deadline = time.monotonic() + _LOST_S
        while time.monotonic() < deadline:
            self._watcher.wait_for_fault(_LOST_S / 10)
            self._watcher.check(self.doing())
            self._check_left(self._absent(self._ranks))
        text = str(error).strip().partition("\n")[0]
        raise LibraryError(f"{self.doing()}: {text}") from error

    def doing(self) -> str:
        """What this rank does."""
        return f"rank {self._watcher.rank} waits in collective {self.current.number}, {self.current.description}"

    def _absent(self, ranks: Sequence[int]) -> list[int]:
        """Those of the ranks that have not come to the current collective, as far as their pages say."""
        pages = self._watcher.pages
        return [rank for rank in ranks if rank not in pages or pages[rank].begun(self._key) < self.current.number]

    def _check_left(self, ranks: Sequence[int]) -> None:
        """Raises that one of these ranks, which are waited for, will not come."""
        for rank in ranks:
            page = self._watcher.pages.get(rank)
            if rank in self._watcher.left or (page is not None and page.state == State.LEFT):
                self._fail(CollectiveStalledError.code, rank, f"{self._watcher.describe(rank)} has ended its program")

    def _compare(self) -> None:
        """Looks whether others have come with another collective. Some transports only see that nothing comes."""
        if self._watcher.elsewhere is not None:
            self._watcher.elsewhere.ask(self._ranks)  # what comes is looked at the next time
        for rank in self._ranks:
            page = self._watcher.pages.get(rank)
            seen = page.entry(self._key, self.current.number) if page is not None else None
            if seen is not None and seen.fingerprint != self.current.fingerprint:
                self._differs(rank, seen.description)
            if seen is None and page is not None:
                self._crossed(rank)

    def _crossed(self, rank: int) -> None:
        """Looks whether a rank that has not come waits for this one, in a collective of another group."""
        own, other = self._watcher.page, self._watcher.pages[rank]
        waits = other.waits()
        if waits is None or waits[0] == self._key:
            return
        key, seen = waits
        if key in self._keys_of(rank) and own.begun(key) < seen.number:
            self._differs(rank, f"{seen.description} of another group")

    def _keys_of(self, rank: int) -> frozenset[int]:
        return frozenset(key for key, ranks in self._watcher.groups.items() if rank in ranks)

    def _differs(self, rank: int, other: str) -> NoReturn:
        told = (
            f"collective {self.current.number} of ranks {', '.join(map(str, self._ranks))} is "
            f"{self.current.description} on rank {self._watcher.rank}, and {other} on rank {rank}"
        )
        hint = "every rank of a group calls the same collectives, in the same order, with the same shapes and dtypes"
        self._fail(CollectiveMismatchError.code, rank, told, hint)

    def _warn(self, ranks: Sequence[int], now: float) -> None:
        for rank in ranks:
            page = self._watcher.pages.get(rank)
            silent_s = now - page.beat_ns / 1e9 if page is not None else 0.0
            if silent_s > _SILENT_S:
                self._warned = now
                member = self._members.get(rank)
                is_here = member is not None and member.host == self._host
                stopped = " (its process is stopped)" if member and is_here and is_stopped(member.pid) else ""
                text = f"rank {rank} has not answered for {silent_s:.1f} s{stopped}; {self.doing()}"
                warnings.warn(text, SilentRankWarning, stacklevel=2)

    def _stalled(self, ranks: Sequence[int], waited: float) -> NoReturn:
        stacks = []
        for rank in ranks:
            stack = self._watcher.stack(rank)
            self._watcher.check(self.doing())  # who found it first may have ended, and answers for nobody any more
            stacks.append(f"rank {rank} is here:\n{stack}" if stack else f"rank {rank} does not say where it is")
        named = ", ".join(self._watcher.describe(rank) for rank in ranks)
        have = "has" if len(ranks) == 1 else "have"
        self._fail(CollectiveStalledError.code, ranks[0], f"{named} {have} not come for {waited:.1f} s", *stacks)

    def _fail(self, code: str, rank: int, message: str, *hints: str) -> NoReturn:
        doing = "" if code == CollectiveMismatchError.code else self.doing()
        fault = Fault(code, rank, message, hints)
        self._watcher.spread(fault)
        raise fault.error(doing)
