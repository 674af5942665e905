"""`MeshPlan`: the best ways to divide a transformer over devices, as a table with reasons; all of it is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tessera.errors import ArgumentError, MemoryLimitError
from tessera.sharding.pipeline.generators import schedule
from tessera.sharding.pipeline.simulator import ProgramTimes, Timeline, simulate
from tessera.sharding.planner.applied import AppliedPlan, mesh_of, spec_of
from tessera.sharding.planner.blocks import transformer_block
from tessera.sharding.planner.calibration import EFFICIENCIES
from tessera.sharding.planner.candidates import Parallelism, PlanCandidates, enumerate_candidates
from tessera.sharding.planner.communication import Collective, CollectiveCost, cost
from tessera.sharding.planner.layouts import LayoutChoice, SplitAxis, choose_layouts
from tessera.sharding.planner.memory import memory_bytes
from tessera.sharding.planner.rates import DeviceRates, device_rates
from tessera.sharding.planner.step_time import StepTimes, step_times
from tessera.sharding.planner.transformer import Transformer
from tessera.system.notebooks import ShownAsText
from tessera.target.topology import TOPOLOGIES, Topology, topology

_SHOWN = 8
_RESERVE = 0.05
"""Of the memory, for what is no tensor: contexts, libraries, fragments."""


@dataclass(frozen=True)
class Division:
    """One candidate of a plan. `seconds` are of a step, `shares` of each resource, `memory` of the fullest device."""

    candidate: Parallelism
    seconds: float
    shares: Mapping[str, float]
    memory: float
    spare: int

    @property
    def bound(self) -> str:
        """The resource that takes most of the step."""
        return max(self.shares, key=lambda name: self.shares[name])


@dataclass(frozen=True)
class MeshPlan(ShownAsText):
    """The best candidates, best first; `print` shows the table. Of `considered` ones `fitting` fit in memory."""

    model: Transformer
    machine: DeviceRates
    devices: int
    batch: int
    rows: tuple[Division, ...]
    considered: int
    fitting: int

    @property
    def best(self) -> Division:
        """The fastest row."""
        return self.rows[0]

    @property
    def alike(self) -> tuple[Division, ...]:
        """The rows that predictions do not tell from the best: as fast within the mean error on held-out rows."""
        error = self.machine.efficiency.held_out_error or 0.0
        return tuple(row for row in self.rows if row.seconds <= (1 + error) * self.best.seconds)

    @property
    def axes(self) -> dict[str, int]:
        """The best row's mesh, from the nearest devices outwards; axes of one device are left out."""
        way = self.best.candidate
        return {axis: getattr(way, axis) for axis in way.order if getattr(way, axis) > 1}

    @property
    def trust(self) -> str:
        """How far predictions with these constants were off, and where they were compared with nothing."""
        efficiency = self.machine.efficiency
        if efficiency.held_out_error is None:
            return "compared with no measurement"
        error = f"mean error {100 * efficiency.held_out_error:.1f} % on held-out rows of dense models"
        if self.model.experts > 1:
            return f"{error}; mixtures of experts were predicted 25 and 30 % too fast"
        if self.machine.precision != efficiency.precision:
            return f"{error} in {efficiency.precision}; {self.machine.precision} was compared with nothing"
        return error

    @property
    def collectives(self) -> dict[str, CollectiveCost]:
        """What each axis of the best row sends, an item each: with its algorithm and what binds it."""
        return _collectives(self.model, self.machine.topology, self.best.candidate)

    @property
    def layouts(self) -> LayoutChoice | None:
        """How the operators of one block are split over the best row's tp, the same in each; None without tp."""
        way = self.best.candidate
        if way.tp == 1:
            return None
        block, extents = transformer_block(self.model, way.microbatch, outside=frozenset(("batch",)))
        return choose_layouts(block, extents, [SplitAxis("tp", way.tp, 1)], self.machine, split_weights=True)

    def apply(self, *, backend: str = "auto") -> AppliedPlan:
        """The best row as a mesh, the layouts of batches and of a block's weights, and the pipeline's schedule. On
        fewer ranks than devices the mesh is abstract; `backend="emulated"` has all of them in this process.

        Raises ArgumentError for a row whose experts are shared out: layouts are those of dense blocks.
        """
        way, layouts = self.best.candidate, self.layouts
        if way.ep > 1:
            raise ArgumentError(
                f"experts over {way.ep} devices have no layout in a plan", hints=["fixed={'ep': 1} plans without"]
            )
        block, _ = transformer_block(self.model, way.microbatch)
        weights, state = {}, {}
        for number, operator in enumerate(block):
            if True in operator.weights:
                dims = operator.operands[operator.weights.index(True)]
                split = ((),) * len(dims) if layouts is None else layouts.layouts[number].axes(dims)
                weights[operator.name] = spec_of(split, "dp" if way.zero == 3 else None)
                state[operator.name] = spec_of(split, "dp" if way.zero else None)
        count = self.batch // (way.dp * way.microbatch)
        return AppliedPlan(
            mesh_of({axis: getattr(way, axis) for axis in reversed(way.order)}, self.machine.topology.name, backend),
            spec_of((("dp",), ("cp",))),
            weights,
            state,
            way.pp * way.chunks,
            count,
            None if way.pp == 1 else way.schedule,
        )

    def timeline(self) -> Timeline:
        """The best row's pipeline, simulated with its predicted times. Raises ArgumentError where it has none."""
        way = self.best.candidate
        if way.pp == 1:
            raise ArgumentError("the best row has no pipeline", hints=["fixed={'pp': 4} plans with one"])
        count = self.batch // (way.dp * way.microbatch)
        shares = self.best.shares
        work = self.best.seconds - shares["bubble"] - shares["data"] - shares["optimizer"]
        program = work / count / way.chunks
        weights = shares["products"] / 3 / count / way.chunks
        forward = (program - weights) / 2
        times = ProgramTimes(forward, program - forward - weights, weights)
        return simulate(schedule(way.schedule, way.pp, count, way.chunks), times)

    def __str__(self) -> str:
        """The table, reasons and where the constants stand."""
        way, system = self.best.candidate, self.machine.topology
        lines = [
            f"plan of {self.model.name} ({self.model.parameters / 1e9:.1f} G parameters), batch {self.batch}, "
            f"on {self.devices} of {system.name}: all times and bytes are predicted",
            f"constants: {self.machine.efficiency.source}; {self.trust}",
            f"{self.considered} candidates, {self.fitting} fit in {self.machine.memory / 2**30:.0f} GiB",
            "",
            *_table(self.rows, self.batch * self.model.sequence),
            "",
            *(f"- {reason}" for reason in self.reasons),
        ]
        for axis, found in self.collectives.items():
            lines.append(f"- {axis}: {found}")
        if self.layouts is not None:
            splits = ", ".join(
                f"{layout.operator} by {layout.split['tp'] or 'none'}" for layout in self.layouts.layouts
            )
            lines.append(f"- tp splits in each block: {splits}")
        if way.pp > 1:
            lines.append(f"- the pipeline: {way.schedule}, `timeline()` simulates it")
        return "\n".join(lines)

    @property
    def reasons(self) -> list[str]:
        """Why the best row is the best, and what the others lose."""
        best = self.best
        found = [
            f"{_name(best.candidate)} is bound by {best.bound} ({100 * best.shares[best.bound] / best.seconds:.0f} %)"
        ]
        for row in self.rows[1:]:
            loss = {name: row.shares[name] - best.shares[name] for name in best.shares}
            most = max(loss, key=lambda name: loss[name])
            slower = 100 * (row.seconds / best.seconds - 1)
            found.append(f"{_name(row.candidate)} is {slower:.1f} % slower: {most} {1e3 * loss[most]:+.3g} ms")
        if len(self.alike) > 1 and self.machine.efficiency.held_out_error is not None:
            error = 100 * self.machine.efficiency.held_out_error
            found.append(f"the first {len(self.alike)} are within {error:.1f} %, the mean error: their order is open")
        for row in self.rows:
            found += _uneven(self.model, row.candidate)
            if row.spare:
                found.append(
                    f"{row.candidate.devices} of {self.devices} devices, {row.spare} spare: {_name(row.candidate)}"
                )
        if best.candidate.tp > 1:
            found.append(
                "tp: each all-reduce is a reduce-scatter and an all-gather; nothing is saved on the wire, but norms "
                f"and residuals between them run on 1/{best.candidate.tp} of the tokens"
            )
        return list(dict.fromkeys(found))


