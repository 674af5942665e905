"""Plans of GPUs that call libraries between their launches: stretches of launches, each with a graph of its own.

A call runs on the stream that launches go to, torch's current one, so that nothing waits here either. Its memory is
that of the plan: torch tensors are made over the addresses in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tessera.lazy.leaves.leaf import Leaf
from tessera.profiling.recording import instrumentation
from tessera.runtime.devices.device import Driver
from tessera.runtime.libraries.library import LibraryFunction, LibraryOperand, call, tensor_at
from tessera.runtime.plans.gpu_graphs import GraphRunner, Table
from tessera.runtime.plans.gpu_plan import DevicePlan, DeviceStep


class DeviceCall(NamedTuple):
    """One call of a library: `name` is what errors call it."""

    name: str
    function: LibraryFunction
    inputs: tuple[LibraryOperand, ...]
    outputs: tuple[LibraryOperand, ...]
    attributes: Mapping[str, Any]

    def run(self, table: Table, device: str) -> None:
        """Calls it over the memory of one call of the plan. Raises what `runtime.library.raising` says."""
        inputs, outputs = (
            [tensor_at(table[operand.slot], operand, device) for operand in operands]
            for operands in (self.inputs, self.outputs)
        )
        call(self.name, self.function, inputs, outputs, self.attributes)


class Stretch(NamedTuple):
    """Launches that follow each other, and what runs them."""

    runner: GraphRunner
    steps: tuple[DeviceStep, ...]


class MixedDevicePlan(DevicePlan):
    """A `DevicePlan` with calls of libraries; `run` raises what these do, too."""

    __slots__ = ("_pieces",)

    def __init__(self, *, driver: Driver, pieces: Sequence[DeviceStep | DeviceCall], **fields: Any) -> None:
        """`pieces` are launches and calls in their order; `fields` the other parameters of `DevicePlan`."""
        super().__init__(driver=driver, steps=[piece for piece in pieces if isinstance(piece, DeviceStep)], **fields)
        self._pieces = _stretches(pieces, driver)

    def _enqueue(self, leaves: Sequence[Leaf], results: Sequence[int]) -> None:
        arena, table = self._table(leaves, results)
        stream = self.driver.stream()
        plan = self._serving(table)
        for piece in plan._pieces:
            if isinstance(piece, DeviceCall):
                piece.run(table, self.driver.name)
            else:
                piece.runner.run(plan.number, piece.steps, table, stream)
        del arena  # goes back to torch's allocator, which hands it out again in the order of the stream
        instrumentation.note_unmeasured(self.driver.name, len(self.steps))


def _stretches(pieces: Sequence[DeviceStep | DeviceCall], driver: Driver) -> tuple[Stretch | DeviceCall, ...]:
    made: list[Stretch | DeviceCall] = []
    waiting: list[DeviceStep] = []
    for piece in [*pieces, None]:
        if isinstance(piece, DeviceStep):
            waiting.append(piece)
            continue
        if waiting:
            made.append(Stretch(GraphRunner(driver), tuple(waiting)))
            waiting = []
        if piece is not None:
            made.append(piece)
    return tuple(made)
