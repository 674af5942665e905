"""Running a schedule: the actions of the ranks that this process is, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

from tessera.lazy.layouts import Layout
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.lazy.structures.building import apply
from tessera.ops.collective.records import CONSTRAIN
from tessera.sharding.pipeline.actions import PROGRAMS, WEIGHTS, Action, PipelineSchedule
from tessera.sharding.pipeline.borders import relabelled
from tessera.sharding.pipeline.cutting import Values, computed
from tessera.sharding.pipeline.stages import StagePrograms
from tessera.sharding.tensors.mesh import Mesh


class Carrier(Protocol):
    """What brings values from rank to rank."""

    def actions(self, schedule: PipelineSchedule) -> Iterator[Action]:
        """What this process does, in an order that ends."""

    def send(self, action: Action, leaves: Sequence[Leaf]) -> None:
        """Sends what a program has made."""

    def post(self, action: Action) -> None:
        """Gets ready to receive."""

    def take(self, action: Action) -> Sequence[Leaf]:
        """What was received for a RECV, when it is there."""

    def end(self) -> None:
        """Returns when everything that was sent is out of this process's hands."""


class StageRun:
    """A stage in one step: its programs, its weights as leaves, what it reads beside, and what it keeps meanwhile.
    Gradients are divided by `parts`. Weights that are to be brought together before have a layout in `gathered`.
    """

    def __init__(
        self,
        programs: StagePrograms,
        parameters: Sequence[Leaf],
        beside: Values,
        parts: int,
        gathered: Sequence[Layout | None],
    ) -> None:
        self.programs = programs
        self._parts = parts
        self._gathered = gathered
        self._weights: Values = {**beside, **dict(zip(programs.trace.parameters, parameters, strict=True))}
        self._kept: dict[int, Values] = {}
        self._sums: list[Leaf] = []
        self._reduced: list[Leaf] | None = None

    @property
    def keeps(self) -> int:
        """How many microbatches' values it keeps."""
        return len(self._kept)

    def gather(self) -> None:
        """GATHER: brings together what all programs read so."""
        of_weights = zip(self.programs.trace.parameters, self._gathered, strict=True)
        pairs = [(leaf, laid) for leaf, laid in of_weights if laid is not None]
        nodes = [apply(CONSTRAIN, (laid,), (leaf_node(self._weights[leaf]),)) for leaf, laid in pairs]
        if nodes:
            whole = computed(nodes, {})
            self._weights = {**self._weights, **dict(zip([leaf for leaf, _ in pairs], whole, strict=True))}

    def forward(self, microbatch: int, inputs: Sequence[Leaf]) -> list[Leaf]:
        """F of a microbatch."""
        own = dict(zip(self.programs.trace.inputs, inputs, strict=True))
        results, saved = self.programs.forward({**self._weights, **own})
        self._kept[microbatch] = {**own, **saved}
        return results

    def backward(self, kind: str, microbatch: int, seeds: Sequence[Leaf]) -> list[Leaf]:
        """B, W or BW of a microbatch: the cotangents of its inputs; none of W, which needs no seeds again."""
        programs, made = self.programs, list[Leaf]()
        kept = {**self._kept[microbatch], **dict(zip(programs.trace.seeds, seeds, strict=False))}
        values = {**self._weights, **kept}
        if kind == "B":
            made, saved = programs.inputs(values, self._kept[microbatch])
            self._kept[microbatch] = {**kept, **saved}
        elif kind == "W":
            self._sums = programs.weights(values, self._sums)
        else:
            made, self._sums = programs.both(values, self._sums)
        if kind in WEIGHTS:
            del self._kept[microbatch]
        return made

    def reduce(self) -> list[Leaf]:
        """REDUCE, once: the gradients of the step, over microbatches and devices."""
        if self._reduced is None:
            self._reduced = self.programs.finished(self._sums, self._parts)
            self._sums = []
        return self._reduced


