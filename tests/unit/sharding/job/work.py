"""What the ranks of tests do: functions of plain arguments, which print what they tell as lines of JSON."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from examples import train_mesh
from tessera import Tensor, dist, grad, op, settings, stream
from tessera.errors import TesseraError
from tessera.lazy.evaluation import evaluate
from tessera.ops.spectral.spelling import LONG
from tessera.sharding.bound_program import BoundProgram
from tessera.sharding.exchange import emulated
from tessera.sharding.exchange.communication import CommunicationOptions, using
from tessera.sharding.exchange.communicator import REDUCTIONS, Reduction
from tessera.sharding.job import join
from tessera.sharding.job.communicator import ProcessCommunicator
from tessera.sharding.job.job import ProcessJob, TransportName
from tessera.sharding.partitioning.program import LocalProgram
from tessera.sharding.partitioning.schedule import OverlapLimits, Start, Step, Wait, told
from tessera.sharding.transport import gloo
from tests.mesh.checking import agree
from tests.mesh.drawing import NAMES, drawn
from tests.mesh.mixtures import fault_of as mixture_fault
from tests.mesh.mixtures import pinned_fault_of as pinned_mixture_fault
from tests.mesh.pipelined import fault_of
from tests.mesh.references import by_references
from tests.mesh.regions import faults as region_faults
from tests.mesh.spectra import faults as spectral_faults
from tests.mesh.spectra import long_faults
from tests.unit.sharding.job import sequences
from tests.unit.sharding.job.telling import tell

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
SHAPES = ((), (1,), (7,), (0, 3), (3, 5), (2, 3, 11), (131, 257))
COMPLEX: tuple[Reduction, ...] = ("sum", "avg", "product")
TRANSPORTS = ("shared", "gloo")


def operands(size: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """An operand for each rank, the same on all: odd numbers, and among floats NaN and infinities."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for rank in range(size):
        x = torch.randint(-9, 10, shape, generator=generator)
        values = (x.double() * 0.75 if dtype.is_floating_point else x).to(dtype)
        if values.numel() > 5 and (dtype.is_floating_point or dtype.is_complex):
            special = (torch.nan, torch.inf, -torch.inf)[rank % 3]
            values.view(-1)[rank % 5] = special
        parts.append(values)
    return parts


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether tensors hold the same numbers, NaN where NaN is."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype or not found.is_contiguous():
        return False
    if found.is_complex():
        return torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True)
    if found.is_floating_point() and found.dtype.itemsize == 1:
        found, wanted = found.float(), wanted.float()
    return bool(((found == wanted) | (torch.isnan(found) & torch.isnan(wanted))).all())


