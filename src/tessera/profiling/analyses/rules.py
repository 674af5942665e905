"""The rules of `advise`: what to look for, which numbers show it, and what to do. Section 4 of the profiling guide for
GPUs, and what CPUs give figures for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars

Row = Mapping[str, Any]

WORTH_PCT: Final = 5.0
"""Share of the kernels' time from which a kernel is worth advice."""


@dataclass(frozen=True)
class Facts:
    """What the rules read. `kernels` has a row per kernel (`kernels.grouped`); `roofline` the rows of
    `Roofline.to_polars`, None where the device's ceilings are not known; `collectives` those of the analysis; `power` a
    row per device; `ranks` a row per rank: rank, busy_ms, span_ms, kernels. `processors` are a
    CPU's cores, `memory_gbps` the peak of DRAM or HBM, `clocks_us` how far the ranks' clocks may be apart; None where
    they are not known.
    """

    kernels: polars.DataFrame
    roofline: polars.DataFrame | None
    collectives: polars.DataFrame
    power: polars.DataFrame
    ranks: polars.DataFrame
    metadata: Mapping[str, Any]
    processors: int | None
    memory_gbps: float | None
    clocks_us: float | None


@dataclass(frozen=True)
class Finding:
    """What a rule has found: where, the share of the time that it concerns (0 to 100) if that is known, and the
    numbers.
    """

    subject: str
    share_pct: float | None
    evidence: str


@dataclass(frozen=True)
class AdviceRule:
    """A rule. `needs` are the columns of the trace without which it cannot be judged, `known` is the field of `Facts`
    without which it cannot, "" where there is none.
    """

    name: str
    remedy: str
    needs: tuple[str, ...]
    find: Callable[[Facts], Iterable[Finding]]
    known: Literal["", "roofline", "processors", "memory_gbps", "clocks_us"] = ""


def _of_kernels(names: tuple[str, ...], hit: Callable[[Row], bool], evidence: str) -> Callable[[Facts], list[Finding]]:
    """A finding for each kernel that is worth advice, has all of these values, and is hit."""

    def find(facts: Facts) -> list[Finding]:
        rows = facts.kernels.drop_nulls(names).filter(polars.col("share_pct") >= WORTH_PCT)
        return [
            Finding(row["kernel"], row["share_pct"], evidence.format(**row))
            for row in rows.iter_rows(named=True)
            if hit(row)
        ]

    return find


_PRODUCTS: Final = ("matmul", "gemm", "attention", "conv", "linear")
_MATRIX_DTYPES: Final = ("bf16", "fp16", "tf32", "fp8_e4m3", "fp8_e5m2", "int8")


def _is_product(row: Row) -> bool:
    return any(word in row["kernel"].lower() for word in _PRODUCTS)


def _uncoalesced(facts: Facts) -> Iterable[Finding]:
    peak = facts.memory_gbps or 0.0
    find = _of_kernels(
        ("mem_stall_pct", "dram_read_gbps", "dram_write_gbps"),
        lambda row: row["mem_stall_pct"] > 40 and row["dram_read_gbps"] + row["dram_write_gbps"] < 0.4 * peak,
        f"{{mem_stall_pct:.0f}} % memory stalls at {{dram_read_gbps:.0f}} + {{dram_write_gbps:.0f}} of {peak:.0f} GB/s",
    )
    return find(facts)


def _exposed(facts: Facts) -> Iterator[Finding]:
    exposed = facts.collectives.filter(polars.col("exposed_ms").is_not_null())
    total_ms = sum(facts.ranks["busy_ms"].to_list()) + sum(exposed["exposed_ms"].to_list())
    for row in exposed.iter_rows(named=True):
        share = 100 * row["exposed_ms"] / total_ms
        if share >= WORTH_PCT:
            evidence = f"{_plain(row['exposed_ms'])} of {_plain(row['total_ms'])} ms run beside no kernel"
            yield Finding(_collective(row), share, f"{evidence}; overlap {row['overlap_pct']:.0f} %")


def _late(facts: Facts) -> Iterator[Finding]:
    for row in facts.collectives.filter(polars.col("skew_us").is_not_null()).iter_rows(named=True):
        if row["skew_us"] >= max(0.25 * row["median_us"], facts.clocks_us or 0.0):
            evidence = f"ranks arrive {_plain(row['skew_us'])} us apart, a call takes {_plain(row['median_us'])} us"
            yield Finding(_collective(row), None, evidence)


