"""Plans whose runs are profiled, and rings written without a driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.ring.layout import RECORD_WORDS, RING_HEADER_WORDS
from tessera.profiling.ring.recorder import Ring
from tessera.runtime.plans.frames import Step
from tessera.runtime.plans.plan import BoundPlan, PlanOutput, Slot
from tests import forked
from tests.unit.runtime.plans.kernels import ELEMENTS, FLOATS, float_leaf, kernel

FACTS = (
    StepFacts(
        "add",
        "add_kernel",
        flops=16.0,
        bytes=128.0,
        dtype="fp32",
        schedule="tile=(16,)",
        shapes=((16,), (16,)),
        schedule_source="shipped",
    ),
    StepFacts("double", "double_kernel", flops=16.0, bytes=128.0, dtype="fp32", fused=("double", "cast")),
)


def two_step_plan(facts: Sequence[StepFacts] = FACTS) -> BoundPlan:
    """`2 * (x + 1)` in two steps."""
    return BoundPlan(
        steps=[Step(kernel("add_one"), (0, 1)), Step(kernel("double"), (1, 2), workers=2)],
        slots=[Slot("leaf", 0), Slot("arena"), Slot("result", 0)],
        results=[4 * ELEMENTS],
        outputs=[PlanOutput(0, FLOATS)],
        arena_bytes=4 * ELEMENTS,
        facts=facts,
    )


def run(plan: BoundPlan, times: int = 1) -> None:
    """Runs a plan of one input."""
    leaf = float_leaf(1.0)
    for _ in range(times):
        plan.run((leaf,))


def write(ring: Ring, count: int, *, start: int = 100, finished: bool = True) -> None:
    """Writes records as the driver does: takes the next number, fills the record, then stores its sequence."""
    words = (ctypes.c_int64 * (RING_HEADER_WORDS + RECORD_WORDS * ring.capacity)).from_address(ring.address)
    for index in range(count):
        position = words[0]
        words[0] += 1
        at = RING_HEADER_WORDS + RECORD_WORDS * (position % ring.capacity)
        words[at : at + RECORD_WORDS] = [0, start + 10 * index, start + 10 * index + 5, 1, 0, 1, 7, 0]
        if finished:
            words[at] = position + 1


def script(text: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with caches of its own."""
    return forked.run(text, environment={**os.environ, "TESSERA_CACHE_DIR": str(cache)}, warm=True)
