"""A rank of the suite `mesh`: times collectives of ours and of torch.distributed by turns, after checking both.

    tessera run --ranks 2 bench/mesh_probe.py [--quick]

Rank 0 prints a line of JSON for each case: what, ranks, bytes, and seconds per call of both, round by round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from tessera.sharding.job import ProcessJob, join
from tessera.sharding.job.communicator import ProcessCommunicator

ROUNDS = 9
BATCH_S = 0.02
MOST_CALLS = 200


@dataclass(frozen=True)
class Timed:
    """One case: seconds per call of ours and of torch's, in the order of the rounds."""

    name: str
    ranks: int
    bytes: int
    ours: list[float]
    peer: list[float]


Pair = tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]


def all_reduce(job: ProcessJob, group: ProcessCommunicator, nbytes: int) -> Pair:
    """Sums; torch's is in place, ours gives fresh memory. The operand lies where peers read it."""
    x = group.empty((nbytes // 4,), torch.float32).fill_(job.rank + 1)
    y = x.clone()

    def peer() -> torch.Tensor:
        dist.all_reduce(y)
        return y

    return lambda: group.all_reduce(x, "sum"), peer


def reduce_scatter(job: ProcessJob, group: ProcessCommunicator, nbytes: int) -> Pair:
    """Sums of slices."""
    count = nbytes // 4 // job.size
    x = torch.full((count * job.size,), job.rank + 1.0)
    y = torch.empty(count)

    def peer() -> torch.Tensor:
        dist.reduce_scatter_tensor(y, x)
        return y

    return lambda: group.reduce_scatter(x, 0, "sum", (count,) * job.size), peer


def all_gather(job: ProcessJob, group: ProcessCommunicator, nbytes: int) -> Pair:
    """Slices put together."""
    count = nbytes // 4 // job.size
    x = torch.full((count,), job.rank + 1.0)
    y = torch.empty(count * job.size)

    def peer() -> torch.Tensor:
        dist.all_gather_into_tensor(y, x)
        return y

    return lambda: group.all_gather(x, 0, (count,) * job.size), peer


def wanted(name: str, job: ProcessJob, nbytes: int) -> torch.Tensor:
    """What a case gives."""
    count, total = nbytes // 4, job.size * (job.size + 1) / 2
    if name == "all-gather":
        return torch.arange(1.0, job.size + 1).repeat_interleave(count // job.size)
    return torch.full((count if name == "all-reduce" else count // job.size,), total)


def timed(call: Callable[[], torch.Tensor], calls: int) -> float:
    """Seconds per call of a batch, which all ranks begin together."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def calls_of(call: Callable[[], torch.Tensor]) -> int:
    """How many calls make a batch, alike on all ranks."""
    count = torch.tensor([min(MOST_CALLS, 1 + int(BATCH_S / timed(call, 3)))])
    dist.broadcast(count, 0)
    return int(count.item())


def measure(name: str, job: ProcessJob, pair: Pair, nbytes: int, rounds: int) -> Timed:
    """Checks both, then times them by turns."""
    ours, peer = pair
    right = wanted(name.partition(" ")[0], job, nbytes)
    assert torch.equal(ours(), right), f"{name}: ours is wrong"
    assert torch.equal(peer(), right), f"{name}: torch's is wrong"
    own_calls, peer_calls = calls_of(ours), calls_of(peer)
    found = [(timed(ours, own_calls), timed(peer, peer_calls)) for _ in range(rounds)]
    return Timed(name, job.size, nbytes, [each for each, _ in found], [each for _, each in found])


def main() -> None:
    """Runs all cases."""
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv
    job = join()
    everyone = tuple(range(job.size))
    shared, gloo = job.communicator(everyone, "shared"), job.communicator(everyone, "gloo")
    sizes = (1 << 20,) if quick else (1 << 20, 16 << 20, 64 << 20)
    cases = [("all-reduce one host", all_reduce, shared, nbytes) for nbytes in (4096, sizes[-1])]
    cases += [("reduce-scatter Gloo", reduce_scatter, gloo, nbytes) for nbytes in sizes]
    cases += [("all-gather Gloo", all_gather, gloo, nbytes) for nbytes in sizes]
    for name, make, group, nbytes in cases:
        result = measure(name, job, make(job, group, nbytes), nbytes, 3 if quick else ROUNDS)
        if job.rank == 0:
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
