"""Packing the second operand of a product by a kernel of its own, for all workers that multiply by it afterwards.

    b [K, N]      ->      panels [N / width, K / group, width, group]

The panels are those of constants (`product/panels.py`), made anew for each call. Each worker fills some of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.families.product.parts import TRANSPOSED_ROWS
from tessera.scheduling.language.columns import Knobs, no, where
from tessera.scheduling.language.knobs import Knob, Rule, Space, batched
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.ranges import Range, rounded_up
from tessera.scheduling.lowering.spec import PackingSpec, kernel_module, unit_axis
from tessera.scheduling.lowering.writer import ArgumentTile
from tessera.scheduling.model.machine import Machine, Work, largest_share
from tessera.target import Target

VECTOR_CYCLES = 3.0
"""Cycles per vector that is packed beside the traffic, addresses and masks included; transposing takes twice that."""


@dataclass(frozen=True)
class PackingProblem:
    """What the cost of packing depends on: extents, panels, dtype and the machine."""

    n: int
    k: int
    batch: int
    width: int
    dtype: DType
    transposed: bool
    target: Target
    workers: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.n, self.k, self.batch


def knobs(problem: PackingProblem) -> tuple[Knob, ...]:
    """The knobs of packing."""
    return (
        Knob("tile", ((4,), (8,), (16,), (32,)), "groups of rows that are read side by side into panels"),
        Knob("parallel", ("columns", "batch"), "the dimension that is cut into one share per worker"),
        Knob("fusion", (True,), "there is nothing to take apart"),
    )


RULES: tuple[Rule[PackingProblem], ...] = batched(
    Rule(
        "batch-to-split",
        "only a batch can be cut into shares along the batch",
        lambda schedule, problem: no(schedule.equals("parallel", "batch")) | (problem.batch > 1),
    ),
)


def default_schedule(problem: PackingProblem) -> Schedule:
    """As many streams as hardware prefetchers follow, a few whole lines of each panel at a time."""
    parallel = "batch" if problem.batch >= problem.workers > 1 else "columns"
    return Schedule(tile=(8,), parallel=parallel, fusion=True)


def space(problem: PackingProblem) -> Space[PackingProblem]:
    """All schedules of packing one operand."""
    return Space(knobs(problem), RULES, problem, default_schedule(problem))


def packing_work(problem: PackingProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    by_batch = largest_share(problem.batch, 1, problem.workers) / max(problem.batch, 1)
    by_columns = largest_share(problem.n, problem.width, problem.workers) / max(problem.n, 1)
    share = where(schedule.equals("parallel", "batch"), by_batch, by_columns)
    nbytes = share * problem.batch * problem.n * problem.k * problem.dtype.itemsize
    cycles = nbytes / rates.vector_bytes * VECTOR_CYCLES * (2 if problem.transposed else 1)
    work = Work(cycles * rates.cycle_s)
    work.move(rates.home(3 * nbytes), 3 * nbytes)
    return work


def lower_packing(spec: PackingSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR that packs."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _PackingLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return module


class _PackingLowering(LoopNest):
    def __init__(
        self, spec: PackingSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(builder, arguments, (arguments[0],))
        self.spec = spec
        (output,) = spec.outputs
        self.value, self.panels = output.value, arguments[output.argument].value
        packed = spec.arguments[output.argument].panels
        assert packed is not None
        self.width, self.group, self.multiple = packed.width, packed.group, packed.group * packed.rows
        transposed = unit_axis(self.value, spec.arguments, "n") == "k"
        self.rows = TRANSPOSED_ROWS if transposed and self.group == 1 and self.width % 16 == 0 else self.group
        (self.strip,) = schedule.integers("tile")
        self.split = 0 if schedule["parallel"] == "batch" else len(spec.batch)

    def lower(self) -> None:
        batch = self.spec.batch
        extents = {axis: self.extent(axis) for axis in (*batch, "n")}
        depth = self.extent("k")
        self.depth = rounded_up(self.builder, depth, self.multiple) if self.multiple > self.group else depth
        with self.shares(extents, {"n": self.width}, self.split) as share, self.over(batch, share):
            if self.rows > self.group:
                self._panel_by_panel(share["n"])
            else:
                self._strip_by_strip(share["n"])

    def _panel_by_panel(self, columns: Range) -> None:
        """Rows that lie along K: tiles that are transposed in registers follow each other in a panel."""
        builder = self.builder
        with (
            builder.loop(*columns, self.width, macro_tile=True) as n,
            builder.loop(builder.index(0), self.depth, self.rows) as k,
        ):
            self._pack(n.index, k.index)

    def _strip_by_strip(self, columns: Range) -> None:
        """A few rows at a time, side by side into all panels: reading and writing are sequential then."""
        builder, whole = self.builder, (self.builder.index(0), self.depth)
        for strip in self.parts(whole, self.strip * self.group, macro_tile=True):
            with builder.loop(*columns, self.width) as n, builder.loop(*strip, self.group) as k:
                self._pack(n.index, k.index)

    def _pack(self, n: SSAValue, k: SSAValue) -> None:
        """One tile: zero where there is no more of the operand."""
        builder, zero = self.builder, self.builder.index(0)
        inside = self.rows == 1 and self.multiple == 1
        tile = self.write(self.value, {"k": self.rows, "n": self.width}, {"k": k, "n": n}, {"k": inside})
        group = builder.floor_div(k, builder.index(self.group)) if self.group > 1 else k
        inner = [zero, zero] if self.group > 1 else [zero]
        place = [*[self.at[axis] for axis in self.spec.batch], builder.floor_div(n, builder.index(self.width)), group]
        lanes = len(place)
        dims = [lanes + 1, lanes] if self.group > 1 else [lanes - 1, lanes]
        builder.store(tile, self.panels, [*place, *inner], dims, [self.rows == self.group, True])
