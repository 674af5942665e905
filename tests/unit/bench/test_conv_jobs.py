"""The jobs of theme `conv`: right where they are small, and all of ResNet-50's layers in the full list."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from bench.environments import NotMeasuredError
from bench.jobs import load
from bench.jobs.posing import PosedJob

QUICK = load("conv", quick=True)


@pytest.mark.parametrize("number", range(len(QUICK)))
def test_small_jobs_are_right(number: int, tmp_path: Path) -> None:
    job = QUICK[number]
    posed = PosedJob(("conv", job.name, True), job, job.module(), job.inputs())
    reference = str(tmp_path / "reference.pt")
    posed.write_reference(reference)
    for contender in ("tessera", "torch", *job.peers):
        # A peer that cannot run on this CPU says so; we and torch can.
        with suppress(NotMeasuredError) if contender in job.peers else nullcontext():
            _, error = posed.prepare(contender, reference)
            assert error <= job.tolerance


def test_the_theme_has_every_layer_of_resnet_50_in_groups_with_a_goal() -> None:
    jobs = load("conv", quick=False)
    groups = {job.group.name for job in jobs if job.group is not None}
    assert len(groups) == 4  # fp32 and bf16, images of one and of eight
    assert all(sum(job.group is not None and job.group.name == name for job in jobs) == 23 for name in groups)
    assert all(job.flops > 0 and job.bytes > 0 for job in jobs)
