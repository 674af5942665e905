"""Fitting the constants of the model of steps to published rows, and what it then says of the others.

The constants that plans use are those of `EFFICIENCIES`; a test fits them again and compares. Errors are those of rows
that were not fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from tessera.sharding.planner.candidates import Parallelism, PlanCandidates
from tessera.sharding.planner.communication import Numbers
from tessera.sharding.planner.rates import Efficiency, device_rates
from tessera.sharding.planner.step_time import step_times
from tessera.sharding.planner.transformer import Transformer
from tessera.sharding.published.tables import table
from tessera.target.topology import Topology, topology

_ASSUMED = "attention, memory and hidden transfers assumed"
EFFICIENCIES: Final[Mapping[str, Efficiency]] = {
    "A100-SXM4-80GB": Efficiency(
        0.8249, 0.7, 1.0, 0.4987, 0.0, 0.0, 0.0, "Korthikanti et al., table 5, fitted to 22B and 175B", 0.0237
    ),
    "GB200": Efficiency(
        0.5106,
        0.7,
        0.8,
        1.0,
        0.9,
        0.9,
        0.9,
        f"Megatron-Bridge 25.11, fitted to Llama3-8B on 8 GPUs; {_ASSUMED}",
        0.0111,
        "fp8",
    ),
    "H100-SXM5-80GB": Efficiency(
        0.5106, 0.7, 0.8, 1.0, 0.9, 0.9, 0.9, f"as fitted to GB200, compared with no H100; {_ASSUMED}"
    ),
}
"""By device. The A100's `memory` ended at its bound of 1: the model's streams are more than what the kernels move."""


class Published(NamedTuple):
    """A published training step: what was run how, and its seconds."""

    name: str
    model: Transformer
    candidate: Parallelism
    topology: Topology
    precision: str
    batch: int
    seconds: float

    def predicted(self, efficiency: Efficiency) -> float:
        """Seconds that the model says."""
        device = device_rates(self.topology, self.precision, efficiency)
        times = step_times(self.model, device, PlanCandidates.of([self.candidate]), self.batch)
        return float(times.total[0])

    def error(self, efficiency: Efficiency) -> float:
        """Predicted by published, less 1."""
        return self.predicted(efficiency) / self.seconds - 1


def korthikanti() -> list[Published]:
    """Table 5: four models, each with full recomputation, and with sequence parallelism and selective recomputation."""
    read = table("korthikanti")
    found = []
    for row in read["rows"]:
        model = Transformer(
            layers=row["layers"],
            hidden=row["hidden"],
            heads=row["heads"],
            feedforward=4 * row["hidden"],
            vocabulary=read["vocabulary"],
            sequence=read["sequence"],
            fused_attention=False,
            causal=False,
            dropout=True,
            name=row["model"],
        )
        schedule = "none" if row["pp"] == 1 else "interleaved" if row["chunks"] > 1 else "1f1b"
        for mode in ("full", "selective"):
            way = Parallelism(
                tp=row["tp"],
                pp=row["pp"],
                zero=0,
                recompute=mode,
                microbatch=row["microbatch"],
                schedule=schedule,
                chunks=row["chunks"],
                sequence_parallel=mode == "selective",
            )
            system = topology(read["topology"])
            found.append(Published(row["model"], model, way, system, "bf16", row["batch"], row[f"{mode}_s"]))
    return found


def megatron_bridge() -> list[Published]:
    """The Llama 3 rows and the mixtures, in the table's order; racks are joined as two of them are."""
    read = table("megatron_bridge")
    pair = topology("gb200-nvl72x2")
    racks = replace(pair, levels=(pair.levels[0], replace(pair.levels[1], size=4)), validated_from=None)
    found = []
    for row in read["rows"]:
        devices = row["devices"]
        way = Parallelism(
            tp=row["tp"],
            pp=row["pp"],
            dp=devices // (row["tp"] * row["pp"] * row["cp"]),
            cp=row["cp"],
            ep=row["ep"],
            zero=3 if row["fsdp"] else 1,
            recompute="offload" if row["offloaded_layers"] else "none",
            microbatch=row["microbatch"],
            schedule="none" if row["pp"] == 1 else "interleaved",
            chunks=row["chunks"],
        )
        model = Transformer(**read["models"][row["model"]], sequence=row["sequence"], gated=True, name=row["model"])
        system = topology("gb200-nvl72") if devices <= 72 else racks
        seconds = row["batch"] * row["sequence"] / devices / row["tokens_per_s"]
        found.append(Published(row["model"], model, way, system, row["precision"], row["batch"], seconds))
    return found


def fit(rows: Sequence[Published], start: Efficiency, free: Mapping[str, tuple[float, float]]) -> Efficiency:
    """`start` with the constants of `free` (name -> bounds) at the least squares of the logarithms of the rows' times.

    Levenberg and Marquardt's steps, cut at the bounds.
    """
    names = list(free)
    low, high = (np.array([free[name][side] for name in names]) for side in (0, 1))

    def at(values: Numbers) -> Efficiency:
        changed: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
        return replace(start, **changed)

    def errors(values: Numbers) -> Numbers:
        return np.array([np.log1p(row.error(at(values))) for row in rows])

    here = np.array([getattr(start, name) for name in names])
    residual, damping = errors(here), 1e-3
    for _ in range(40):
        probe = np.where(here + 1e-5 <= high, 1e-5, -1e-5)
        slopes = np.stack([(errors(here + step) - residual) / step.sum() for step in np.diag(probe)], axis=1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(names)), -slopes.T @ residual)
        there = np.clip(here + step, low, high)
        found = errors(there)
        if found @ found < residual @ residual:
            done = bool(np.abs(there - here).max() < 1e-7)
            here, residual, damping = there, found, damping / 4
            if done:
                break
        else:
            damping *= 4
            if damping > 1e4:  # nothing near is better, or all free constants are at their bounds
                break
    return at(here)


def errors(rows: Iterable[Published], efficiency: Efficiency) -> dict[str, float]:
    """Signed errors by the rows' names and ways of recomputing."""
    return {f"{row.name} {row.candidate.recompute}": row.error(efficiency) for row in rows}