def plan(
    model: Transformer,
    *,
    batch: int,
    system: Topology | str = "gb200-nvl72",
    devices: int | None = None,
    memory: float | None = None,
    precision: str = "bf16",
    fixed: Mapping[str, object] | None = None,
    offload: bool = False,
    rows: int = _SHOWN,
) -> MeshPlan:
    """The best ways to train `model` with `batch` sequences a step on `devices` of a system (all of them without).

    `memory` bounds a device's bytes (its own less 5 % without), `fixed` holds choices ("tp", "schedule", ...),
    `offload` admits keeping half of the activations on the host. Rows differ in how they divide; also fewer devices
    are tried, a power of two and a multiple of eight.

    Raises ArgumentError where nothing can be planned, MemoryLimitError where nothing fits.
    """
    if batch < 1:
        raise ArgumentError(f"a batch of {batch} sequences")
    count, device, limit = place(system, devices, memory, precision)
    found: list[Division] = []
    considered = fitting = 0
    least = np.inf
    for used in dict.fromkeys((count, count // 8 * 8 or count, 1 << (count.bit_length() - 1))):
        some = enumerate_candidates(model, used, batch, offload=offload and device.host > 0, fixed=fixed or {})
        considered += len(some)
        if len(some):
            needed = memory_bytes(model, device, some, batch)
            least = min(least, float(needed.min()))
            fits = needed <= limit
            fitting += int(fits.sum())
            found += _best(model, device, some.take(fits), needed[fits], batch, count - used, rows)
    if not considered:
        raise ArgumentError(
            f"nothing divides batch {batch} and {model.name} over {count} devices with {dict(fixed or {})}",
            hints=["dp must divide the batch; tp is at most the heads, pp at most the layers"],
        )
    if not found:
        raise _too_large(model, limit, least, count)
    kept = _shown(sorted(found, key=lambda row: row.seconds), rows)
    return MeshPlan(model, device, count, batch, kept, considered, fitting)


def place(
    system: Topology | str, devices: int | None, memory: float | None, precision: str
) -> tuple[int, DeviceRates, float]:
    """The number of devices, what each does, and the bytes that it may keep. Raises ArgumentError where none are."""
    found = topology(system) if isinstance(system, str) else system
    count = found.devices if devices is None else devices
    if not 0 < count <= found.devices:
        raise ArgumentError(f"{count} devices of {found.name}, which has {found.devices}")
    if found.device is None or found.device not in EFFICIENCIES:
        known = ", ".join(name for name, other in TOPOLOGIES.items() if other.device in EFFICIENCIES)
        raise ArgumentError(f"{found.name} has no fitted constants", hints=[f"there are some for {known}"])
    rates = device_rates(found, precision, EFFICIENCIES[found.device], memory)
    return count, rates, (1 - _RESERVE) * rates.memory if memory is None else memory


def _too_large(model: Transformer, limit: float, least: float, devices: int) -> MemoryLimitError:
    return MemoryLimitError(
        f"{model.name} fits in no way on {devices} devices: {least / 2**30:.1f} GiB a device are needed at least, "
        f"{limit / 2**30:.1f} are there",
        hints=["more devices, a smaller batch or sequence, or fewer choices in fixed="],
    )


def _best(
    model: Transformer,
    device: DeviceRates,
    some: PlanCandidates,
    needed: np.ndarray[tuple[int], np.dtype[np.float64]],
    batch: int,
    spare: int,
    rows: int,
) -> list[Division]:
    """The fastest candidate of each division, the fastest divisions first."""
    if not len(some):
        return []
    times = step_times(model, device, some, batch)
    total = times.total
    divisions: dict[tuple[int, ...], int] = {}
    for index in np.argsort(total, kind="stable"):
        divisions.setdefault(
            (some.tp[index], some.pp[index], some.dp[index], some.cp[index], some.ep[index]), int(index)
        )
        if len(divisions) == rows:
            break
    return [
        Division(some[index], float(total[index]), _shares(times, index), float(needed[index]), spare)
        for index in divisions.values()
    ]


def _shares(times: StepTimes, index: int) -> dict[str, float]:
    return {field.name: float(getattr(times, field.name)[index]) for field in fields(times)}


def _shown(rows: Sequence[Division], count: int) -> tuple[Division, ...]:
    """The first rows; the best of all devices and the best with spare ones are both among them."""
    kept = list(rows[:count])
    for spare in (False, True):
        best = next((row for row in rows if bool(row.spare) == spare), None)
        if best is not None and best not in kept:
            kept = [*kept[: count - 1], best]
    return tuple(sorted(kept, key=lambda row: row.seconds))


def _table(rows: Sequence[Division], tokens: int) -> list[str]:
    names = ("tp", "pp", "dp", "cp", "ep", "zero", "recompute", "microbatch", "schedule")
    table = [[*names, "devices", "s/step", "tokens/s/device", "GiB", "bubble", "exposed transfers", "bound"]]
    for row in rows:
        way = row.candidate
        sent = sum(row.shares[name] for name in ("tensor", "context", "experts", "pipeline", "data", "host"))
        name = f"{way.schedule} x{way.chunks}" if way.chunks > 1 else way.schedule
        table.append(
            [
                *(str(getattr(way, field)) for field in names[:-1]),
                name,
                str(way.devices),
                f"{row.seconds:.4g}",
                f"{tokens / row.seconds / way.devices:.4g}",
                f"{row.memory / 2**30:.1f}",
                f"{100 * row.shares['bubble'] / row.seconds:.1f} %",
                f"{100 * sent / row.seconds:.1f} %",
                row.bound,
            ]
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]


def _name(way: Parallelism) -> str:
    parts = [f"{axis} {getattr(way, axis)}" for axis in ("tp", "pp", "dp", "cp", "ep") if getattr(way, axis) > 1]
    return " x ".join(parts) or "one device"


def _uneven(model: Transformer, way: Parallelism) -> list[str]:
    found = []
    if model.heads % way.tp:
        most = -(-model.heads // way.tp)
        loss = 100 * (most * way.tp / model.heads - 1)
        found.append(
            f"tp {way.tp} leaves {model.heads} heads uneven: the fullest has {most}, {loss:.0f} % more than even"
        )
    stages = way.pp * way.chunks
    if model.layers % stages and (model.layers + 2) % stages:
        most = -(-model.layers // stages) * way.chunks
        found.append(f"pp {way.pp} leaves {model.layers} layers uneven: the fullest stage has {most}")
    return found


def _collectives(model: Transformer, system: Topology, way: Parallelism) -> dict[str, CollectiveCost]:
    columns = PlanCandidates.of([way])
    tokens = way.microbatch * model.sequence / way.cp
    weights = 2.0 * (model.layers * model.block_parameters / way.ep + model.embedding_parameters) / (way.tp * way.pp)
    found = {}
    if way.tp > 1:
        found["tp"] = cost(system, "all_reduce", 2.0 * tokens * model.hidden, way.tp, int(columns.stride("tp")[0]))
    if way.cp > 1:
        keys = 4.0 * tokens * way.cp * model.keys / way.tp
        found["cp"] = cost(system, "all_gather", keys, way.cp, int(columns.stride("cp")[0]))
    if way.pp > 1:
        found["pp"] = cost(system, "permute", 2.0 * tokens * model.hidden / way.tp, 2, int(columns.stride("pp")[0]))
    if way.dp > 1:
        kind: Collective = "all_gather" if way.zero == 3 else "all_reduce"
        found["dp"] = cost(system, kind, weights, way.dp, int(columns.stride("dp")[0]))
    return found
