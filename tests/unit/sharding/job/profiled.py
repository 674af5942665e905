"""What ranks of tests do while they are profiled: functions of plain arguments, as those of `work.py`."""

from __future__ import annotations

import io
import os
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tessera import analyze, dist, graph, memcpy, op, profile, stream
from tessera.sharding.job import join
from tessera.sharding.job.job import ProcessJob
from tests.docs.snippets import SPEC, run_all, snippets
from tests.mesh.references import by_references
from tests.unit.sharding.job.telling import tell

LATE_S = 0.05
"""How long the last rank comes after the others to one of the collectives."""


def come_after(job: ProcessJob, rank: int) -> None:
    """Waits until another rank has come to its all-gather, and a while longer."""
    while (seen := job.watcher.pages[rank].latest()) is None or "all_gather" not in seen.description:
        time.sleep(0.001)
    time.sleep(LATE_S)


def mesh_profile(folder: str, transport: str) -> None:
    """Collectives of a mesh in a session: what each rank records, and one that the last rank comes late to."""
    job = join()
    usual = job.communicator
    mesh = dist.Mesh(["tp"])
    rows = dist.ShardSpec((0,), ("tp",))
    x = dist.distribute(torch.arange(4.0 * 128 * 128).reshape(512, 128), rows, mesh)
    with patch.object(job, "communicator", lambda ranks: usual(ranks, transport)):  # type: ignore[arg-type]
        op.all_reduce(torch.ones(1))  # compares the clocks
        path = Path(folder) / f"rank{job.rank}.parquet"
        exporters = [profile.parquet(path), profile.chrome(path.with_suffix(".json"))]
        with profile.session(activities=["cpu", "collective"], exporters=exporters) as session, by_references():
            dist.all_reduce(x, axis="tp").eval()
            if job.rank == job.size - 1:
                come_after(job, 0)
            dist.all_gather(x, "tp", 0).eval()
        found = [record for record in session.records() if record.kind == "collective"]
    job.communicator(range(job.size)).barrier()
    shown = analyze.collectives(folder)
    tell(
        records=[
            {
                "type": record.collective_type,
                "axis": record.collective_axis,
                "stream": record.stream_name,
                "bytes": record.collective_bytes,
                "wire": record.collective_wire_bytes,
                "size": record.collective_group_size,
                "transport": record.collective_transport,
                "algorithm": record.collective_algorithm,
                "wait_us": record.collective_wait_us,
                "transfer_us": record.collective_transfer_us,
                "duration_us": record.duration_us,
            }
            for record in found
        ],
        rows=[[row.collective, row.axis, row.ranks, row.late_rank, row.skew_us] for row in shown],
        text=str(shown),
    )


def mesh_graph_profile() -> None:
    """`graph.profile` of a step on the ranks of a job: its text."""
    mesh = dist.Mesh(["dp"])
    x = dist.tensor((64, 64), dist.ShardSpec((0,), ("dp",)), mesh, seed=1)
    w = dist.tensor((64, 64), None, mesh, seed=2)
    with redirect_stdout(io.StringIO()):
        profiled = graph.profile(lambda: dist.constrain(op.sum(op.matmul(x, w), 0), None).eval())
    tell(text=str(profiled), labels=[row.label for row in profiled.rows])


def spec_11(folder: str) -> None:
    """Section 11 of the profiling guide as it is written there, on the ranks of a job."""
    job = join()
    os.chdir(folder)
    own = Path(f"rank{job.rank}")
    own.mkdir()
    os.chdir(own)
    overlap = snippets(SPEC / "003_profiling_tools.md")[-1]
    given: dict[str, Any] = {"A": torch.ones(40, 30), "B": torch.ones(30, 20), "X_dev": torch.zeros(50, 50)}
    given |= {"X_host": torch.ones(50, 50), "grad": torch.full((30,), float(job.rank + 1))}
    given |= dict.fromkeys("QKV", torch.ones(1, 2, 7, 32))
    streams = {f"s_{name[:4]}": stream.create(name=name) for name in ("load", "compute", "communicate")}
    with redirect_stdout(io.StringIO()):
        names = run_all([overlap], given | streams | {"memcpy": memcpy})
    (collective,) = [record for record in names["sess"].records() if record.kind == "collective"]
    total = names["G"].torch()
    same = bool((total == sum(range(1, job.size + 1))).all())
    exported = sorted(path.name for path in Path().iterdir())
    job.communicator(range(job.size)).barrier()
    (row,) = analyze.collectives(trace="step.json")
    tell(
        same=same,
        stream=collective.stream_name,
        transport=collective.collective_transport,
        size=collective.collective_group_size,
        row=[row.collective, row.bytes],
        exported=exported,
        products=bool((names["Y"].torch() == 30).all()),
    )
