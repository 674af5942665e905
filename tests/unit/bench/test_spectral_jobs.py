"""The jobs of theme `spectral`: right where they are small, and the goals of the full list."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.jobs import load
from bench.jobs.posing import PosedJob

QUICK = load("spectral", quick=True)


@pytest.mark.parametrize("number", range(len(QUICK)))
def test_small_jobs_are_right(number: int, tmp_path: Path) -> None:
    job = QUICK[number]
    posed = PosedJob(("spectral", job.name, True), job, job.module(), job.inputs())
    reference = str(tmp_path / "reference.pt")
    posed.write_reference(reference)
    for contender in ("tessera", "torch", *job.peers, *job.variants):
        _, error = posed.prepare(contender, reference)
        assert error <= job.tolerance


def test_windows_of_31_are_held_against_both_direct_ways() -> None:
    jobs = load("spectral", quick=False)
    large = [job for job in jobs if "31 x 31" in job.name]
    assert len(large) == 5
    assert all(job.goal == 1.3 and {"channels last", "our direct"} <= set(job.peers) for job in large)
