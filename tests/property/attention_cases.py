"""What attention that is trained is made of, drawn: logarithms of sums, and cotangents."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st

from tessera.dtypes import DType, accumulator, bool_, dtype_of
from tessera.lazy.leaves.conversion import as_node
from tessera.ops import OPERATORS, Operator
from tessera.ops.algebra import call
from tessera.ops.attention.scoring import masking
from tessera.ops.attention.trained import LOGARITHMS
from tessera.ops.record import Shaped
from tests.property.library_cases import Case, drawn_operand, ordinary

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]


def trained_attention(draw: Draw, record: Operator, dtype: DType) -> Case:
    """Grouped heads, unequal lengths, masks that hide all from some queries, every layout."""
    length = st.sampled_from((1, 2, 5, 16, 33, 65, 129))
    queries, keys = draw(length), draw(st.sampled_from((0, 1, 3, 17, 64, 65, 150)))
    head, value_head = (draw(st.sampled_from((1, 3, 16, 24, 33))) for _ in range(2))
    batch, shared = draw(st.sampled_from(((1,), (2,), ()))), draw(st.integers(1, 2))
    heads, sums = shared * draw(st.sampled_from((1, 1, 3))), accumulator(dtype)
    of_queries = (*batch, heads, queries)
    q = ordinary(draw, dtype, (*of_queries, head))
    k, v = (ordinary(draw, dtype, (*batch, shared, keys, each)) for each in (head, value_head))
    scale = torch.tensor(draw(st.sampled_from((0.0, 0.1, 0.5))), dtype=sums.torch)
    masked = draw(st.booleans()) or record.name.endswith("_dx")
    shape = draw(st.sampled_from(((*of_queries, keys), (keys,), (queries, 1))))
    kind = dtype if record.name.endswith("_dx") else draw(st.sampled_from((bool_, dtype)))
    masks = [ordinary(draw, kind, shape)] if masked else []
    attributes: dict[str, Any] = {}
    if "causal" in record.attributes:
        attributes["causal"] = draw(st.booleans())
    if "scores" in record.attributes:
        attributes["scores"] = masking([dtype_of(mask.dtype) for mask in masks], sums)
    if "place" in record.attributes:
        attributes.update(place=1, along=draw(st.sampled_from(("q", "k", "qk"))))
    operands = [q, k, v, scale, *masks]
    if record.family == "attention_gradient":
        # Any cotangent and any mean, but the logarithms of these scores: weights are at most 1.
        wide = [x if x.dtype == torch.bool else x.double() for x in operands]
        logarithms = OPERATORS[LOGARITHMS].reference(*wide, causal=attributes["causal"]).to(sums.torch)
        g = ordinary(draw, dtype, (*of_queries, value_head))
        mean = ordinary(draw, sums, (*of_queries, 1))
        operands = [q, k, v, g, logarithms, mean, scale, *masks]
    sizes = [float(x.double().abs().max()) if x.numel() else 0.0 for x in operands[:4]]
    tensor = call(record.name, *map(as_node, operands), **attributes)
    terms = 4 + head + (queries + keys if "place" in attributes else 0)
    return Case(tensor, terms * (1 + math.prod(max(1.0, size) for size in sizes)) * (1 + value_head))


def paged_attention(draw: Draw, record: Operator, dtype: DType) -> Case:
    """What the record says that it is applied to: sequences of any length, pages that they share, every layout."""
    shape = tuple(
        draw(st.sampled_from(extents)) for extents in ((0, 1, 2, 3), (1, 2, 6), (1, 2, 9, 17), (1, 5, 16, 33))
    )
    application = record.apply_to(Shaped(shape, dtype), random.Random(draw(st.integers(0, 1 << 16))))
    assert application is not None
    operands = [drawn_operand(draw, wanted) for wanted in application.operands]
    values = operands[2].double().abs()
    largest = float(values.max()) if values.numel() else 0.0
    tensor = call(record.name, *map(as_node, operands), **application.attributes)
    return Case(tensor, (1 + largest) * (4 + shape[-1]))
