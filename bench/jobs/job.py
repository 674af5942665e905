"""A problem as a user has it: a torch module with its inputs, and the same written with `op.`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from bench.results import Goal, Role

Inputs = tuple[torch.Tensor, ...]
Call = Callable[[], object]
"""Computes and returns the result once; the result is a tensor of torch's or Tessera's."""

Builder = Callable[[nn.Module, Inputs], Call]
"""Makes a call of a module's weights and its inputs. What is done once per model (packing) happens here, untimed."""

PEERS: tuple[Role, ...] = ("eager", "eager_unlocked", "compiled", "compiled_unlocked", "library")
"""Everyone that a goal which is a plain number is held against."""


@dataclass(frozen=True)
class Peer:
    """A further contender of one job, such as its channels-last form: how it is built, and in which environment
    (`bench.environments`) it runs.

    Raise `bench.environments.NotMeasuredError` in `build` for what cannot run, with the reason.
    """

    build: Builder
    environment: str = "torch"


@dataclass(frozen=True)
class Group:
    """Jobs whose geometric mean of ratios (best peer's time / ours) is to reach `ratio`."""

    name: str
    ratio: float


@dataclass(frozen=True)
class Job:
    """One problem.

    `inputs` gives seeded tensors, the same bits in every process; `module` the torch module that a user would write,
    its parameters frozen and seeded too, in evaluation mode; ``module(*inputs)`` is what is computed. `ours` makes
    Tessera's call of that module's weights. `goal`, as a number, is the best peer's time / ours; goals against some
    peers only are given as `Goal`s. A result that is off by more than `tolerance` of the reference's largest value is
    wrong and not timed. `flops` and `bytes` (each operand once, the result once) are for the rate and the bound; 0
    where they say nothing. `reference` is needed only where the module in float64 is not what is meant.
    """

    name: str
    goal: float | tuple[Goal, ...] | None
    inputs: Callable[[], Inputs]
    module: Callable[[], nn.Module]
    ours: Builder
    tolerance: float
    peers: Mapping[str, Peer] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0
    dtype: str = "fp32"
    group: Group | None = None
    reference: Callable[[nn.Module, Inputs], torch.Tensor] | None = None
    variants: Mapping[str, Builder] = field(default_factory=dict)
    """Further ways in which Tessera computes it; the goals hold for the fastest."""
    compiles: bool = True
    """Whether `torch.compile` is a contender; not where it falls back to eager."""
    memory: bool = False
    """Whether peak memory is measured, and held against that of `torch.compile`."""
    first_call: bool = False
    """Whether the first call is measured, with empty caches and with full ones, and held against `torch.compile`'s."""
    copy_bound: bool = False
    """Whether its time is held against that of a copy of the same bytes, too."""

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The goals as such; none where only a group has one."""
        if self.goal is None:
            return ()
        if isinstance(self.goal, tuple):
            return self.goal
        return (Goal("best of all", PEERS, self.goal),)


def in_float64(job: Job, module: nn.Module, inputs: Inputs) -> torch.Tensor:
    """The job's reference: its module in float64, unless the job has a reference of its own."""
    if job.reference is not None:
        return job.reference(module, inputs).double()
    exact = copy.deepcopy(module).double()
    result: torch.Tensor = exact(*[x.double() if x.is_floating_point() else x for x in inputs])
    return result


def deviation(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest deviation of `result`, as a share of the largest reference value. Infinite for NaN or a wrong shape."""
    if result.shape != reference.shape:
        return float("inf")
    if reference.numel() == 0:
        return 0.0
    found = (result.double() - reference).abs().max() / reference.abs().max().clamp_min(1e-30)
    return float(torch.nan_to_num(found, nan=float("inf")))
