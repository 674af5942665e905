"""The depthwise jobs of suite `conv`: right where they are small, and all that the goals speak of in the full list."""

from __future__ import annotations

import pytest
import torch

from bench.jobs import depthwise
from bench.jobs.job import Job, deviation, in_float64
from bench.suites.jobs import copy_figure


@pytest.mark.parametrize("job", depthwise.jobs(quick=True), ids=lambda job: job.name)
def test_small_jobs_agree_with_their_reference(job: Job) -> None:
    inputs, module = job.inputs(), job.module()
    reference = in_float64(job, module, inputs)
    ours = job.ours(module, inputs)()
    assert deviation(ours.torch(), reference) <= job.tolerance  # type: ignore[attr-defined]
    for peer in job.peers.values():
        result = peer.build(module, inputs)()
        assert isinstance(result, torch.Tensor)
        assert deviation(result, reference) <= job.tolerance


def test_the_full_list_has_the_goals_sizes_in_both_layouts() -> None:
    names = " ".join(job.name for job in depthwise.jobs(quick=False))
    for image in ("1 x 256 x 112 x 112", "8 x 512 x 28 x 28"):
        for size in (3, 5, 7):
            for layout in ("NCHW", "NHWC"):
                assert f"{size} x {size} of {image} {layout}" in names


def test_the_share_of_the_copy_bound_is_a_figure() -> None:
    (job, _) = depthwise.jobs(quick=True)
    threads = torch.get_num_threads()
    figure = copy_figure(job, 1, repeats=2)
    assert torch.get_num_threads() == threads
    assert (figure.unit, figure.threads) == ("%", 1)
    assert figure.value is not None
    assert figure.value > 0
