"""What legality rules are told about the specifications of `specs`, and a small CPU for them."""

from __future__ import annotations

from dataclasses import replace

from tessera.dtypes import DType
from tessera.scheduling.families.product.norms import row_values
from tessera.scheduling.families.product.space import ContractionProblem
from tessera.scheduling.families.rows.scratch import kept_values, made_again
from tessera.scheduling.families.rows.space import MapReduceProblem
from tessera.scheduling.families.rows.transposed import transposed_axis
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.lowering.spec import ContractionSpec, MapReduceSpec, unit_axis
from tessera.target import CoreFacts, MemoryLevel, Target

AVX2 = Target(
    kind="cpu",
    arch="haswell",
    name="a CPU",
    features=frozenset({"avx2", "fma"}),
    vector_bits=256,
    vector_registers=16,
    cores=2,
    processors=2,
    memory=(MemoryLevel("L1", 32 << 10, 64, 1), MemoryLevel("L2", 1 << 20, 64, 1), MemoryLevel("L3", 32 << 20, 64, 2)),
    machine="x86_64",
)
AVX512 = replace(AVX2, vector_bits=512, vector_registers=32)
AMX = replace(
    AVX512,
    arch="sapphirerapids",
    features=frozenset(
        "64bit cmov cx8 sse sse2 sse3 ssse3 sse4.1 sse4.2 popcnt avx f16c avx2 fma bmi bmi2 avx512f avx512bw avx512dq "
        "avx512vl avx512vnni avx512bf16 amx-tile amx-bf16 amx-int8".split()
    ),
)

ZEN4_CORE = CoreFacts(1, 4, 1, 4, 1, 1 / 3.5e9, 64, 16, 1.1e-6, source="AMD, Software Optimization Guide for Zen 4")
"""Its 512-bit operations are split, so that one begins in a cycle (section 2.11)."""


def _raw(value: Value) -> Value:
    return value.arguments[0] if value.operation == "cast" else value


def contraction_problem(
    spec: ContractionSpec, m: int, n: int, k: int, batch: int = 1, target: Target = AVX2, native_bf16: bool = False
) -> ContractionProblem:
    """The problem of a specification at some extents."""
    a, b = _raw(spec.a), _raw(spec.b)
    out: DType = spec.outputs[0].value.dtype
    return ContractionProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_dtype=a.dtype,
        b_dtype=b.dtype,
        out_dtype=out,
        accumulator=spec.accumulator.dtype,
        a_contiguous=unit_axis(spec.a, spec.arguments, ""),
        b_contiguous=unit_axis(spec.b, spec.arguments, ""),
        a_mapped=a.operation != "load",
        b_mapped=b.operation != "load",
        outputs=len(spec.outputs),
        epilogue_operations=len(post_order(output.value for output in spec.outputs)) - 1,
        target=target,
        workers=2,
        native_bf16=native_bf16,
        a_walks=max((value.stage for value in row_values(spec.a)), default=0),
    )


def map_reduce_problem(spec: MapReduceSpec, rows: int, columns: int, target: Target = AVX2) -> MapReduceProblem:
    """The problem of a specification over a matrix of fp32."""
    by_rows = spec.reduced == spec.lanes
    values = post_order(output.value for output in spec.outputs)
    reduced = columns if by_rows else rows
    kept = kept_values(spec)
    return MapReduceProblem(
        outer=rows if by_rows or spec.reduced is None else 1,
        reduced=1 if spec.reduced is None else reduced,
        lanes=columns,
        by_rows=by_rows,
        bytes_in=4 * rows * columns,
        bytes_out=4 * rows * columns,
        passes=max(output.value.stage for output in spec.outputs) + 1,
        dear=len(kept),
        again=sum(made_again(value, spec.reduced or "", kept) for value in kept),
        live=max(1, sum(value.is_reduction for value in values)),
        flops=len(values),
        target=target,
        workers=2,
        rows=rows if transposed_axis(spec) is not None else 0,
    )
