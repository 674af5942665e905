"""The clocks of ranks, compared: when something that this process did was, by the clock of rank 0.

Each rank sends rank 0 the time a few times and gets rank 0's back. Of the exchanges the one with the shortest round
trip counts; its offset is wrong by half the round trip at most (NTP, RFC 5905, section 8). All ranks take part in a
collective, so `sharding/exchange/collectives.py` exchanges there, whether a profile is on or not: a profile of one rank
alone must not wait for the others.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, NamedTuple

ROUNDS: Final = 8
_TAG: Final = 0x7E55
_KEPT: Final = 64


class ClockOffset(NamedTuple):
    """What is added to this process's `time.monotonic_ns` to get that of rank 0, wrong by at most `uncertainty_ns`, and
    when that was measured; `wall_ns` is added to rank 0's to get its wall clock at that time. All in nanoseconds.

    Monotonic clocks are compared, since those of the wall may be set meanwhile.
    """

    at_ns: int
    offset_ns: int
    uncertainty_ns: int
    wall_ns: int


_offsets: deque[ClockOffset] = deque(maxlen=_KEPT)


def exchange(rank: int, size: int) -> None:
    """Compares the clocks of the default group's ranks. Every rank calls it at the same point of its program."""
    if rank:
        _offsets.append(_asked())
        return
    now = time.monotonic_ns()
    wall_ns = time.time_ns() - now
    for peer in range(1, size):
        _answer(peer, wall_ns)
    _offsets.append(ClockOffset(now, 0, 0, wall_ns))


def same() -> None:
    """All ranks run on this host, and have this clock: nothing is sent, and nothing is uncertain."""
    now = time.monotonic_ns()
    _offsets.append(ClockOffset(now, 0, 0, time.time_ns() - now))


def _answer(peer: int, wall_ns: int) -> None:
    """Rank 0's part with one peer: the instants at which the question came and the answer went."""
    import torch
    import torch.distributed as dist

    question = torch.zeros(1, dtype=torch.int64, device="cpu")
    for _ in range(ROUNDS):
        dist.recv(question, src=peer, tag=_TAG)
        received = time.monotonic_ns()
        dist.send(torch.tensor([received, time.monotonic_ns(), wall_ns], device="cpu"), dst=peer, tag=_TAG)


def _asked() -> ClockOffset:
    """A peer's part: the best of a few rounds."""
    import torch
    import torch.distributed as dist

    question, answer = torch.zeros(1, dtype=torch.int64, device="cpu"), torch.zeros(3, dtype=torch.int64, device="cpu")
    rounds = []
    for _ in range(ROUNDS):
        sent = time.monotonic_ns()
        dist.send(question, dst=0, tag=_TAG)
        dist.recv(answer, src=0, tag=_TAG)
        returned = time.monotonic_ns()
        received, answered, wall_ns = answer.tolist()
        rounds.append(ClockOffset(returned, *offset_of(sent, received, answered, returned), wall_ns))
    return min(rounds, key=lambda each: each.uncertainty_ns)


def offset_of(sent: int, received: int, answered: int, returned: int) -> tuple[int, int]:
    """Offset and uncertainty of one round: sent and returned by this process's clock, received and answered by that of
    rank 0.
    """
    offset = ((received - sent) + (answered - returned)) // 2
    round_trip = (returned - sent) - (answered - received)
    return offset, round_trip // 2 + 1


def told(start_ns: int, start_unix_ns: int) -> tuple[int, int] | tuple[None, None]:
    """For a trace of this rank that began at that instant, by its monotonic clock and by its wall clock: what is added
    to the latter to get rank 0's wall clock, and how far off that may be. From the exchange nearest to the beginning;
    None where no clocks were compared.
    """
    if not _offsets:
        return None, None
    nearest = min(_offsets, key=lambda each: abs(each.at_ns - start_ns))
    began_ns = start_ns + nearest.offset_ns + nearest.wall_ns
    return began_ns - start_unix_ns, nearest.uncertainty_ns


def forget() -> None:
    """The group is another one: what was measured in the old one holds no more."""
    _offsets.clear()
