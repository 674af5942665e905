"""A job made real inside a worker process: its module, its inputs, and the check of results before any timing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bench.environments import NotMeasuredError
from bench.jobs import contenders, find
from bench.jobs.job import Call, Inputs, Job, deviation, in_float64

CHECKED_CALLS = 3
"""Results that are compared: the first compiles, the next run on memory whose former result was filled with NaN."""


@dataclass(frozen=True)
class PosedJob:
    """A job with its module and inputs."""

    identity: tuple[str, str, bool]
    job: Job
    module: nn.Module
    inputs: Inputs

    def write_reference(self, path: str) -> None:
        """Computes the result in float64 and saves it to `path`."""
        torch.save(in_float64(self.job, self.module, self.inputs), path)

    def prepare(self, contender: str, path: str) -> tuple[Call, float]:
        """The contender's call and the largest error of its results.

        Raises NotMeasuredError when it cannot run here, or when a result is wrong.
        """
        call = contenders.build(self.job, contender, self.module, self.inputs)
        reference = torch.load(path, mmap=True)
        worst = 0.0
        for _ in range(CHECKED_CALLS):
            result = call()
            worst = max(worst, deviation(contenders.as_torch(result), reference))
            contenders.poison(result, self.inputs)
            del result
        if worst > self.job.tolerance:
            raise NotMeasuredError(f"wrong result: off by {worst:.1e} of the largest value")
        return call, worst


def pose(theme: str, name: str, quick: bool) -> PosedJob:
    """Makes the job called `name`. Raises KeyError when there is none."""
    job = find(theme, name, quick)
    return PosedJob((theme, name, quick), job, job.module(), job.inputs())
