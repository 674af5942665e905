"""The jobs of suite `skinny`: right where they are small, and every layer and number of rows in the full list."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from bench.environments import NotMeasuredError
from bench.jobs import load
from bench.jobs.posing import PosedJob

QUICK = load("matmul", quick=True)


@pytest.mark.parametrize("number", range(len(QUICK)))
def test_small_jobs_are_right(number: int, tmp_path: Path) -> None:
    job = QUICK[number]
    posed = PosedJob(("matmul", job.name, True), job, job.module(), job.inputs())
    reference = str(tmp_path / "reference.pt")
    posed.write_reference(reference)
    for contender in ("tessera", "torch", *job.peers):
        # A peer that cannot run on this CPU says so; we and torch can.
        with suppress(NotMeasuredError) if contender in job.peers else nullcontext():
            _, error = posed.prepare(contender, reference)
            assert error <= job.tolerance


def test_the_suite_has_all_layers() -> None:
    jobs = load("matmul", quick=False)
    assert {job.group.name for job in jobs if job.group is not None} == {
        f"{dtype} layers of 1 to 64 rows" for dtype in ("fp32", "bf16", "int8")
    }
    assert {job.group.ratio for job in jobs if job.group is not None} == {1.1}
    assert all(job.flops > 0 and job.bytes > 0 and job.peers for job in jobs)