def collectives(transport: str, every: bool = False) -> None:
    """Every collective of every dtype and shape gives what emulation gives; tells how many were compared.

    By gloo two ranks compare every other pair of dtype and shape, and four the rest, unless all are to be.
    """
    job = join()
    group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
    count = 0
    pairs = list(enumerate((dtype, shape) for dtype in DTYPES for shape in SHAPES))
    for number, (dtype, shape) in pairs if every or transport == "shared" else pairs[job.size // 4 :: 2]:
        parts = operands(job.size, shape, dtype, number)
        for name, found, wanted in each_collective(group, parts):
            assert same(found, wanted), f"{name} of {shape} {dtype} by {transport}: {found} where {wanted} is right"
            count += 1
    group.barrier()
    tell(count=count)


def each_collective(
    group: ProcessCommunicator, parts: list[torch.Tensor]
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Name, result and emulated result of all collectives that take such operands."""
    rank, size, x = group.rank, group.size, parts[group.rank]
    found = [
        (f"all_reduce {op}", group.all_reduce(x, op), emulated.all_reduce(parts, op)[rank])
        for op in (COMPLEX if x.is_complex() else REDUCTIONS)
    ]
    found.append(("permute", group.permute(x, 1), emulated.permute(parts, 1)[rank]))
    found.append(("permute back", group.permute(x, -1), emulated.permute(parts, -1)[rank]))
    found.append(("broadcast", group.broadcast(x, size - 1), emulated.broadcast(parts, size - 1)[rank]))
    for dim in range(x.dim()):
        extents = sequences.cut(x.shape[dim], size, uneven=dim == 0)
        pieces = [part.narrow(dim, 0, extent).contiguous() for part, extent in zip(parts, extents, strict=True)]
        gathered = group.all_gather(pieces[rank], dim, extents)
        found.append((f"all_gather {dim}", gathered, emulated.all_gather(pieces, dim, extents)[rank]))
        scattered = group.reduce_scatter(x, dim, "sum", extents)
        found.append((f"reduce_scatter {dim}", scattered, emulated.reduce_scatter(parts, dim, "sum", extents)[rank]))
        for other in range(x.dim()):
            if other != dim:
                cuts = sequences.cut(x.shape[other], size, uneven=True)
                moved = group.all_to_all(pieces[rank], other, dim, cuts, extents)
                wanted = emulated.all_to_all(pieces, other, dim, cuts, extents)[rank]
                found.append((f"all_to_all {other} {dim}", moved, wanted))
    return found


def random_sequences(seed: int, count: int) -> None:
    """Sequences of collectives, some started and ended later, by both transports, give what emulation gives."""
    job = join()
    groups = [job.communicator(range(job.size), name) for name in ("shared", "gloo")]
    for number in range(count):
        sequences.check(groups[number % 2], seed + number, same)
    tell(count=count)


def subgroups() -> None:
    """Groups of some of the ranks, which overlap, in other orders, and of one rank."""
    job = join()
    pairs = [(0, 1), (2, 3)] if job.rank < 2 else [(2, 3)]
    found = []
    mine = next(pair for pair in pairs if job.rank in pair)
    for ranks in (mine, (job.rank,), tuple(reversed(range(job.size)))):
        for transport in TRANSPORTS:
            group = job.communicator(ranks, transport)  # type: ignore[arg-type]
            total = group.all_reduce(torch.tensor([float(job.rank)]), "sum").item()
            order = group.all_gather(torch.tensor([job.rank]), 0, (1,) * group.size).tolist()
            found.append([total, order])
    tell(found=found)


def on_hosts() -> None:
    """Ranks of which some share no memory with others: who shares what, and a step of training on a mesh of all."""
    job = join()
    found = []
    for ranks in (tuple(range(job.size)), (0, 1)):
        if job.rank in ranks:
            group = job.communicator(ranks)
            found.append([group.transport.name, group.all_reduce(torch.tensor([1.0 + job.rank]), "sum").item()])
    mesh = dist.Mesh(["x"])
    rows = dist.ShardSpec((0,), ("x",))
    whole = torch.arange(21.0).remainder(5).reshape(7, 3) - 2
    with by_references():
        x = dist.distribute(whole, rows, mesh)
        w = dist.distribute(whole.T.contiguous(), None, mesh)
        value, gradient = grad.value_and_grad(lambda w: op.sum(op.matmul(x, w) ** 2))(w)
        total = value.full().item()
        same = torch.equal(gradient.full().torch(), 2 * whole.T @ (whole @ whole.T))
    tell(local=job.local, found=found, total=total, same=same)


def symmetric() -> None:
    """Operands in memory that peers read in place stay the caller's: written to at once after each collective."""
    job = join()
    group = job.communicator(range(job.size), "shared")
    x = group.empty((100_000,), torch.float32)
    for step in range(30):
        x.fill_(job.rank + step)
        total = group.all_reduce(x, "sum")
        x.fill_(-1.0)
        assert (total == sum(range(job.size)) + step * job.size).all()
        total.fill_(job.rank)
        again = group.reduce_scatter(total, 0, "sum", (100_000, *[0] * (job.size - 1)))
        total.fill_(-7.0)
        assert (again == sum(range(job.size))).all()
    tell(size=again.numel())


# Faults


def caught(call: Callable[[], object]) -> None:
    """Tells what a call raises and when; ends the program as one that does not catch it would."""
    try:
        call()
    except TesseraError as error:
        tell(code=error.code, message=error.message, hints=error.hints, where=error.where, at=time.monotonic())
        raise SystemExit(1) from error
    tell(code=None)


def die(after_s: float = 0.0) -> None:
    """Kills this rank, at once or a little later, and tells when."""

    def kill() -> None:
        tell(at=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    if after_s:
        threading.Timer(after_s, kill).start()
    else:
        kill()


def killed(victim: int, place: str, transport: str) -> None:
    """A rank is killed at some place of its program, while the others are in a collective or come to one."""
    if place == "before" and int(os.environ["RANK"]) == victim:
        die()
    job = None

    def program() -> None:
        nonlocal job
        job = join()
        group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
        group.barrier()
        mine = job.rank == victim
        if place == "compute" and mine:
            time.sleep(0.1)
            die()
        if place == "barrier":
            if mine:
                die(0.3)
            elif job.rank == (victim + 1) % job.size:
                time.sleep(0.6)
        if place == "exchange" and mine:
            die(0.2)
        x = torch.ones(300_000)
        for _ in range(100_000):
            group.barrier() if place == "barrier" else group.all_reduce(x, "sum")

    caught(program)


def stopped(victim: int, transport: str) -> None:
    """A rank is stopped by the next one until that has warned: the others go on when it does."""
    goes_on = threading.Event()
    signal.signal(signal.SIGCONT, lambda *_: goes_on.set())
    job = join()
    group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
    group.barrier()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pid = job.members[victim].pid

        def stop() -> None:
            os.kill(pid, signal.SIGSTOP)
            while not seen:
                time.sleep(0.05)
            os.kill(pid, signal.SIGCONT)

        stopper = threading.Thread(target=stop)
        if job.rank == (victim + 1) % job.size:
            stopper.start()
        if job.rank == victim:
            while not goes_on.is_set():
                time.sleep(0.05)
        total = group.all_reduce(torch.ones(3), "sum").tolist()
        if stopper.ident is not None:
            stopper.join()
    tell(total=total, warned=[str(each.message) for each in seen])


def stopped_for_good(victim: int, transport: str, timeout_s: float) -> None:
    """A rank is stopped by the next one, and nobody has it go on: the others wait for so long."""
    job = join()
    group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
    group.barrier()
    if job.rank == (victim + 1) % job.size:
        os.kill(job.members[victim].pid, signal.SIGSTOP)
    if job.rank == victim:
        time.sleep(60)
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as seen, settings.override(collective_timeout_s=timeout_s):
        warnings.simplefilter("always")
        try:
            group.all_reduce(torch.ones(3), "sum")
        except TesseraError as error:
            told = [str(each.message) for each in seen]
            tell(code=error.code, message=error.message, waited=time.monotonic() - begun, warned=told)
            raise SystemExit(1) from error


def swapped(group: ProcessCommunicator, odd: bool) -> None:
    """A sum and a barrier, or the other way round."""
    if odd:
        group.barrier()
    group.all_reduce(torch.ones(4), "sum")
    if not odd:
        group.barrier()


MISMATCHES: dict[str, Callable[[ProcessCommunicator, bool], object]] = {
    "operator": lambda g, odd: g.permute(torch.ones(4), 1) if odd else g.all_reduce(torch.ones(4), "sum"),
    "reduction": lambda g, odd: g.all_reduce(torch.ones(4), "max" if odd else "sum"),
    "shape": lambda g, odd: g.all_reduce(torch.ones(5 if odd else 4), "sum"),
    "dtype": lambda g, odd: g.all_reduce(torch.ones(4, dtype=torch.int32 if odd else torch.float32), "sum"),
    "order": swapped,
}


def mismatched(kind: str, transport: str) -> None:
    """The last rank comes with another collective."""
    job = join()
    group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
    group.barrier()
    caught(lambda: MISMATCHES[kind](group, job.rank == job.size - 1))


def crossed() -> None:
    """Two ranks wait for each other in different groups."""
    job = join()
    groups = [job.communicator(range(job.size), name) for name in ("shared", "gloo")]
    for group in groups:
        group.barrier()
    caught(lambda: groups[job.rank % 2].all_reduce(torch.ones(4), "sum"))


def raising(victim: int) -> None:
    """A rank raises, and takes a while to end."""
    job = join()
    group = job.communicator(range(job.size))
    group.barrier()
    if job.rank == victim:
        atexit.register(time.sleep, 1.5)
        tell(at=time.monotonic())
        raise ValueError("no more data\nin shard 7")
    caught(lambda: group.all_reduce(torch.ones(3), "sum"))


def alike(transport: str) -> None:
    """Sums of one shape are started one after the other before the first is waited for, and ended in any order."""
    job = join()
    group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
    found = []
    for order in ((0, 1, 2), (2, 1, 0)):
        handles = [group.start_all_reduce(torch.full((3,), 10.0**place + job.rank), "sum") for place in range(3)]
        results = {place: handles[place].wait().tolist() for place in order}
        found.append([results[place] for place in range(3)])
    tell(found=found)


def asked_in_words() -> None:
    """A group that shares memory is one communicator, however it is asked for, and keeps few descriptors."""
    job = join()
    everyone = job.communicator(range(job.size))
    everyone.barrier()
    before = lanes_mapped()
    everyone.barrier()  # so that no peer has sent its lane of the second group by then
    groups = [job.communicator(ranks, name) for ranks in ((0, 1), (1, 0)) for name in ("shared", "auto")]
    found = [group.all_reduce(torch.ones(2), "sum").tolist() for group in groups]
    tell(found=found, same=groups[0] is groups[1], kept=lanes_mapped() - before)


def lanes_mapped() -> int:
    """How many descriptors of lanes this process holds; sockets of the rendezvous come and go beside them."""
    held = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor is closed by now
            held += "tessera-lane" in os.readlink(f"/proc/self/fd/{descriptor}")
    return held


def missing(victim: int, transport: str, leaves: bool) -> None:
    """A rank does not come: it is elsewhere, or its program has ended."""
    job = join()
    group = job.communicator(range(job.size), transport)  # type: ignore[arg-type]
    group.barrier()
    if job.rank == victim:
        if not leaves:
            lost_in_thought(job)
        tell(code=None)
        return
    with settings.override(collective_timeout_s=300.0 if leaves else 1.0):
        caught(lambda: group.all_reduce(torch.ones(3), "sum"))


def lost_in_thought(job: ProcessJob) -> None:
    """What the stack of a missing rank shows, until others have given it up."""
    deadline = time.monotonic() + 60
    while job.watcher.fault is None and time.monotonic() < deadline:
        time.sleep(0.1)


def forked() -> None:
    """A fork of a rank has no job, and the rank goes on."""
    job = join()
    group = job.communicator(range(job.size))
    group.barrier()
    read, write = os.pipe()
    if os.fork() == 0:
        codes = []
        for call in (join, group.barrier):
            try:
                call()
            except TesseraError as error:
                codes.append(error.code)
        os.write(write, " ".join(codes).encode())
        os._exit(0)
    os.close(write)
    child = os.read(read, 100).decode()
    os.wait()
    tell(child=child, total=group.all_reduce(torch.ones(1), "sum").item())


def page(text: str) -> None:
    """A snippet of a page, in each rank; which error ends it."""
    try:
        exec(compile(text, "<page>", "exec"), {"__name__": "__main__"})
    except TesseraError as error:
        tell(code=error.code)


def two_threads(folder: str) -> None:
    """Two threads of a rank in one group at a time; the other rank comes once that has been refused."""
    job, refused = join(), Path(folder) / "refused"
    group = job.communicator(range(job.size))
    if job.rank == 0:
        held = threading.Thread(target=group.barrier)
        held.start()
        while job.watcher.pages[0].latest() is None:
            time.sleep(0.001)
        try:
            group.barrier()
        except TesseraError as error:
            tell(code=error.code)
        refused.touch()
        held.join()
    else:
        while not refused.exists():
            time.sleep(0.001)
        group.barrier()
        tell(code=None)


def ring() -> None:
    """All-gathers around a ring, as more ranks than sixteen use it."""
    job = join()
    group = job.communicator(range(job.size), "gloo")
    extents = [3, 0, 2, 5][: job.size]
    parts = [torch.full((extent, 4), float(rank)) for rank, extent in enumerate(extents)]
    with patch.object(gloo, "_DIRECT_RANKS", 1):
        found = group.all_gather(parts[job.rank], 0, extents)
    assert torch.equal(found, torch.cat(parts)), found
    tell(extents=extents)


def mesh_cases(first: int, count: int) -> None:
    """Drawn expressions on the running mesh of the job's ranks give what one process gives."""
    job = join()
    checked = 0
    with by_references():
        for seed in range(first, first + count):
            case = drawn(seed)
            if math.prod(case.grid) != job.size or not case.steps:
                continue
            mesh = dist.Mesh(NAMES[: len(case.grid)], shape=case.grid)
            assert mesh.state == "running"
            place = case.steps[-1][0]
            here, there = case.values(None)[place].torch(), case.values(mesh)[place].full().torch()
            exact = case.exact and not case.rounding
            assert agree(here, there, exact, case.rounding), (
                f"seed {seed}, rank {job.rank}:\n{case.text()}\n{here}\n{there}"
            )
            checked += 1
    tell(count=checked)


def mesh_regions(shape: list[int]) -> None:
    """Functions of shards on the running mesh of the job's ranks: results and gradients are those of torch."""
    mesh = dist.Mesh(["x", "y"], shape=shape)
    assert mesh.state == "running"
    with by_references():
        found = list(region_faults(mesh))
    tell(faults=found)


def mesh_experts() -> None:
    """A mixture of experts and transforms on the running mesh of the job's ranks: one process's bits, and torch's."""
    mesh = dist.Mesh(["ep"])
    assert mesh.state == "running"
    with by_references():
        found = [fault for capacity in (None, 0.5) if (fault := mixture_fault(mesh, ("ep",), capacity))]
        pins = [mesh["ep", n * mesh.shape["ep"] // 4] for n in range(4)]
        found += [fault for fault in [pinned_mixture_fault(mesh, pins, ("ep",), 0.5)] if fault]
        found += spectral_faults(mesh, (6, 5, 7), (("ep",), (), ()), None)
        found += long_faults(mesh, "ep", LONG)
    tell(faults=found)


def mesh_overlap(transport: str) -> None:
    """Gradients and products in pieces by a transport: the same bits in whatever order and buckets they travel."""
    job = join()
    usual = job.communicator
    mesh = dist.Mesh(["dp", "tp"])
    limits = OverlapLimits(worth_flops=0, bucket_bytes=3000)
    variants = (OverlapLimits(), limits, replace(limits, chunk=2), replace(limits, bucket_bytes=1 << 30))
    columns, rows = dist.ShardSpec((0, 1), ("dp", "tp")), dist.ShardSpec((0,), ("tp",))
    whole = torch.arange(32.0 * 48).reshape(32, 48).remainder(7) - 3

    def results() -> list[Tensor]:
        w1, w2 = dist.distribute(whole, columns, mesh), dist.distribute(whole.T, rows, mesh)
        x = dist.distribute(whole[:16, :32], dist.ShardSpec((0,), ("dp",)), mesh)

        def loss(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
            return op.sum(op.matmul(op.relu(op.matmul(x, w1)), w2))

        value, found = grad.value_and_grad(loss, (0, 1, 2))(w1, w2, x)
        made = [value, *found, op.matmul(op.matmul(x, w1), w2).reshard(dist.ShardSpec((0,), (("dp", "tp"),)))]
        evaluate(made)
        return made

    with by_references(), patch.object(job, "communicator", lambda ranks: usual(ranks, transport)):  # type: ignore[arg-type]
        with using(CommunicationOptions(limits=OverlapLimits(overlap=False, bucket_bytes=0))):
            wanted = [each.full().torch() for each in results()]
        same = []
        for each in variants:
            with using(CommunicationOptions(limits=each)):
                found = [result.full().torch() for result in results()]
            same.append(all(torch.equal(*pair) for pair in zip(found, wanted, strict=True)))
    tell(same=same)


def left_loop(mesh: dist.Mesh, steps: int, between: Callable[[list[Tensor]], None] | None = None) -> list[torch.Tensor]:
    """Weights after steps of descent, whole numbers all, and the losses."""
    whole = torch.arange(12.0 * 12).reshape(12, 12).remainder(3) - 1
    weights = [dist.distribute(whole.roll(n), None, mesh) for n in range(3)]
    x = dist.distribute(whole[:, :6].T.contiguous(), dist.ShardSpec((0,), ("dp",)), mesh)

    def loss(*weights: Tensor) -> Tensor:
        y = x
        for weight in weights:
            y = op.minimum(op.relu(op.matmul(y, weight)), 3.0)
        return op.sum(y)

    losses: list[Tensor] = []
    for _ in range(steps):
        value, found = grad.value_and_grad(loss, (0, 1, 2))(*weights)
        weights = [weight - each for weight, each in zip(weights, found, strict=True)]
        evaluate([value, *weights])
        losses.append(value)
        if between is not None:
            between(weights)
    return [each.full().torch() for each in (*weights, *losses)]


def left_steps() -> None:
    """Steps that are left before their exchanges have ended, and what may happen meanwhile."""
    job = join()
    mesh = dist.Mesh(["dp"])
    group = job.communicator(range(job.size))
    under_way: list[int] = []

    def count(weights: list[Tensor]) -> None:
        under_way.append(len(group._under_way))

    def read_on_one_rank(weights: list[Tensor]) -> None:
        if job.rank == 0:
            weights[1].full()
        torch.distributed.barrier()

    def read_by_another_thread(weights: list[Tensor]) -> None:
        reader = threading.Thread(target=weights[0].full)
        reader.start()
        group.barrier()
        reader.join()

    olds: list[Tensor] = []

    def written_to(weights: list[Tensor]) -> None:
        for old in olds:
            old.local().torch().zero_()  # what the step before made, which this one's rest still reads
        olds[:] = weights

    with using(CommunicationOptions(limits=OverlapLimits(overlap=False, bucket_bytes=0))):
        wanted = left_loop(mesh, 4)
    same, schedule = [], list[tuple[LocalProgram, list[Step]]]()
    with using(CommunicationOptions(limits=OverlapLimits(worth_flops=0, bucket_bytes=0))):
        for between in (count, read_on_one_rank, read_by_another_thread, written_to):
            found = left_loop(mesh, 4, between)
            same.append(all(torch.equal(*pair) for pair in zip(found, wanted, strict=True)))
        with patch.object(BoundProgram, "__call__", _noting(schedule, BoundProgram.__call__)):
            left_loop(mesh, 3)
    starts = [[step for step in steps if isinstance(step, Start)] for _, steps in schedule]
    tell(
        same=same,
        under_way=max(under_way),
        schedule=list(told(*schedule[-1])),
        same_starts=starts == starts[:1] * 3,
        waits_behind_starts=all(_waits_behind_starts(steps) for _, steps in schedule),
    )


def _noting(schedule: list[tuple[LocalProgram, list[Step]]], call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of programs that notes their steps, where they exchange something."""

    def noted(bound: BoundProgram, leaves: Any) -> Any:
        if any(isinstance(step, Start) for step in bound.schedule):
            schedule.append((bound.program, bound.schedule))
        return call(bound, leaves)

    return noted


def _waits_behind_starts(steps: list[Step]) -> bool:
    """Whether no exchange is waited for before the last begins."""
    begun = {step.bucket for step in steps if isinstance(step, Start)}
    last = max(at for at, step in enumerate(steps) if isinstance(step, Start))
    return not any(isinstance(step, Wait) and step.bucket in begun for step in steps[:last])


def left_at_the_end() -> None:
    """Programs end while exchanges are under way; one a while before the other."""
    mesh = dist.Mesh(["dp"])
    x = dist.tensor((1 << 20,), dist.ShardSpec((0,), ("dp",)), mesh, seed=1)
    with by_references():
        whole = x.reshard(None).eval()
        if mesh.coordinates["dp"]:
            time.sleep(0.3)
    assert whole.shape == (1 << 20,)


def left_by_a_victim(victim: int) -> None:
    """A rank is killed after others have left a step that needs its part."""
    job = join()
    mesh = dist.Mesh(["dp"])
    x = dist.tensor((6, 4), dist.ShardSpec((0,), ("dp",)), mesh, seed=1)
    with by_references():
        before = x.reshard(None).eval()
        before.full()
        if job.rank == victim:
            die()
        after = (x * 2).reshard(None).eval()
        tell(left=len(job.communicator(range(job.size))._under_way) > 0, old=before.full().shape == (6, 4))
        for _ in range(2):
            try:
                after.full()
            except TesseraError as error:
                tell(code=error.code, message=error.message)
    raise SystemExit(1)


def mesh_streams(count: int) -> None:
    """Programs of a mesh on two streams and beside them: ranks that are slow at other places come to the same."""
    mesh = dist.Mesh(["tp"])
    rows = dist.ShardSpec((0,), ("tp",))
    size = mesh.shape["tp"]
    whole = torch.arange(float(size * 6)).reshape(size * 2, 3)
    x = dist.distribute(whole, rows, mesh)
    queues = [stream.create(name="one"), stream.create(name="two")]
    total = whole.view(size, 2, 3).sum(0)
    found = []
    for step in range(count):
        if step % size == mesh.coordinates["tp"]:
            time.sleep(0.01)
        queue = queues[step % 2]
        scattered = dist.reduce_scatter(op.mul(x, float(step), stream=queue), "tp", 0, stream=queue)
        beside = dist.all_gather(x, "tp", 0).full().torch()
        default = op.all_reduce(op.tensor(torch.ones(2)), stream=queues[(step + 1) % 2])
        found.append(torch.equal(scattered.full().torch(), total * step) and torch.equal(beside, whole))
        found.append(default.tolist() == [size] * 2)
    tell(found=all(found), count=len(found))


def mesh_step() -> None:
    """A step of training on a mesh of the job's ranks, by kernels: the loss before and after."""
    mesh = dist.Mesh(["dp", "tp"])
    columns, rows = dist.ShardSpec(("col",), ("tp",)), dist.ShardSpec(("row",), ("tp",))
    w1, w2 = dist.tensor((8, 16), columns, mesh, seed=1), dist.tensor((16, 8), rows, mesh, seed=2)
    x = dist.tensor((6, 8), dist.ShardSpec((0,), ("dp",)), mesh, seed=3)

    def loss(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
        return op.mean(op.matmul(op.relu(op.matmul(x, w1)), w2) ** 2)

    value, (g1, g2) = grad.value_and_grad(loss, (0, 1))(w1, w2, x)
    w1, w2 = (w1 - 1e-3 * g1).eval(), (w2 - 1e-3 * g2).eval()
    tell(before=round(float(value.item()), 3), after=round(float(loss(w1, w2, x).item()), 3), layout=str(g1.layout))


def pipelined(axes: dict[str, int], cases: list[tuple[str, int, str]], transport: TransportName = "auto") -> None:
    """Steps in stages over the job's ranks give what one process gives, each twice; tells how many were compared."""
    mesh = dist.Mesh(list(axes), shape=tuple(axes.values()))
    assert mesh.state == "running"
    made = ProcessJob.communicator
    by_transport = patch.object(ProcessJob, "communicator", lambda job, ranks: made(job, ranks, transport))
    with by_references(), by_transport:
        for schedule, chunks, manner in cases:
            fault = fault_of(mesh, schedule, chunks, manner, steps=2)
            assert fault is None, f"rank {join().rank}: {fault}"
    tell(count=len(cases))


def pipeline_killed(victim: int) -> None:
    """A rank is killed in the middle of a step, while the others wait for what it would send."""
    mesh = dist.Mesh(["pp"])
    weights = [op.tensor(torch.ones(3))] * mesh.shape["pp"]

    def stage(weight: Tensor, x: Tensor) -> Tensor:
        made: Tensor = x * weight
        return made

    step = dist.pipeline([stage] * len(weights), mesh, microbatches=8, loss=op.sum)
    with by_references():
        step(weights, torch.ones(8, 3))
        if join().rank == victim:
            die(0.2)
        caught(lambda: [step(weights, torch.ones(8, 3)) for _ in range(100_000)])


def pipeline_of_two_programs() -> None:
    """The last rank's stage is called with a batch of another shape, and expects other messages."""
    mesh = dist.Mesh(["pp"])
    step = dist.pipeline([lambda w, x: x * w] * mesh.shape["pp"], mesh, microbatches=2, loss=op.sum)
    weights = [op.tensor(torch.ones(3))] * mesh.shape["pp"]
    odd = join().rank == mesh.shape["pp"] - 1
    with by_references():
        step(weights, torch.ones(4, 3))
        caught(lambda: step(weights, torch.ones(8 if odd else 4, 3)))


def state_of(mesh: dist.Mesh, seed: int) -> dict[str, Any]:
    """Tensors in several layouts on a mesh with the axes "dp" and "tp", a plain one, and a number."""
    both = dist.tensor((7, 5), dist.ShardSpec((0, 1), ("dp", "tp")), mesh, seed=seed)
    joint = dist.tensor((9, 3), dist.ShardSpec((0,), (("tp", "dp"),)), mesh, seed=seed + 1)
    copies = dist.tensor((4,), None, mesh, seed=seed)
    return {"w": [both, joint], "copies": copies, "plain": op.tensor([1.0 * seed]), "step": seed}


def checkpoint_saved(folder: str, shape: tuple[int, int], seed: int, victim: int = -1) -> None:
    """Saves a state; a victim is killed in the middle of it."""
    mesh = dist.Mesh(["dp", "tp"], shape=shape)
    with by_references():
        join().communicator(range(join().size)).barrier()
        if join().rank != victim:
            return caught(lambda: dist.save(folder, state_of(mesh, seed)))
        with patch.object(FileSystemWriter, "write_data", lambda *_: die()):
            dist.save(folder, state_of(mesh, seed))
    return None


def checkpoint_loaded(folder: str, shape: tuple[int, int], seed: int) -> None:
    """Loads a state on a mesh, and compares it with what was saved."""
    mesh = dist.Mesh(["dp", "tp"], shape=shape)
    with by_references():
        found, wanted = dist.load(folder, state_of(mesh, 100)), state_of(mesh, seed)
        for name in ("copies", "plain"):
            assert torch.equal(found[name].full().torch(), wanted[name].full().torch()), name
        for own, other in zip(found["w"], wanted["w"], strict=True):
            assert torch.equal(own.full().torch(), other.full().torch())
    tell(step=found["step"])


def dtensors() -> None:
    """Tensors go to torch and back in the memory that they have; what placements cannot say is refused."""
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 2))
    device_mesh = mesh.to_torch()
    assert dist.Mesh.from_torch(device_mesh) == mesh
    assert mesh.to_torch() is device_mesh
    whole = torch.arange(35.0).reshape(5, 7)  # uneven, with short last shards
    with by_references():
        for placements in ([Shard(0), Shard(1)], [Shard(1), Shard(1)], [Replicate(), Shard(0)], [Replicate()] * 2):
            theirs = distribute_tensor(whole, device_mesh, placements)
            ours = dist.from_dtensor(theirs)
            assert ours.local().torch().data_ptr() == theirs.to_local().data_ptr() or not theirs.to_local().numel()
            assert torch.equal(ours.full().torch(), whole), placements
            back = dist.to_dtensor(ours)
            assert back.placements == tuple(placements)
            assert back.to_local().data_ptr() == theirs.to_local().data_ptr() or not theirs.to_local().numel()
            assert torch.equal(back.full_tensor(), whole)
            made = dist.to_dtensor(ours * 2)
            assert torch.equal(cast("DTensor", made + theirs).full_tensor(), 3 * whole)
        parts = DTensor.from_local(torch.full((3,), 1.0 + join().rank), device_mesh, [Partial(), Replicate()])
        pending = dist.from_dtensor(parts)
        totals = pending.full().tolist()
        codes = []
        joint = dist.distribute(whole, dist.ShardSpec((0,), (("tp", "dp"),)), mesh)
        learned = distribute_tensor(whole, device_mesh, [Shard(0)] * 2)
        learned.requires_grad_()
        for call in (
            lambda: dist.to_dtensor(joint),
            lambda: dist.to_dtensor(op.tensor(whole)),
            mesh["tp", 0].to_torch,
            lambda: dist.from_dtensor(learned),
        ):
            try:
                call()
            except TesseraError as error:
                codes.append(error.code)
    tell(totals=totals, layout=str(pending.layout), codes=codes)


def example_trained(steps: int) -> None:
    """The losses of `examples/train_mesh.py`."""
    tell(losses=train_mesh.train(steps))
