"""Who computes a job, and how each makes its call. The builders run inside worker processes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import nn

from bench.jobs.job import Call, Inputs, Job
from bench.results import Role

OURS = "tessera"
COMPILED = "torch.compile"
UNLOCKED = "torch.compile, unlocked"


@dataclass(frozen=True)
class JobContender:
    """The name shown, the environment it runs in, what it stands for."""

    name: str
    environment: str
    role: Role


_EVERYONE = (
    JobContender("torch", "torch", "eager"),
    JobContender("torch, unlocked", "mkl", "eager_unlocked"),
)
_COMPILED = (
    JobContender(COMPILED, "compile", "compiled"),
    JobContender(UNLOCKED, "compile_mkl", "compiled_unlocked"),
)


def contenders(job: Job) -> list[JobContender]:
    """All contenders of `job`: Tessera first, torch eager and compiled, as installed and with MKL's AVX-512 path
    unlocked, then the job's own peers."""
    ours = [JobContender(name, "tessera", "ours") for name in (OURS, *job.variants)]
    peers = [JobContender(name, peer.environment, "library") for name, peer in job.peers.items()]
    return [*ours, *_EVERYONE, *(_COMPILED if job.compiles else ()), *peers]


def build(job: Job, contender: str, module: nn.Module, inputs: Inputs) -> Call:
    """The call of `contender`. Raises `bench.environments.NotMeasuredError` when it cannot run here."""
    if contender == OURS:
        return job.ours(module, inputs)
    if contender in job.variants:
        return job.variants[contender](module, inputs)
    if contender in job.peers:
        return job.peers[contender].build(module, inputs)
    if contender in (COMPILED, UNLOCKED):
        return _compiled(module, inputs)
    return lambda: module(*inputs)


def _compiled(module: nn.Module, inputs: Inputs) -> Call:
    """``torch.compile(mode="max-autotune")``; the environment freezes the weights."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch._dynamo.reset()
    compiled = torch.compile(module, mode="max-autotune", dynamic=False)
    return lambda: compiled(*inputs)


def as_torch(result: object) -> torch.Tensor:
    """A contender's result as a torch tensor, without a copy where possible."""
    if isinstance(result, torch.Tensor):
        return result
    found: torch.Tensor = result.torch()  # type: ignore[attr-defined]
    return found


def poison(result: object, inputs: Inputs) -> None:
    """Fills a result's memory with NaN before it is let go, so that a later call that does not write all of what it
    is handed again is found out. A result that lies in the inputs' memory stays as it is."""
    tensor = as_torch(result)
    storages = {x.untyped_storage().data_ptr() for x in inputs}
    if tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in storages:
        tensor.fill_(float("nan"))
