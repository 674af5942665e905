"""From the specification of a product to its problem on CPUs, for extents and workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from tessera.scheduling.families.family import Poser, Problem, like
from tessera.scheduling.families.product.forms import panels_of
from tessera.scheduling.families.product.norms import row_values
from tessera.scheduling.families.product.problem import ContractionProblem
from tessera.scheduling.families.rows.scratch import operation_cost
from tessera.scheduling.language.expression import post_order
from tessera.scheduling.language.pressure import live_values
from tessera.scheduling.lowering.spec import QUAD, ContractionSpec, exact_load, under_cast, unit_axis
from tessera.target import Target


def product_poser(spec: ContractionSpec, target: Target) -> Poser:
    """What poses the problems of a product for extents and workers."""
    raw_a, raw_b = under_cast(spec.a), under_cast(spec.b)
    a_contiguous, b_contiguous = unit_axis(spec.a, spec.arguments, ""), unit_axis(spec.b, spec.arguments, "")
    epilogue = len(post_order(output.value for output in spec.outputs)) - 1
    constant = exact_load(spec.b)
    packed = None if constant is None else spec.arguments[constant.argument].panels
    walks = max((value.stage for value in row_values(spec.a)), default=0)
    prologue = [value for value in post_order([spec.a]) if "k" in value.axes or value.is_reduction]

    some = ContractionProblem(
        m=1,
        n=1,
        k=1,
        batch=1,
        a_dtype=raw_a.dtype,
        b_dtype=raw_b.dtype,
        out_dtype=spec.outputs[0].value.dtype,
        accumulator=spec.accumulator.dtype,
        a_contiguous=a_contiguous,
        b_contiguous=b_contiguous,
        a_mapped=raw_a.operation != "load",
        b_mapped=packed is None and raw_b.operation != "load",
        outputs=len(spec.outputs),
        epilogue_operations=epilogue,
        target=target,
        workers=1,
        native_bf16=target.multiplies_bf16_pairs if packed is None else packed.group == 2,
        b_panels=0 if packed is None else packed.width,
        quads=packed is not None and packed.group == QUAD,
        products=len(spec.products),
        a_walks=walks,
        a_instructions=sum(operation_cost(value) for value in prologue) if walks else 0,
        epilogue_live=max(1, live_values(post_order(output.value for output in spec.outputs))),
    )

    panels = lru_cache(maxsize=1 << 10)(lambda n: panels_of(spec, n, target))

    def pose(extents: Mapping[str, int], workers: int) -> Problem:
        shared = panels(extents["n"])
        return like(
            some,
            m=extents["m"],
            n=extents["n"],
            k=extents["k"],
            shared_panels=0 if shared is None else shared[1].panels.width,
            shared_quads=shared is not None and shared[1].panels.group == QUAD,
            batch=math.prod([extents[axis] for axis in spec.batch]),
            workers=workers,
        )

    return pose
