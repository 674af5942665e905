"""What becomes of a step of a program: what it is compiled to, and how long its operators and their tiles take.

from tessera import graph

graph.explain(step)
graph.profile(step)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tessera.compiler.explain.graph_explanation import (
    GraphExplanation,
    KernelExplanation,
    MeshExplanation,
    MoveExplanation,
    PlanExplanation,
)
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.devices import is_mesh
from tessera.profiling.session.starting import session
from tessera.profiling.tiles.tile_profile import TileProfile, TileRow
from tessera.sharding.exchange.communication import current
from tessera.sharding.tensors.properties import mesh_of, program_of

if TYPE_CHECKING:
    from tessera.compiler.device.timing import Timing

__all__ = [
    "GraphExplanation",
    "KernelExplanation",
    "MeshExplanation",
    "MoveExplanation",
    "PlanExplanation",
    "TileProfile",
    "TileRow",
    "explain",
    "profile",
]


def profile(step_fn: Callable[[], object], *, steps: int = 1, warmup: int = 1) -> TileProfile:
    """Runs `step_fn` with kernels that time their tiles, prints operators and tiles, and gives the rows.

    `step_fn()` is called `warmup` times, which compiles the timed kernels, and then `steps` times, which are measured.
    What it evaluates, and what it makes and leaves unevaluated, runs as builds of their own of the same kernels under
    the same schedules, which read the clock around each tile; results are the same bit for bit. Its usual kernels stay
    as they are. What GPUs compute is waited for after each evaluation. A session around it keeps the rows in its trace.

    Raises ArgumentError for what cannot be called, and for less than one step; and what `step_fn` raises.
    """
    _require_callable(step_fn, "profile")
    if steps < 1 or warmup < 0:
        raise ArgumentError("graph.profile measures one step or more, after warm-ups of which there may be none")
    from tessera.compiler.device.timing import Timing, clock_cost
    from tessera.compiler.pipeline import planned_by
    from tessera.profiling.ring import recorder
    from tessera.profiling.tiles.tile_profile import rows_of, tell_sessions

    clock, timing = clock_cost(), Timing()
    with planned_by(timing):
        for _ in range(warmup):
            with session():
                step_fn()
        timing.forget()
        with session(record_shapes=True) as measured:
            for _ in range(steps):
                step_fn()
    rows = rows_of(measured.records(), timing.tiles, clock, recorder.ns_per_tick())
    tell_sessions(rows)
    result = TileProfile(rows, clock, (*map(str, timing.rewritten), *_notes(timing, measured.unmeasured)))
    print(result)
    return result


def explain(fn: Callable[[], object] | Tensor) -> GraphExplanation:
    """Prints, and gives, what an expression became: its kernels with their fused operators, the rewrites behind them,
    their schedules and who chose these, and what the cost model says of each: time, binding resource, memory traffic.

    `fn()` is called once, and what it makes is computed; of a tensor that has not been computed yet nothing is. Raises
    ArgumentError for what is neither; and what `fn` raises.
    """
    from tessera.compiler.explain.explaining import Explainer, explain_mesh, explain_structure

    if isinstance(fn, Tensor) and fn.is_pending and is_mesh(fn.structure.device):
        topology = mesh_of(fn).topology
        result = GraphExplanation((), (explain_mesh(program_of(fn.structure), topology, current().limits),))
    elif isinstance(fn, Tensor):
        result = GraphExplanation((explain_structure(fn.structure),) if fn.is_pending else ())
    else:
        _require_callable(fn, "explain")
        from tessera.compiler.pipeline import planned_by

        explainer = Explainer()
        with planned_by(explainer), session():
            fn()
        result = GraphExplanation(explainer.plans, explainer.meshes)
    print(result)
    return result


def _require_callable(step_fn: object, name: str) -> None:
    if not callable(step_fn):
        raise ArgumentError(
            f"graph.{name} takes a function, not a {type(step_fn).__name__}",
            hints=[f"graph.{name}(lambda: model(x).eval())"],
        )


def _notes(timing: Timing, unmeasured: dict[str, int]) -> tuple[str, ...]:
    clocks = (f"the clock of {device} advances by {step_ns} ns" for device, step_ns in timing.clocks().items())
    untimed = (f"{kernels} kernels on {device} are not timed" for device, kernels in unmeasured.items() if kernels)
    return (*clocks, *timing.notes, *untimed)
