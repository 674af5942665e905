"""The jobs of suite `attention`: right where they are small; the full list has all that the goals speak of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.jobs import load
from bench.jobs.posing import PosedJob

QUICK = load("attention", quick=True)


@pytest.mark.parametrize("number", range(len(QUICK)))
def test_small_jobs_are_right(number: int, tmp_path: Path) -> None:
    job = QUICK[number]
    posed = PosedJob(("attention", job.name, True), job, job.module(), job.inputs())
    reference = str(tmp_path / "reference.pt")
    posed.write_reference(reference)
    for contender in ("tessera", "torch", *job.peers):
        _, error = posed.prepare(contender, reference)
        assert error <= job.tolerance


def test_the_suite_has_every_kind_of_attention() -> None:
    jobs = load("attention", quick=False)
    assert {job.dtype for job in jobs} == {"fp32", "bf16", "fp16"}
    assert {job.goal for job in jobs} == {1.15, 1.3, 1.1, 1.2}
    grouped = [job for job in jobs if job.peers]
    assert {job.goal for job in grouped} == {1.2}
    assert all(job.flops > 0 and job.bytes > 0 for job in jobs)