class ScheduleRun:
    """One step. `stages` are those of this process, by number; `batches` what stage 0 reads of each microbatch, and
    `targets` what the last one reads beside.
    """

    def __init__(
        self,
        schedule: PipelineSchedule,
        stages: Mapping[int, StageRun],
        carrier: Carrier,
        batches: Sequence[Sequence[Leaf]],
        targets: Sequence[Sequence[Leaf]],
    ) -> None:
        self._schedule, self._stages, self._carrier = schedule, stages, carrier
        self._batches, self._targets = batches, targets
        self._last = schedule.stages - 1
        self._made: dict[Action, list[Leaf]] = {}
        self.losses: dict[int, Leaf] = {}
        """By microbatch, what the last stage made."""
        self.peaks = [0] * len(schedule.ranks)
        """The most microbatches of stages that each rank of this process kept values of at once."""

    def run(self) -> None:
        """Does everything."""
        for action in self._carrier.actions(self._schedule):
            if action.kind in PROGRAMS:
                self._program(action)
            elif action.kind == "SEND":
                self._carrier.send(action, self._made.pop(action))
            elif action.kind == "RECV":
                self._carrier.post(action)
            elif action.kind == "REDUCE":
                self._stages[action.stage].reduce()
            elif action.kind == "GATHER":
                self._stages[action.stage].gather()
        self._carrier.end()

    def _program(self, action: Action) -> None:
        kind, number, microbatch, _ = action
        stage = self._stages[number]
        if kind == "F":
            inputs = self._batches[microbatch] if number == 0 else self._read(number, microbatch, "F")
            results = stage.forward(microbatch, [*inputs, *(self._targets[microbatch] if number == self._last else [])])
            self._count(number)
            if number == self._last:
                self.losses[microbatch] = results[0]
            else:
                self._made[Action("SEND", number, microbatch, "F")] = results
            return
        seeds = self._read(number, microbatch, "B") if kind != "W" and number != self._last else []
        cotangents = stage.backward(kind, microbatch, seeds)
        if number and kind != "W":
            self._made[Action("SEND", number, microbatch, "B")] = cotangents

    def _read(self, stage: int, microbatch: int, of: Literal["F", "B"]) -> Sequence[Leaf]:
        """What comes from a neighbour, which may stand on the same rank."""
        other = stage + (-1 if of == "F" else 1)
        if self._schedule.rank_of(other) == self._schedule.rank_of(stage):
            return self._made.pop(Action("SEND", other, microbatch, of))
        return self._carrier.take(Action("RECV", stage, microbatch, of))

    def _count(self, stage: int) -> None:
        rank = self._schedule.rank_of(stage)
        kept = sum(each.keeps for number, each in self._stages.items() if self._schedule.rank_of(number) == rank)
        self.peaks[rank] = max(self.peaks[rank], kept)


class EmulatedCarrier:
    """All ranks in this process: what is sent lies on the mesh of the stage that reads it at once."""

    def __init__(self, order: Sequence[Action], meshes: Sequence[Mesh]) -> None:
        self._order, self._meshes = order, meshes
        self._there: dict[Action, list[Leaf]] = {}

    def actions(self, schedule: PipelineSchedule) -> Iterator[Action]:
        """See `Carrier`."""
        return iter(self._order)

    def send(self, action: Action, leaves: Sequence[Leaf]) -> None:
        """See `Carrier`."""
        receive = receive_of(action)
        self._there[receive] = [relabelled(leaf, self._meshes[receive.stage]) for leaf in leaves]

    def post(self, action: Action) -> None:
        """See `Carrier`."""

    def take(self, action: Action) -> Sequence[Leaf]:
        """See `Carrier`."""
        return self._there.pop(action)

    def end(self) -> None:
        """See `Carrier`."""
        assert not self._there, "all that was sent was read"


def receive_of(send: Action) -> Action:
    """The RECV that a SEND is for."""
    return Action("RECV", send.stage + (1 if send.of == "F" else -1), send.microbatch, send.of)
