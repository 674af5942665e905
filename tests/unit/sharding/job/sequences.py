"""Random sequences of collectives, drawn from a seed alike on all ranks.

    python -m tests.unit.sharding.job.sequences --ranks 8 --count 1000

checks so many, which takes minutes; `make test` checks a few.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from tessera.sharding.exchange import emulated
from tessera.sharding.exchange.communicator import REDUCTIONS, AddressedStart, Reduction
from tessera.sharding.job.communicator import Handle, ProcessCommunicator

LENGTH = 12
_DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.float8_e4m3fn)
_EXTENTS = (0, 1, 2, 3, 5, 8, 17, 64, 257)


def cut(extent: int, size: int, *, uneven: bool) -> list[int]:
    """An extent shared out among ranks: ceil(n / p) each, or unevenly, with empty parts."""
    if uneven:
        shares = [0] * size
        shares[0], shares[-1] = extent - extent // 3, shares[-1] + extent // 3
        if size == 1:
            shares[0] = extent
        return shares
    each = -(-extent // size)
    borders = [min(rank * each, extent) for rank in range(size + 1)]
    return [borders[rank + 1] - borders[rank] for rank in range(size)]


def check(group: ProcessCommunicator, seed: int, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    """Runs one sequence, of which some collectives are waited for only later, in any order."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    pending: list[tuple[str, Handle | Addressed, torch.Tensor]] = []
    for step in range(LENGTH):
        name, handle, wanted = _drawn(group, draw, generator)
        pending.append((f"step {step} of seed {seed} by {group.transport.name}: {name}", handle, wanted))
        while pending and draw.random() < 0.7:
            told, each, right = pending.pop(draw.randrange(len(pending)))
            assert same(each.wait(), right), told
    for told, each, right in pending:
        assert same(each.wait(), right), told


class Addressed:
    """A collective of the memory of a tensor, which the collective alone keeps, and of memory for what is wanted."""

    def __init__(self, start: AddressedStart, x: torch.Tensor, wanted: torch.Tensor) -> None:
        self._result = torch.full_like(wanted, 77)
        self._handle = start(
            SimpleNamespace(address=x.data_ptr(), x=x), SimpleNamespace(address=self._result.data_ptr())
        )

    def wait(self) -> torch.Tensor:
        self._handle.end()
        return self._result


def _drawn(
    group: ProcessCommunicator, draw: random.Random, generator: torch.Generator
) -> tuple[str, Handle | Addressed, torch.Tensor]:
    rank, size = group.rank, group.size
    dtype = draw.choice(_DTYPES)
    shape = [draw.choice(_EXTENTS) for _ in range(draw.randint(1, 3))]
    while torch.Size(shape).numel() > 60_000:
        shape.pop()
    dim = draw.randrange(len(shape))
    extents = cut(shape[dim], size, uneven=draw.random() < 0.5)
    op: Reduction = draw.choice(REDUCTIONS)
    kind = draw.choice(("reduce", "gather", "scatter", "all", "permute", "broadcast"))
    parts = [torch.randint(-4, 5, shape, generator=generator).to(dtype) for _ in range(size)]
    x = parts[rank]
    name = f"{kind} {op} of {shape} {dtype} along {dim} by {extents}"
    addressed = (draw.random() < 0.5) == bool(rank % 2)  # some of the ranks, which meets what others do with tensors
    if kind == "reduce":
        wanted = emulated.all_reduce(parts, op)[rank]
        start = group.addressed_all_reduce(x.shape, dtype, op) if addressed else None
        return name, Addressed(start, x, wanted) if start else group.start_all_reduce(x, op), wanted
    if kind == "scatter":
        wanted = emulated.reduce_scatter(parts, dim, op, extents)[rank]
        start = group.addressed_reduce_scatter(x.shape, dtype, dim, op, extents) if addressed else None
        return name, Addressed(start, x, wanted) if start else group.start_reduce_scatter(x, dim, op, extents), wanted
    if kind == "permute":
        shift = draw.randint(-2, 2)
        return name, group.start_permute(x, shift), emulated.permute(parts, shift)[rank]
    if kind == "broadcast":
        source = draw.randrange(size)
        return name, group.start_broadcast(x, source), emulated.broadcast(parts, source)[rank]
    pieces = [part.narrow(dim, 0, extent).contiguous() for part, extent in zip(parts, extents, strict=True)]
    if kind == "gather" or len(shape) == 1:
        own, wanted = pieces[rank], emulated.all_gather(pieces, dim, extents)[rank]
        start = group.addressed_all_gather(own.shape, dtype, dim, extents) if addressed else None
        return name, Addressed(start, own, wanted) if start else group.start_all_gather(own, dim, extents), wanted
    other = (dim + 1) % len(shape)
    cuts = cut(shape[other], size, uneven=draw.random() < 0.5)
    handle = group.start_all_to_all(pieces[rank], other, dim, cuts, extents)
    return name, handle, emulated.all_to_all(pieces, other, dim, cuts, extents)[rank]


def main(arguments: Sequence[str] | None = None) -> None:
    """Checks many sequences."""
    from tests.unit.sharding.job.nursery import nursery

    parser = argparse.ArgumentParser(
        prog="python -m tests.unit.sharding.job.sequences", description="Random collectives."
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with nursery() as forks:
        for first in range(0, options.count, 100):
            count = min(100, options.count - first)
            outcome = forks.run(options.ranks, "random_sequences", seed=options.seed + first, count=count)
            if outcome.code:
                raise SystemExit(outcome.err)
            print(f"{first + count} sequences of {LENGTH} collectives agree on {options.ranks} ranks", flush=True)


if __name__ == "__main__":
    main()
