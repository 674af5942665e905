"""The knob `backend` of all kernels of GPUs: what makes machine code of their Tile IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target
from tessera.target.facts import TILE_ARCHITECTURES

BACKEND: Final = "backend"
TRITON: Final = "triton"
"""What a schedule means that names no backend. It is the default: on an H100 its kernels were the faster ones."""
CUDA_TILE: Final = "cuda_tile"
_CHOSEN: Final = frozenset({"warps", "pipeline_depth"})


def named_backend(schedule: Schedule) -> str:
    """The backend that a schedule names."""
    return str(schedule.get(BACKEND, TRITON))


def backends_for(target: Target) -> tuple[str, ...]:
    """The backends that have code for a GPU, the default first; they need not be installed."""
    return (TRITON, CUDA_TILE) if target.arch in TILE_ARCHITECTURES else (TRITON,)


def deciding(schedule: Schedule) -> Schedule:
    """What of a schedule decides the kernel: the compiler of CUDA's tiles chooses warps and stages itself."""
    chosen = _CHOSEN if named_backend(schedule) == CUDA_TILE else frozenset[str]()
    return Schedule({knob: value for knob, value in schedule.items() if knob not in chosen})


def _has_code(schedule: Schedule, problem: Any) -> bool:
    return named_backend(schedule) in backends_for(problem.target)


_HAS_CODE: Final = Rule[Any]("backend", "the backend has code for the GPU", _has_code)


def with_backend(
    space: Callable[[Any], Space[Any]], start: Callable[[Any], Schedule], rules: tuple[Rule[Any], ...]
) -> tuple[Callable[[Any], Space[Any]], Callable[[Any], Schedule], tuple[Rule[Any], ...]]:
    """A family's space, start and rules, with the knob."""
    whole = (*rules, _HAS_CODE)

    def named(schedule: Schedule) -> Schedule:
        return schedule.replace(**{BACKEND: TRITON})

    def with_knob(problem: Any) -> Space[Any]:
        found = space(problem)
        knob = Knob(BACKEND, backends_for(problem.target), "what makes machine code of a kernel's Tile IR")
        return replace(
            found,
            knobs=(*found.knobs, knob),
            rules=whole,
            default=named(found.default),
            starts=tuple(map(named, found.starts)),
        )

    return with_knob, lambda problem: named(start(problem)), whole
