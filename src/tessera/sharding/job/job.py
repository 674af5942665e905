"""A job as one of its ranks sees it: who the others are, and the communicators of groups."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import torch
import torch.distributed as dist

from tessera.errors import ArgumentError
from tessera.sharding.job.beside import beside
from tessera.sharding.job.communicator import ProcessCommunicator
from tessera.sharding.job.links import Door, Listening, own_address
from tessera.sharding.job.members import Member
from tessera.sharding.job.page import Page
from tessera.sharding.job.patience import Patience
from tessera.sharding.job.watcher import Watcher
from tessera.sharding.transport.contract import GroupTransport
from tessera.sharding.transport.gloo import GlooTransport
from tessera.sharding.transport.heap import Heap, PeerHeap
from tessera.sharding.transport.lanes import Lane, new_lane
from tessera.sharding.transport.shared import PeerMemory, SharedTransport
from tessera.system import forks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")
TransportName = Literal["auto", "shared", "gloo"]
_JOINING: Final = "this rank joins its job"
_WHOLE: Final = 0


class ProcessJob:
    """The ranks that run one program, by their `members`; this process is one of them."""

    def __init__(self, watcher: Watcher, members: Sequence[Member]) -> None:
        self.rank, self.size, self.members = watcher.rank, len(members), tuple(members)
        self.watcher = watcher
        self._group: dist.ProcessGroup | None = None
        own = self.members[self.rank]
        self.local = tuple(member.rank for member in members if member.host == own.host)
        """The ranks on this host."""
        self._communicators: dict[tuple[tuple[int, ...], bool], ProcessCommunicator] = {}
        """By ranks, and whether they share memory: a group has one lane, whichever way it was asked for."""
        self._lock = forks.lock()
        self._heap: Heap | None = None
        self._heaps: dict[int, PeerMemory] = {}
        cores = {core for rank in self.local for core in self.members[rank].cores}
        self._spins = len(self.local) <= len(cores)

    def meet(self) -> None:
        """Watches the ranks of this host, and exchanges pages with them."""
        self.watcher.watch([self.members[rank] for rank in self.local])
        others = [rank for rank in self.local if rank != self.rank]
        for rank in others:
            self.watcher.give(rank, "page", _WHOLE, self.watcher.page.descriptor)
        for rank in others:
            self.watcher.pages[rank] = _mapped(Page, self.watcher.take(rank, "page", _WHOLE, _JOINING))

    def meet_elsewhere(self, store: Store) -> None:
        """Links this rank to the first rank of each other host, and lets in those of others where it is one itself. All
        ranks do so, and hear through the store where to go. Raises OSError where one cannot be reached.
        """
        firsts: dict[str, int] = {}
        for member in self.members:
            firsts.setdefault(member.host, member.rank)
        own = self.members[self.rank].host
        door = None
        if firsts.pop(own) == self.rank:
            door = Door(own_address(os.environ.get("MASTER_ADDR", "")))
            store.set(f"door/{self.rank}", door.at.text)
        listening = {rank: Listening.read(store.get(f"door/{rank}").decode()) for rank in firsts.values()}
        self.watcher.meet_elsewhere([each for each in self.members if each.host != own], listening, door)

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The process group of all ranks whose backend is Gloo; None: the default one."""
        return self._group

    def device_mesh(self, ranks: tuple[int, ...], axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
        """Torch's mesh of all ranks, in this order, with these axes. A collective of all ranks: torch makes process
        groups for it.
        """
        from torch.distributed.device_mesh import DeviceMesh

        grid = torch.tensor(ranks, device="cpu").reshape([size for _, size in axes])
        names = tuple(name for name, _ in axes)
        doing = f"rank {self.rank} makes a DeviceMesh"
        return beside(lambda: DeviceMesh("cpu", grid, mesh_dim_names=names), self.watcher, doing)

    def spans_hosts(self, ranks: Sequence[int]) -> bool:
        """Whether these ranks run on several hosts: the same on every rank."""
        return len({self.members[rank].host for rank in ranks}) > 1

    def finish(self) -> None:
        """Ends what this rank has begun and nobody has waited for. Raises what waiting for other ranks raises."""
        for communicator in list(self._communicators.values()):
            communicator.finish()

    def use(self, group: dist.ProcessGroup | None) -> None:
        """Sends messages by a process group whose backend is Gloo; None for the default one."""
        self._group = group

    def communicator(self, ranks: Sequence[int], transport: TransportName = "auto") -> ProcessCommunicator:
        """The communicator of a group of ranks, of which this is one. Every rank of the group asks for it, and gets the
        same one at the next time. Ranks of one host share memory unless another transport is asked for.

        Raises ArgumentError (E_ARGUMENT) for ranks that there are not, and for shared memory between hosts.
        """
        group = tuple(ranks)
        shares = set(group) <= set(self.local) and transport != "gloo"
        with self._lock:
            made = self._communicators.get((group, shares))
            if made is None or (transport == "shared" and not shares):
                made = self._communicators[group, shares] = self._made(group, transport, shares)
            return made

    def _made(self, ranks: tuple[int, ...], transport: TransportName, shares: bool) -> ProcessCommunicator:
        wrong = [rank for rank in ranks if not 0 <= rank < self.size]
        if wrong or len(set(ranks)) != len(ranks) or self.rank not in ranks:
            raise ArgumentError(
                f"a group of ranks {ranks} on rank {self.rank} of {self.size}",
                hints=["each rank at most once, and this one among them"],
            )
        if transport == "shared" and not shares:
            raise ArgumentError(f"ranks {ranks} share no memory: they run on several hosts")
        key = _key(ranks, "shared" if shares else "gloo")
        self.watcher.groups[key] = ranks
        patience = Patience(self.watcher, ranks, key, self.members)
        self.watcher.check("")

        def connected(waiting: Patience) -> GroupTransport:
            return self._shared(ranks, key, waiting) if shares else self._gloo(ranks, key, waiting)

        return ProcessCommunicator(ranks, key, self.watcher, patience, connected)

    def _shared(self, ranks: tuple[int, ...], key: int, waiting: Patience) -> GroupTransport:
        own = self._own_heap()
        lane, descriptor = new_lane()
        others = [rank for rank in ranks if rank != self.rank]
        for rank in others:
            self.watcher.give(rank, "lane", key, descriptor)
            self.watcher.give(rank, "heap", key, own.descriptor)
        os.close(descriptor)
        lanes: dict[int, Lane] = {self.rank: lane}
        doing = f"this rank meets ranks {', '.join(map(str, ranks))}"
        for rank in others:
            lanes[rank] = _mapped(Lane, self.watcher.take(rank, "lane", key, doing))
            heap = _mapped(PeerHeap, self.watcher.take(rank, "heap", key, doing))
            self._heaps.setdefault(rank, heap)
        transport = SharedTransport(
            ranks.index(self.rank),
            [lanes[rank] for rank in ranks],
            [self._heaps[rank] for rank in ranks],
            own,
            waiting,
            spins=self._spins,
        )
        self.watcher.wakes.append(transport.wake)
        return transport

    def _gloo(self, ranks: tuple[int, ...], key: int, waiting: Patience) -> GroupTransport:
        empty = self._own_heap().empty_or_small
        return GlooTransport(ranks.index(self.rank), ranks, self._group, key, empty, waiting)

    def _own_heap(self) -> Heap:
        if self._heap is None:
            self._heap = Heap()
            self._heaps[self.rank] = self._heap
        return self._heap


def _mapped(memory: Callable[[int], T], descriptor: int) -> T:
    """What is mapped by a descriptor, which is not needed any more: a mapping keeps one of its own."""
    try:
        return memory(descriptor)
    finally:
        os.close(descriptor)


def _key(ranks: Sequence[int], transport: str) -> int:
    """A number that names a group on all of its ranks; not 0."""
    digest = hashlib.blake2b(f"{transport} {ranks}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 | 1
