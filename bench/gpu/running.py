"""Checks and measures one case: ours under several schedules, the best of them against every peer, in turn."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import partial
from typing import Any

import torch

from bench.gpu.cases import Case, Evaluated, Made, Ours, Place
from bench.gpu.results import OURS, Found, found
from bench.gpu.timing import Cache, Call, Timer, fastest, interleaved
from tessera.errors import DeviceFaultError, MemoryLimitError, ScheduleError, TesseraError, TuneSpaceEmptyError


class WrongResultError(Exception):
    """A kernel computed something else than the reference."""


def run(case: Case, place: Place, timer: Timer, without: Container[str] = ()) -> Iterator[Found]:
    """The case with a cold and with a warm L2, `without` the peers that this names. Raises WrongResultError for a wrong
    result of ours, DeviceFaultError where the GPU was lost, and MemoryLimitError.
    """
    made = case.make(place)
    calls, missing, error, schedule = _ours(case, made, place, timer)
    for name, build in made.peers.items():
        if name in without:
            missing[name] = "left out"
            continue
        try:
            calls[name] = build()
        except (RuntimeError, AttributeError) as problem:
            missing[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    for cache in _CACHES:
        yield found(case, cache, schedule, interleaved(calls, cache, timer), missing, error)


def built(case: Case, place: Place) -> int:
    """How many schedules of ours compile and run. Their kernels are in the cache from then on."""
    count = 0
    for build in case.make(place).ours.values():
        try:
            build().eval()
        except TesseraError:
            continue  # `run` says why
        count += 1
    return count


_CACHES: tuple[Cache, ...] = ("cold", "warm")


def _ours(
    case: Case, made: Made, place: Place, timer: Timer
) -> tuple[dict[str, Call], dict[str, str], float | None, str]:
    """Our fastest legal schedule, checked; or why there is none."""
    calls: dict[str, Call] = {}
    errors: dict[str, float] = {}
    reasons: list[str] = []
    reference = made.reference()
    for schedule, build in made.ours.items():
        try:
            errors[schedule] = relative_error(_into_poison(build(), place), reference)
        except (ScheduleError, TuneSpaceEmptyError):
            continue  # not legal for this shape
        except (DeviceFaultError, MemoryLimitError):
            raise
        except TesseraError as problem:
            reasons.append(f"{schedule}: {problem.code}: {problem.message}")
            continue
        if not errors[schedule] <= case.tolerance:  # NaN is wrong too
            raise WrongResultError(f"{case.label} under {schedule}: error {errors[schedule]:.1e}")
        calls[schedule] = partial(_evaluate, build)
    if not calls:
        return {}, {OURS: "; ".join(reasons) or "no legal schedule"}, None, ""
    best = next(iter(calls)) if len(calls) == 1 else fastest(calls, timer)
    return {OURS: calls[best]}, {}, errors[best], best


def _into_poison(tensor: Evaluated, place: Place) -> torch.Tensor:
    """The values, computed into memory full of NaN: what is not written is seen."""
    out = torch.full(tensor.shape, float("nan"), dtype=tensor.dtype.torch, device=place.memory)
    tensor.eval(out)
    return out


def _evaluate(build: Ours) -> Any:
    return build().eval()


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest error of the part that the reference covers, over its largest element."""
    part = result[tuple(slice(0, extent) for extent in reference.shape)]
    if part.shape != reference.shape:
        raise WrongResultError(f"a result of shape {tuple(result.shape)} against {tuple(reference.shape)}")
    if not reference.numel():
        return 0.0
    return float((part.double() - reference.double()).abs().max() / reference.double().abs().max())
