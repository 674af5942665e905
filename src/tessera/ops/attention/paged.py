"""Attention to keys and values that lie in pages of a pool: `paged_attention`.

    key j of sequence s      = K[table[s, j / page], :, j % page],   j < lengths[s]
    scores[s, h, i, j]       = scale * <q[s, h, i], key j>, capped: cap * tanh(scores / cap)
    result[s, h, i]          = sum_j softmax(scores[s, h, i])[j] value j

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023). The queries are
the last ones of their sequence: with `causal` query i sees the keys j <= i + lengths[s] - queries, and of a `window`
those j > i + lengths[s] - queries - window. A query that sees no key gives 0.

What lies past a length may be anything, also in the table. Kernels take an entry for the nearest page there
is, and a length for what the table has room for; `calls` refuse such operands where they lie on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, accumulator, fp64, int64
from tessera.errors import IndexRangeError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.node import leaf_node
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, filled, literal
from tessera.ops.applications import pages as applications
from tessera.ops.attention import records, scoring
from tessera.ops.attention.gradients import scored_gradient
from tessera.ops.attention.scoring import SCORE, ScoreRecording, Scoring
from tessera.ops.emitter import Emitter, V
from tessera.ops.extension import same_shape_result
from tessera.ops.indexing.records import refuse_out_of_range
from tessera.ops.library import define
from tessera.ops.record import Named, Operator, Typed, dtype_error, elements, register

N: TypeAlias = Any

NAME = "paged_attention"

# -- rules ------------------------------------------------------------------------------------------------------------


def _operand_dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Those of attention; tables and lengths as they are, int32 or int64. Raises DTypeError."""
    numbers = operands[4:]
    if any(number.dtype.kind != "int" or number.dtype.itemsize < 4 for number in numbers):
        raise dtype_error(name, operands, "a table and lengths are int32 or int64", ["cast them to int32"])
    return [*records.operand_dtypes(name, operands[:4], attributes), *(number.dtype for number in numbers)]


def _flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """Of the two products, over all keys that tables have room for: how many there are, the data say."""
    head, value_head = operands[0].shape[-1], result.shape[-1]
    keys = operands[4].shape[1] * operands[1].shape[2]
    return 2 * keys * (head + value_head) * elements(result.shape[:-1])


def _bytes_moved(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """The pages that tables have room for, and all else once."""
    q, k, v, _, table, lengths = operands
    page = sum(elements(x.shape[1:]) * x.dtype.itemsize for x in (k, v))
    others = sum(elements(x.shape) * x.dtype.itemsize for x in (q, table, lengths, result))
    return elements(table.shape) * page + others


def _full_tables(shapes: Sequence[Shape]) -> dict[int, tuple[int, int]]:
    """Pages that there are, and lengths for which there is just room, as `_flops` counts them."""
    _, (pages, _, page, _), _, _, (_, columns), _ = shapes
    return {4: (0, max(pages, 1)), 5: (columns * page, columns * page + 1)}


def _steps(soft_cap: float, dtype: DType, hides: bool = False) -> Scoring:
    """The steps that cap scores in `dtype`, none where the cap is 0; and those that hide what the first operand beside
    the score says is not seen.
    """
    recording, last = ScoreRecording(), SCORE
    if soft_cap:
        cap = recording.constant(soft_cap, dtype)
        bent = recording.step("tanh", (recording.step("div", (SCORE, cap), {}, dtype),), {}, dtype)
        last = recording.step("mul", (bent, cap), {}, dtype)
    if hides:
        last = recording.step("where", (1, last, recording.constant(-math.inf, dtype)), {}, dtype)
    return () if last == SCORE else recording.ending_in(last, dtype)


# -- reference --------------------------------------------------------------------------------------------------------


def _reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    causal: bool,
    soft_cap: float,
    window: int,
) -> torch.Tensor:
    page, queries = k.shape[2], q.shape[2]
    room = table.shape[1] * page if k.shape[0] else 0
    ends = lengths.long().clamp(0, room)[:, None, None, None]
    at, first = torch.arange(room), torch.arange(queries)[:, None] + ends - queries
    exists = at < ends
    keys, values = (
        torch.where(exists.mT, x[table.long().clamp(0, max(k.shape[0] - 1, 0))].transpose(1, 2).flatten(2, 3), 0.0)
        if room
        else x.new_zeros((len(table), x.shape[1], 0, x.shape[3]))
        for x in (k, v)
    )
    products, values = records.reference_products(q, keys, values, scale)
    seen = exists & ((at <= first) if causal else True) & ((at > first - window) if window else True)
    scores = scoring.referred(_steps(soft_cap, fp64), products, ())
    return records.reference_means(torch.where(seen, scores, float("-inf")), values)


# -- gradient ---------------------------------------------------------------------------------------------------------


