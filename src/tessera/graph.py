"""What becomes of a step of a program: how long its operators and their tiles take.

from tessera import graph

graph.profile(step)
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.errors import ArgumentError
from tessera.profiling.sessions import session
from tessera.profiling.tile_profile import TileProfile, TileRow

__all__ = ["TileProfile", "TileRow", "profile"]


def profile(step_fn: Callable[[], object], *, steps: int = 1, warmup: int = 1) -> TileProfile:
    """Runs `step_fn` with kernels that time their tiles, prints operators and tiles, and gives the rows.

    `step_fn()` is called `warmup` times, which compiles the timed kernels, and then `steps` times, which are measured.
    What it evaluates, and what it makes and leaves unevaluated, runs on the CPU as builds of their own of the same
    kernels under the same schedules, which read the clock around each tile; results are the same bit for bit. Its usual
    kernels stay as they are.

    Raises ArgumentError for what cannot be called, and for less than one step; and what `step_fn` raises.
    """
    if not callable(step_fn):
        raise ArgumentError(
            f"graph.profile takes a function, not a {type(step_fn).__name__}",
            hints=["graph.profile(lambda: model(x).eval())"],
        )
    if steps < 1 or warmup < 0:
        raise ArgumentError("graph.profile measures one step or more, after warm-ups of which there may be none")
    from tessera.compiler.timing import clock_cost, timed_builds
    from tessera.profiling import recorder
    from tessera.profiling.tile_profile import rows_of

    clock = clock_cost()
    with timed_builds() as timing:
        for _ in range(warmup):
            with session():
                step_fn()
        timing.forget()
        with session(record_shapes=True) as measured:
            for _ in range(steps):
                step_fn()
    rows = rows_of(measured.records(), timing.tiles, clock, recorder.ns_per_tick())
    result = TileProfile(rows, clock, (*map(str, timing.rewritten), *_notes(measured.unmeasured)))
    print(result)
    return result


def _notes(unmeasured: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"{kernels} kernels on {device} are not timed" for device, kernels in unmeasured.items())
