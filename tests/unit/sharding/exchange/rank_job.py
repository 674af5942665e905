"""One of two ranks over gloo. Arguments: rank, folder. Prints what it saw as one JSON object, and writes the
trace of a profiled step to the folder.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tessera import event, op, profile, stream
from tessera.errors import TesseraError
from tessera.profiling.export.formats import parquet
from tessera.profiling.recording import clock_sync

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64)
REDUCTIONS = ("sum", "avg", "min", "max", "product")


LATE_S = 0.1
"""How long rank 1 comes after rank 0 to the last collective of the profiled step."""


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Small numbers of which all reductions are exact, other ones on every rank."""
    return torch.tensor([[1, 2, 3], [4, 6, 8]]).add(2 * rank).to(dtype)


def error_of(call: Callable[[], object]) -> str:
    """The code of the error that a call raises, "" where it raises none."""
    try:
        call()
    except TesseraError as error:
        return error.code
    return ""


def reductions(rank: int) -> dict[str, Any]:
    """Every reduction of every dtype that has it."""
    found = {}
    for dtype in DTYPES:
        for reduction in REDUCTIONS:
            if reduction == "avg" and not dtype.is_floating_point:
                continue
            result = op.all_reduce(values(rank, dtype), op=reduction).torch()
            assert result.dtype is dtype
            found[f"{reduction} {dtype}"] = result.tolist()
    return found


def shapes(rank: int) -> dict[str, Any]:
    """Views, scalars, nothing, complex numbers, a pending expression; the operand stays as it is."""
    x = torch.arange(6.0).reshape(2, 3)
    pending = op.all_reduce(op.tensor(x.T) * 2 + rank)
    alone = op.all_reduce(float(rank))
    empty = op.all_reduce(torch.empty(0, 3))
    imaginary = op.all_reduce(torch.tensor([1 + 2j * rank], dtype=torch.complex64))
    return {
        "pending": pending.tolist(),
        "number": alone.item(),
        "empty": list(empty.shape),
        "complex": [imaginary.torch().real.tolist(), imaginary.torch().imag.tolist()],
        "operand": x.tolist(),
        "used": (op.all_reduce(x) + op.all_reduce(x, op="max", stream=stream.create())).tolist(),
    }


def streams(rank: int) -> dict[str, Any]:
    """Collectives on two streams and on none, in the order of the program; a later operator waits for its operand."""
    first, second = stream.create(name="a"), stream.create(name="b")
    x = torch.full((4,), float(rank + 1))
    results = [op.all_reduce(x * number, stream=(first, second, None)[number % 3]) for number in range(9)]
    product = op.mul(results[0] + results[1], 10.0, stream=second)
    return {"results": [result.tolist() for result in results], "product": product.tolist()}


def threads(rank: int) -> dict[str, Any]:
    """Two threads that take turns."""
    turn, found = [threading.Event(), threading.Event()], []

    def work(number: int) -> None:
        for _ in range(3):
            turn[number].wait()
            turn[number].clear()
            found.append(op.all_reduce(torch.tensor([rank + number])).item())
            turn[1 - number].set()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    turn[0].set()
    for worker in workers:
        worker.join()
    return {"found": found}


def profiled(rank: int, folder: Path) -> dict[str, Any]:
    """A step whose collective runs beside kernels, and one that does not; rank 1 comes late to the second."""
    x, grad = torch.randn(256, 256), torch.randn(1 << 24)
    beside, computing = stream.create(name="communication"), stream.create(name="computation")
    op.matmul(x, x).eval()
    with profile.session(activities=["cpu", "collective"]) as session:
        op.all_reduce(grad, stream=beside)
        reduced = event.create()
        reduced.record(beside)
        while not reduced.query():
            op.matmul(x, x, stream=computing)
            computing.synchronize()
        ready = torch.zeros(1)
        if rank:
            dist.recv(ready, src=0)
            time.sleep(LATE_S)
        else:
            dist.send(ready, dst=1)
        op.all_reduce(torch.ones(16))
    trace = session.trace()
    parquet.write(trace, folder / f"rank{rank}.parquet")
    records = [record for record in session.records() if record.kind == "collective"]
    return {
        "records": [[record.collective_type, record.collective_bytes, record.stream_name] for record in records],
        "ranks": trace.metadata["ranks"],
        "now_ns": time.monotonic_ns(),
    }


def lost(rank: int) -> dict[str, Any]:
    """Rank 1 is gone: what waits for it fails by name."""
    if rank:
        return {}
    beside = stream.create(name="lost")
    on_its_way = op.all_reduce(torch.ones(2), stream=beside)
    return {"stream": error_of(on_its_way.eval), "program": error_of(lambda: op.all_reduce(torch.ones(2)))}


def main() -> None:
    """Runs all scenarios."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    meeting = f"file://{folder.parent / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    seen: dict[str, Any] = {"reductions": reductions(rank), "shapes": shapes(rank), "streams": streams(rank)}
    seen |= {"threads": threads(rank), "profiled": profiled(rank, folder)}
    seen["refused"] = error_of(lambda: op.all_reduce(torch.ones(2, dtype=torch.int32), op="avg"))
    seen["offsets"] = [list(each) for each in clock_sync._offsets]
    dist.barrier()
    if rank == 0:
        time.sleep(0.5)
        seen["lost"] = lost(rank)
    print(json.dumps(seen), flush=True)
    # Gloo's threads still free tensors, for which they ask the interpreter: they have to end before it does.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