def _gradient(
    g: N, operands: tuple[N, ...], out: N, *, causal: bool, soft_cap: float, window: int
) -> tuple[N | None, ...]:
    """That of attention to copies of the pages that tables name; pages get the sums of what their copies get."""
    q, k, v, scale, table, lengths = operands
    pages, _, page, _ = k.shape
    room = table.shape[1] * page
    if 0 in (pages, room, *q.shape, *v.shape):
        return *(filled(0, x) for x in (q, k, v)), None if scale.structure.weak else filled(0, scale), None, None
    ends = call("clamp", _over_scores(lengths), minimum=0, maximum=room)
    at = _counted((1, 1, 1, room), q)
    exists = at < ends
    first = _counted((1, 1, q.shape[2], 1), q) + (ends - q.shape[2])
    seen = call("logical_and", exists, at <= first) if causal else exists
    seen = call("logical_and", seen, at > first - window) if window else seen
    is_read = _counted((1, table.shape[1]), q) * page < call("reshape", ends, shape=(lengths.shape[0], 1))
    table = call("clamp", call("cast", table, dtype=int64), minimum=0, maximum=pages - 1)
    table = call("where", is_read, table, literal(0, int64))
    kept = call("reshape", exists, shape=(exists.shape[0], 1, room, 1))
    keys, values = (call("where", kept, _copied(x, table), literal(0, x.dtype)) for x in (k, v))
    made_of = (q, keys, values, scale, seen)
    steps = _steps(soft_cap, accumulator(q.dtype), hides=True)
    d_q, d_k, d_v, d_scale, _ = scored_gradient(g, made_of, out, scores=steps)
    return d_q, *(None if d is None else _put_back(d, table, x) for d, x in ((d_k, k), (d_v, v))), d_scale, None, None


def _over_scores(lengths: N) -> N:
    return call("reshape", call("cast", lengths, dtype=int64), shape=(lengths.shape[0], 1, 1, 1))


def _counted(shape: Shape, like: N) -> N:
    """The numbers of places along the one dimension of a shape that is not 1."""
    return leaf_node(on_device(from_torch(torch.arange(math.prod(shape)).reshape(shape)), like.structure.device or CPU))


def _copied(x: N, table: N) -> N:
    """The pages of each sequence one behind the other, [sequences, heads, keys, size]."""
    sequences, most = table.shape
    _, heads, page, size = x.shape
    taken = call("transpose", call("take", x, table, what=NAME, axis=0), permutation=(0, 2, 1, 3, 4))
    return call("reshape", taken, shape=(sequences, heads, most * page, size))


def _put_back(d: N, table: N, x: N) -> N:
    """The sums, for each page, of the cotangents of its copies."""
    sequences, most = table.shape
    pages, heads, page, size = x.shape
    parts = call("reshape", d, shape=(sequences, heads, most, page, size))
    parts = call("transpose", parts, permutation=(0, 2, 1, 3, 4))
    return call("put_sum", parts, table, what=NAME, axis=0, extent=pages)


# -- body -------------------------------------------------------------------------------------------------------------


def _body(
    e: Emitter[V],
    q: V,
    k: V,
    v: V,
    scale: V,
    table: V,
    lengths: V,
    *,
    causal: bool,
    soft_cap: float,
    window: int,
) -> V:
    steps = _steps(soft_cap, accumulator(q.dtype))
    scored = (lambda score: scoring.emitted(steps, e, score, ())) if steps else None
    return e.attend_pages(q, k, v, scale, table, lengths, causal, window, scored)


PAGED_ATTENTION = register(
    Operator(
        name=NAME,
        family="paged_attention",
        arity=(6, 6),
        operand_dtypes=_operand_dtypes,
        flops=_flops,
        bytes_moved=_bytes_moved,
        reference=_reference,
        gradient=_gradient,
        body=_body,
        title="PagedAttn",
        attributes={"causal": False, "soft_cap": 0.0, "window": 0},
        integers=_full_tables,
    )
)

# -- checked_pages ----------------------------------------------------------------------------------------------------


def refuse_pages(table: torch.Tensor, lengths: torch.Tensor, pages: int, page: int) -> torch.Tensor:
    """The table, 0 where no sequence of these lengths reads it. Raises IndexRangeError for a length that is no number
    of keys that the table has room for, and for the first entry that is read and names none of `pages`.
    """
    room = table.shape[1] * page
    if lengths.numel():
        least, most = torch.aminmax(lengths)
        if least < 0 or most > room:
            place = int(((lengths < 0) | (lengths > room)).nonzero()[0])
            raise IndexRangeError(
                f"{NAME}: length {int(lengths[place])} of sequence {place}, whose row of the table names pages for "
                f"{room} keys",
                hints=["lengths count keys, those of the queries among them"],
            )
    is_read = torch.arange(table.shape[1], device=table.device) * page < lengths[:, None]
    read = torch.where(is_read, table, 0)
    if bool(is_read.any()):
        refuse_out_of_range(f"{NAME}: the table", read, pages)
    return read


def _checked(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    table, lengths = inputs
    outputs[0].copy_(refuse_pages(table, lengths, attributes["pages"], attributes["page"]))


def _checked_reference(table: torch.Tensor, lengths: torch.Tensor, *, pages: int, page: int) -> torch.Tensor:
    return refuse_pages(table, lengths, pages, page)


def _as_they_are(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def _no_gradient(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


define(
    "checked_pages",
    _checked,
    {"pages": 0, "page": 1},
    arity=(2, 2),
    operand_dtypes=_as_they_are,
    result=same_shape_result,
    reference=_checked_reference,
    gradient=_no_gradient,
    application=applications.of_checked_pages,
)
