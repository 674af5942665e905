"""`dist.pipeline`: a model in stages, whose training step runs as a schedule says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import torch

from tessera.doors.flow.bodies import flattened, rebuilt
from tessera.doors.mesh.tracing import Stage, StageArguments, TracedStage, weights_of
from tessera.errors import ArgumentError, MeshError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.lazy.structures.structure import Structure
from tessera.sharding.pipeline.actions import Action, PipelineSchedule, is_split
from tessera.sharding.pipeline.borders import Border, check_microbatches, microbatch, on_stage
from tessera.sharding.pipeline.generators import schedule as generated
from tessera.sharding.pipeline.running import Carrier, EmulatedCarrier, ScheduleRun, StageRun
from tessera.sharding.pipeline.transfers import with_transfers
from tessera.sharding.pipeline.verifier import ordered, verify
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.shards import shards_of

MicrobatchReduction: TypeAlias = Literal["mean", "sum"]
"""How losses and gradients of microbatches make those of the batch."""

_NAMES: Final = {"zero-bubble": "zb1p"}


def scheduled(stages: int, ranks: int, microbatches: int | None, schedule: str | PipelineSchedule) -> PipelineSchedule:
    """The table by which so many stages run on so many ranks, with its transfers, and proved.

    Raises ArgumentError (E_ARGUMENT) for numbers that do not fit, PipelineError (E_PIPELINE) for a table that breaks a
    rule.
    """
    if stages < ranks or stages % ranks:
        raise ArgumentError(
            f"{stages} stages on {ranks} ranks",
            hints=["a multiple of the ranks along the axis, each of which has as many"],
        )
    if isinstance(schedule, str):
        table = generated(_NAMES.get(schedule, schedule), ranks, microbatches or 4 * ranks, stages // ranks)
    else:
        table = schedule
        if (len(table.ranks), table.stages) != (ranks, stages) or microbatches not in (None, table.microbatches):
            raise ArgumentError(
                f"a table of {len(table.ranks)} ranks, {table.stages} stages and {table.microbatches} microbatches for "
                f"{ranks}, {stages} and {microbatches or table.microbatches}"
            )
    has_transfers = any(action.kind == "SEND" for row in table.ranks for action in row)
    return verify(table if has_transfers else with_transfers(verify(table), reduce=True, gather=True))


@dataclass
class _Plan:
    """What is known once the structures of batches and weights are: the stages here as programs, and borders."""

    stages: dict[int, TracedStage] = field(default_factory=dict)
    borders: dict[int, Border] = field(default_factory=dict)


class Pipeline:
    """A training step over stages of a model, each on the devices at one place along an axis of a mesh.

    Called with the weights of each stage, a batch and targets, it gives the loss, the same number on every rank, and
    the gradients of each stage's weights; None for stages of other ranks. `stages` are the numbers of those that this
    process holds, `schedule` is the table that runs, and `peaks` says of each of its ranks how many microbatches'
    values it kept at once in the step before; 0 of other processes' ranks.
    """

    def __init__(
        self,
        functions: Sequence[Stage],
        mesh: Mesh,
        axis: str,
        table: PipelineSchedule,
        loss: Stage | None,
        reduction: MicrobatchReduction,
    ) -> None:
        self._functions, self._mesh, self._axis = tuple(functions), mesh, axis
        self._loss: Callable[..., Any] = loss or _itself
        self._is_mean = reduction == "mean"
        self.schedule: Final = table
        self.peaks: tuple[int, ...] = (0,) * len(table.ranks)
        self._at = [mesh[axis, table.rank_of(number)] for number in range(table.stages)]
        emulated = mesh.state == "emulated"
        own = None if emulated or mesh.state == "abstract" else mesh.coordinates[axis]
        self.stages: Final = [n for n in range(table.stages) if own is None or table.rank_of(n) == own]
        self._is_here = emulated or len(table.ranks) == 1
        self._channels: Any = None
        self._plans: dict[Any, _Plan] = {}

    def mesh(self, stage: int) -> Mesh:
        """The part of the mesh that a stage's weights lie on."""
        return self._at[stage]

    def __call__(self, weights: Sequence[Any], batch: Any, *targets: Any) -> tuple[float, list[Any]]:
        """The loss of a batch and the gradients of all weights. `weights[s]` is what stage s is called with: tensors,
        in tuples, lists and dictionaries, on `mesh(s)` or on one device. Every rank gives a batch and targets of the
        same shapes.

        Raises PipelineError (E_PIPELINE) for a batch that cannot be cut into microbatches, and for weights on another
        mesh, AbstractMeshError (E_MESH_ABSTRACT) on a mesh that no job runs on, and what faults of ranks raise.
        """
        places = self._mesh.places
        if len(weights) != len(self._functions):
            raise ArgumentError(f"weights of {len(weights)} stages of {len(self._functions)}")
        held = {n: weights_of(weights[n], self._at[n], n, self._axis) for n in self.stages}
        first, last = self._batches([batch], 0), self._batches(targets, self.schedule.stages - 1)
        plan = self._planned(weights, held, batch, first, targets, last)
        carrier = self._carrier(plan)
        parts = self.schedule.microbatches if self._is_mean else 1
        runs = {n: _run_of(plan.stages[n], held[n], parts) for n in self.stages}
        run = ScheduleRun(self.schedule, runs, carrier, first, last)
        run.run()
        self.peaks = tuple(run.peaks)
        gradients = [_tree(weights[n], runs[n].reduce()) if n in runs else None for n in range(self.schedule.stages)]
        return self._shared(run.losses, parts, places[0]), gradients

    def _batches(self, trees: Sequence[Any], stage: int) -> list[list[Leaf]]:
        """The microbatches of what the ranks of a stage read; empty lists on other ranks, which check them too."""
        count = self.schedule.microbatches
        leaves = [cast(Tensor, as_node(tensor)).eval().state[1][0] for tree in trees for tensor in flattened(tree)]
        for leaf in leaves:
            check_microbatches(leaf.structure, count)
        if stage not in self.stages:
            return [[] for _ in range(count)]
        place = self.schedule.rank_of(stage)
        own = [on_stage(leaf, self._mesh, self._at[stage], self._axis, place) for leaf in leaves]
        for leaf in own:
            if leaf.structure.layout is not None and shards_of(leaf).mesh != self._at[stage]:
                raise MeshError(
                    f"a batch on {shards_of(leaf).mesh!r} for stage {stage}",
                    hints=["the pipeline's mesh, or what pipeline.mesh(stage) gives"],
                )
        return [[microbatch(leaf, number, count) for leaf in own] for number in range(count)]

    # -- what is known of structures -----------------------------------------------------------------------------

    def _planned(
        self,
        weights: Sequence[Any],
        held: dict[int, list[Leaf]],
        batch: Any,
        first: list[list[Leaf]],
        targets: Sequence[Any],
        last: list[list[Leaf]],
    ) -> _Plan:
        shapes = [as_node(each).state[0] for tree in (batch, *targets) for each in flattened(tree)]
        key = (tuple(shapes), tuple(leaf.structure for n in self.stages for leaf in held[n]))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._made(weights, batch, _structures(first), targets, _structures(last))
            self._plans[key] = plan
        else:
            for stage in plan.stages.values():
                stage.again()
        return plan

    def _made(
        self,
        weights: Sequence[Any],
        batch: Any,
        first: list[Structure],
        targets: Sequence[Any],
        last: list[Structure],
    ) -> _Plan:
        """Traces the stages here, in order; a rank hears from the one before it what comes over the border."""
        plan, stages = _Plan(), self.schedule.stages
        split = is_split(self.schedule)
        for number in self.stages:
            if number == 0:
                reads, is_tuple = first, isinstance(batch, tuple | list)
            else:
                border = plan.borders.get(number - 1)
                if border is None:
                    before = self.schedule.rank_of(number - 1)
                    border = plan.borders[number - 1] = self._met().told(number - 1, before, self._at[number])
                reads, is_tuple = [each.structure for each in border.crossings], border.is_tuple
            is_last = number == stages - 1
            left = list(last)
            trees = [rebuilt(tree, [left.pop(0) for _ in flattened(tree)]) for tree in targets] if is_last else []
            arguments = StageArguments(weights[number], reads, is_tuple, trees)
            loss = self._loss if is_last else None
            stage = TracedStage(
                self._functions[number],
                number,
                arguments,
                self._at[number],
                loss,
                split=split,
                gathers=Action("GATHER", number, -1) in self.schedule.ranks[self.schedule.rank_of(number)],
            )
            plan.stages[number] = stage
            if stage.border is not None:
                plan.borders[number] = stage.border
                if number + 1 not in self.stages:
                    self._met().tell(stage.border, number, self.schedule.rank_of(number + 1))
        return plan

    # -- ranks ---------------------------------------------------------------------------------------------------

    def _carrier(self, plan: _Plan) -> Carrier:
        if self._is_here:
            return EmulatedCarrier([action for _, action in ordered(self.schedule)], self._at)
        from tessera.sharding.pipeline.messages import ProcessCarrier  # only ranks of jobs need torch.distributed

        place = self._at[self.stages[0]].places[0]
        return ProcessCarrier(self.schedule, self._met(), plan.borders, self._at, place)

    def _met(self) -> Any:
        """The channels to this rank's neighbours, which all ranks of the pipeline open together."""
        if self._channels is None:
            from tessera.sharding.pipeline.messages import Channels

            devices = [self._mesh.devices[place] for place in self._mesh.group(self._axis, self._mesh.places[0])]
            self._channels = Channels(cast(Any, self._mesh.job), devices)
        return self._channels

    def _shared(self, losses: dict[int, Leaf], parts: int, place: int) -> float:
        """The loss of the batch, which the ranks of the last stage know and tell the others."""
        total = torch.zeros(1, dtype=torch.float64, device="cpu")
        for number in sorted(losses):
            total += _number(losses[number])
        total /= parts
        if not self._is_here:
            last = self.schedule.rank_of(self.schedule.stages - 1)
            total = self._met().everyone.broadcast(total, last)
        return total.item()


def _run_of(stage: TracedStage, weights: Sequence[Leaf], parts: int) -> StageRun:
    return StageRun(stage.programs, weights, stage.beside, parts, stage.gathered)


def _itself(value: Any) -> Any:
    return value


def _number(leaf: Leaf) -> float:
    shard = leaf if leaf.structure.layout is None else next(iter(shards_of(leaf).leaves().values()))
    return float(to_torch(shard).item())


def _structures(microbatches: list[list[Leaf]]) -> list[Structure]:
    return [leaf.structure for leaf in microbatches[0]]


def _tree(weights: Any, gradients: Sequence[Leaf]) -> Any:
    """Gradients in the form of the weights; None for what has none."""
    left = list(gradients)
    return rebuilt(
        weights, [leaf_node(left.pop(0)) if each.dtype.kind == "float" else None for each in flattened(weights)]
    )