def _collective(row: Row) -> str:
    return row["collective"] if row["bytes"] is None else f"{row['collective']} of {row['bytes']:,.0f} bytes"


def _throttled(facts: Facts) -> Iterator[Finding]:
    for row in facts.power.filter(polars.col("throttled_pct") > 1).iter_rows(named=True):
        evidence = f"{row['throttled_pct']:.0f} % of {_plain(row['span_s'])} s: {row['throttle_reasons']}"
        yield Finding(_device(row), row["throttled_pct"], evidence)


def _bursts(facts: Facts) -> Iterator[Finding]:
    for row in facts.power.filter(polars.col("crest_factor") > 1.5).iter_rows(named=True):
        evidence = f"crest factor {row['crest_factor']:.2f}: {row['peak_w']:.0f} W at most, {row['mean_w']:.0f} W mean"
        yield Finding(_device(row), None, evidence)


def _device(row: Row) -> str:
    return f"{row['device'] or 'device'} of rank {row['rank']}"


def _below_bound(facts: Facts) -> Iterator[Finding]:
    for row in _bounded(facts):
        if row["efficiency_pct"] < 50:
            rate = f"{_plain(row['gflop_per_s'])} GFLOP/s, {_plain(row['achieved_gbps'])} GB/s"
            evidence = f"{row['efficiency_pct']:.0f} % of the bound by {row['binding']}: {rate}"
            yield Finding(_pointed(row), row["share_pct"], evidence)


def _memory_bound(facts: Facts) -> Iterator[Finding]:
    for row in _bounded(facts):
        if row["efficiency_pct"] >= 50 and row["binding"] in ("DRAM", "HBM", "L3"):
            evidence = (
                f"{row['efficiency_pct']:.0f} % of the bound by {row['binding']}, {_plain(row['intensity'])} FLOP/byte"
            )
            yield Finding(_pointed(row), row["share_pct"], evidence)


def _bounded(facts: Facts) -> Iterable[Row]:
    assert facts.roofline is not None  # the rules say that they need it
    worth = facts.roofline.filter(polars.col("share_pct") >= WORTH_PCT).drop_nulls("efficiency_pct")
    return worth.iter_rows(named=True)


def _pointed(row: Row) -> str:
    return f"{row['kernel']} {row['dtype']}".strip()


def _idle(facts: Facts) -> Iterator[Finding]:
    for row in facts.ranks.iter_rows(named=True):
        idle_ms, count = row["span_ms"] - row["busy_ms"], row["kernels"]
        if count < 2 or row["span_ms"] <= 0:
            continue
        pause_us, kernel_us = 1e3 * idle_ms / (count - 1), 1e3 * row["busy_ms"] / count
        share = 100 * idle_ms / row["span_ms"]
        if share >= 20 and kernel_us < 100:
            evidence = f"no kernel runs {share:.0f} % of {_plain(row['span_ms'])} ms: {_plain(kernel_us)} us a kernel"
            yield Finding(f"rank {row['rank']}", share, f"{evidence}, {_plain(pause_us)} us a pause")


