"""What expressions became: from the plans that they are bound to, without tuning or running anything more."""

from __future__ import annotations

from tessera.compiler import pipeline, planning
from tessera.compiler.bind.binding import steps_of
from tessera.compiler.bind.launches import AnyLaunch, Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.explain.fusion_report import through_memory
from tessera.compiler.explain.graph_explanation import (
    KernelExplanation,
    MeshExplanation,
    MoveExplanation,
    PlanExplanation,
)
from tessera.compiler.explain.inspection import rewrites_of
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.tune.problems import is_tuned
from tessera.compiler.tune.tuning import looked_at
from tessera.lazy.devices import CPU
from tessera.lazy.policy import Policy, current_policy
from tessera.lazy.structures.structure import Plan, Structure
from tessera.profiling.report.labels import kernel_label
from tessera.scheduling.model.estimate import Estimate
from tessera.sharding.chunk_choice import modelled
from tessera.sharding.exchange import communication
from tessera.sharding.execution import ShardedPlan
from tessera.sharding.partitioning.program import LocalProgram
from tessera.sharding.partitioning.schedule import OverlapLimits
from tessera.sharding.planner.local_programs import predicted, rates_of


class Explainer:
    """Explains the structures that plans are asked for while it is the source of plans."""

    def __init__(self) -> None:
        self._explained: dict[tuple[Structure, Policy], PlanExplanation] = {}
        self._meshes: dict[ShardedPlan, OverlapLimits] = {}

    @property
    def plans(self) -> tuple[PlanExplanation, ...]:
        """Of each structure under each policy, once, in the order in which they were first asked for."""
        return tuple(self._explained.values())

    @property
    def meshes(self) -> tuple[MeshExplanation, ...]:
        """Of each structure over tensors of a mesh, once; by the topology of the mesh that it was run on."""
        plans = self._meshes.items()
        return tuple(explain_mesh(plan.program, plan.topology, limits, plan.schedule()) for plan, limits in plans)

    def plan(self, structure: Structure) -> Plan:
        """The usual plan."""
        plan = pipeline.usual_plan(structure)
        if isinstance(plan, ShardedPlan):
            self._meshes.setdefault(plan, communication.current().limits)
            return plan
        key = structure, current_policy()
        if key not in self._explained:
            self._explained[key] = explain_structure(structure)
        return plan


def explain_mesh(
    program: LocalProgram, topology: str | None, limits: OverlapLimits, schedule: tuple[str, ...] = ()
) -> MeshExplanation:
    """What a local program moves between devices, what that is predicted to take, the program itself, and its steps."""
    moves = tuple(
        MoveExplanation(
            str(move.step),
            move.step.nbytes,
            str(move.step.source),
            str(move.step.target),
            move.reason,
            move.implicit,
        )
        for move in program.moves
    )
    rates = rates_of(topology)
    chunk = limits.chunk if isinstance(limits.chunk, int) else modelled(program, limits, topology)
    time = predicted(program, limits, chunk, rates)
    return MeshExplanation(str(program.mesh), "\n  ".join(program.lines()), moves, time, rates.topology.name, schedule)


def explain_structure(asked: Structure) -> PlanExplanation:
    """What a structure runs under the numerics policy in force. Tunes and runs nothing."""
    compiler = compilers.compiler_of(asked.device)
    with planning.lock, looked_at(compiler):
        structure = planning.as_planned(asked).structure
        steps = steps_of(planning.program_of(structure), structure, compiler)
        kernels = tuple(_explained(launch, compiler) for launch in steps)
        between, rewrites = through_memory(structure), rewrites_of(asked)
    return PlanExplanation(asked.device or CPU, kernels, tuple(map(str, rewrites)), tuple(between))


def _explained(launch: AnyLaunch, compiler: DeviceCompiler) -> KernelExplanation:
    is_cpu = compiler.target.kind == "cpu"
    (facts,) = facts_of([launch], compiler.traffic)()
    estimate = _estimate(launch, compiler) if isinstance(launch, Launch) else None
    return KernelExplanation(
        name=facts.kernel_name,
        label=kernel_label(facts.fused or (facts.operator,), facts.schedule),
        operators=facts.fused or (facts.operator,),
        dtype=facts.dtype,
        shapes=facts.shapes,
        flops=facts.flops,
        bytes=facts.bytes,
        workers=launch.choice.workers if isinstance(launch, Launch) and is_cpu else None,
        schedule=facts.schedule,
        source=launch.choice.source if isinstance(launch, Launch) else None,
        predicted_us=None if estimate is None else estimate.seconds * 1e6,
        binding=None if estimate is None else estimate.resource,
        ceilings=None if estimate is None else estimate.source,
        traffic=dict(facts.traffic),
        rewrites=facts.rewrites,
    )


def _estimate(launch: Launch, compiler: DeviceCompiler) -> Estimate | None:
    """What the cost model expects of a launch; None where none knows its family."""
    is_known = compiler.model is not None or is_tuned(launch.subject)
    return compiler.estimate(launch) if is_known else None
