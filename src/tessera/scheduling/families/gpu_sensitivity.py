"""Which choices of schedules on a GPU hang on constants that nobody measured there, and what a wrong one would cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.scheduling.families.registry import gpu_model
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_constants import KNOWN, Constant, known
from tessera.scheduling.model.gpu_machine import GpuMachine, gpu_machine
from tessera.target import Target

WORTH = 0.02
"""Losses below this share of a kernel's time are no reason to measure anything: estimates that close say nothing."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A choice that is another one at an end of a constant's interval. `loss` is the share of time, predicted, by which
    the schedule that is taken today would be slower than `instead` if the constant had the value `at`.
    """

    constant: Constant
    at: float
    label: str
    taken: Schedule
    instead: Schedule
    loss: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A constant, and the choices that hang on it, the dearest first."""

    constant: Constant
    flips: tuple[Flip, ...]

    @property
    def loss(self) -> float:
        """The most that one of the choices loses; 0.0 where none hangs on the constant."""
        return self.flips[0].loss if self.flips else 0.0


def sensitivities(
    target: Target, problems: Mapping[str, Any], progress: Callable[[str], None] = lambda name: None
) -> list[Sensitivity]:
    """Every constant of the models of GPUs, those first on which the dearest choices hang: what to measure first.

    `problems` are kernels for this target, by labels. Raises KeyError for one whose family has no model, and
    UnsupportedTargetError for a GPU of which nothing is published.
    """
    machine = gpu_machine(target)
    taken = {label: gpu_model(problem).chosen(problem, machine).schedule for label, problem in problems.items()}
    found = []
    for constant in known():
        progress(constant.name)
        ends = sorted({constant.least, constant.most} - {constant.value})
        flips = [flip for at in ends for flip in _flips(constant, at, target, problems, taken)]
        found.append(Sensitivity(constant, tuple(sorted(flips, key=lambda flip: -flip.loss))))
    return sorted(found, key=lambda each: -each.loss)


def _flips(
    constant: Constant, at: float, target: Target, problems: Mapping[str, Any], taken: Mapping[str, Schedule]
) -> Sequence[Flip]:
    machine = gpu_machine(target, constants=replace(KNOWN, **{constant.name: at}))
    found = (_flip(constant, at, label, problem, taken[label], machine) for label, problem in problems.items())
    return [flip for flip in found if flip.loss > WORTH]


def _flip(constant: Constant, at: float, label: str, problem: Any, taken: Schedule, machine: GpuMachine) -> Flip:
    model = gpu_model(problem)
    best = model.chosen(problem, machine)
    loss = model.estimate(problem, taken, machine, None).seconds / best.seconds - 1.0
    return Flip(constant, at, label, taken, best.schedule, loss)