def _plain(value: float) -> str:
    """Three significant digits, without an exponent for what is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _few_workers(facts: Facts) -> Iterator[Finding]:
    processors = min(facts.processors or 0, facts.metadata.get("threads") or math.inf)
    for row in facts.kernels.filter(polars.col("share_pct") >= WORTH_PCT).iter_rows(named=True):
        mean_us = 1e3 * row["total_ms"] / row["calls"]
        if row["workers"] is not None and row["workers"] * 2 <= processors and mean_us > 100:
            evidence = f"{_plain(row['workers'])} of {processors} cores for {_plain(mean_us)} us"
            yield Finding(row["kernel"], row["share_pct"], evidence)


def _few_threads(facts: Facts) -> Iterator[Finding]:
    threads, processors = facts.metadata.get("threads"), facts.processors or 0
    if threads is not None and threads * 2 <= processors:
        yield Finding("the process", None, f"kernels may use {threads} of {processors} cores")


def _uneven_ranks(facts: Facts) -> Iterator[Finding]:
    if len(facts.ranks) < 2:
        return
    busy = facts.ranks.sort("busy_ms")
    least, most = busy.row(0, named=True), busy.row(-1, named=True)
    if most["busy_ms"] > 1.2 * least["busy_ms"]:
        evidence = (
            f"{_plain(most['busy_ms'])} ms of kernels against {_plain(least['busy_ms'])} ms of rank {least['rank']}"
        )
        yield Finding(f"rank {most['rank']}", None, evidence)


def _dropped(facts: Facts) -> Iterator[Finding]:
    launched, recorded = facts.metadata.get("launched"), facts.metadata.get("recorded")
    if launched and recorded is not None and launched > recorded:
        reasons = facts.metadata.get("dropped_reasons", {})
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count) or "no reason given"
        evidence = f"{launched - recorded:,} of {launched:,} kernels are missing: {told}"
        yield Finding("the trace", 100 * (launched - recorded) / launched, evidence)


RULES: Final = (
    AdviceRule(
        "low-occupancy",
        "larger tiles, or fewer registers a thread (the knobs maxnreg, warps)",
        ("sm_occupancy", "mem_stall_pct"),
        _of_kernels(
            ("sm_occupancy", "mem_stall_pct"),
            lambda row: row["sm_occupancy"] < 0.25 and row["mem_stall_pct"] > 40,
            "occupancy {sm_occupancy:.2f}, {mem_stall_pct:.0f} % memory stalls",
        ),
    ),
    AdviceRule(
        "divergent-warps",
        "make branches uniform (op.where, sorted work), or reduce across the warp instead of through shared memory",
        ("warp_divergence_pct",),
        _of_kernels(
            ("warp_divergence_pct",),
            lambda row: row["warp_divergence_pct"] > 20,
            "{warp_divergence_pct:.0f} % of the branches diverge",
        ),
    ),
    AdviceRule(
        "uncoalesced-memory",
        "a blocked layout, wider loads (vectorize), asynchronous prefetch (pipeline_depth)",
        ("mem_stall_pct", "dram_read_gbps", "dram_write_gbps"),
        _uncoalesced,
        "memory_gbps",
    ),
    AdviceRule(
        "idle-tensor-cores",
        "shapes that are multiples of the MMA tile, bf16 or fp16 operands with fp32 sums, larger tiles",
        ("tc_util_pct",),
        _of_kernels(
            ("tc_util_pct",),
            lambda row: _is_product(row) and row["dtype"] in _MATRIX_DTYPES and row["tc_util_pct"] < 30,
            "tensor cores busy {tc_util_pct:.0f} %",
        ),
    ),
    AdviceRule(
        "exposed-collectives",
        "reduce-scatter and all-gather instead of all-reduce, fewer and larger buckets, on a stream of their own",
        ("collective_type",),
        _exposed,
    ),
    AdviceRule(
        "late-ranks",
        "even out the work before the collective; look at the rank that arrives last",
        ("collective_type",),
        _late,
        "clocks_us",
    ),
    AdviceRule(
        "throttled",
        "cap power or clocks evenly (DVFS), stagger the ranks' bursts, look at cooling",
        ("throttle_reason",),
        _throttled,
    ),
    AdviceRule(
        "power-bursts",
        "stagger the ranks or smooth the load: bursts are what power limits act on",
        ("power_w",),
        _bursts,
    ),
    AdviceRule(
        "below-the-bound",
        "tune it: op.autotune, or `tessera tune --model` for a script",
        ("flops", "bytes"),
        _below_bound,
        "roofline",
    ),
    AdviceRule(
        "memory-bound",
        "fuse it with its neighbours, use narrower dtypes: the arithmetic is not what takes the time",
        ("flops", "bytes"),
        _memory_bound,
        "roofline",
    ),
    AdviceRule(
        "launch-gaps",
        "evaluate more at once (eval(a, b), larger batches, @op.kernel), so that fewer calls come between kernels",
        ("dur_ns",),
        _idle,
    ),
    AdviceRule(
        "few-workers",
        "larger problems, or split_k: the work is not shared out over the cores",
        ("workers",),
        _few_workers,
        "processors",
    ),
    AdviceRule(
        "few-threads",
        "TESSERA_THREADS, OMP_NUM_THREADS or torch.set_num_threads allow no more: raise them where cores are free",
        (),
        _few_threads,
        "processors",
    ),
    AdviceRule(
        "uneven-ranks",
        "balance the ranks' shares: the others wait for the slowest",
        ("dur_ns",),
        _uneven_ranks,
    ),
    AdviceRule(
        "dropped-records",
        "raise TESSERA_PROFILE_RECORDS, or profile for a shorter time: the figures above miss these kernels",
        (),
        _dropped,
    ),
)
"""All rules, in the order of the guide."""
