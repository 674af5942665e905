"""Attention to pages of a program over merged axes, and what it computes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from tessera.rewrite.fusion.alignment import Alignment
from tessera.scheduling.binding.arrays import (
    ArrayLayout,
    ArrayRole,
    Arrays,
    Copy,
    LayoutFacts,
    Limits,
    Pattern,
    ShapedArrays,
    V,
    array_layout,
    columns_of,
    in_memory,
    layout_facts,
    numbered,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import Axes, Column, merge_axes
from tessera.scheduling.binding.regions import Region, read_region
from tessera.scheduling.families.attention.binding import AttentionRecorder, told_apart
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.spec import Argument

_INNER = {2: "q", 3: "v", 4: "k", 5: "d", 7: "p", 8: "t"}
"""The dimensions of a domain, sequences, heads, queries, size of a value, then keys of a page, size of a key, heads of
keys, pages, columns of the table, that keep their names."""


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays]:
    """Merges sequences and heads; heads that share keys and values are a dimension of their own, and the queries of a
    block where each sequence has one, as in `attention/binding.py`.
    """
    arrays = in_memory(arrays, copied)
    columns = columns_of(arrays, len(domain))
    shared = domain[6]
    group, own = domain[1] // max(shared, 1), columns[1]
    apart = tuple([stride * group + other for stride, other in zip(own, columns[6], strict=True)])
    extents: tuple[int, ...] = (domain[0], shared, group)
    batch: tuple[Column, ...] = (columns[0], apart, own)
    inner, inner_columns = [domain[place] for place in _INNER], [columns[place] for place in _INNER]
    joined = group > 1 and domain[2] == 1
    if joined:
        extents, batch = extents[:-1], batch[:-1]
        inner[0], inner_columns[0] = group, own
    merged = merge_axes(extents, batch)
    axes = Axes(merged.extents + tuple(inner), merged.columns + tuple(inner_columns))
    names = numbered("b", len(merged.extents), *_INNER.values())
    roles = tuple([_role(alignment, place >= len(region.loads)) for place, (_, alignment) in enumerate(arrays)])
    return arrays, shaped_arrays(_layout(layout_facts(names, axes, arrays), roles, joined), names, axes)


@lru_cache(maxsize=1 << 10)
def _role(alignment: Alignment, is_output: bool) -> ArrayRole:
    """Queries, pages, the table and the result walk all their inner axes; the last dimension is the usual contiguous
    one.
    """
    own = tuple([_INNER[place] for place in reversed(alignment) if place in _INNER])
    walked = frozenset(own if is_output or {"d", "v", "t"} & set(own) else ())
    return ArrayRole(walked, single=walked, contiguous=own)


@lru_cache(maxsize=1 << 12)
def _layout(facts: LayoutFacts, roles: tuple[ArrayRole, ...], joined: bool) -> ArrayLayout:
    names, _, _, _ = facts

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, names[: -len(_INNER)], None, "v", True, joined)

    return array_layout(pattern, facts, roles)


def paged_spec(region: Region, pattern: Pattern) -> PagedAttentionSpec:
    """The specification of attention to pages."""
    recorder = _Recorder(pattern.outer)
    outputs = read_region(region, pattern, recorder)
    assert recorder.attended is not None and recorder.pages is not None
    q, k, v, scale, mask, causal, means = recorder.attended
    table, lengths, window = recorder.pages
    return PagedAttentionSpec(
        region.name,
        pattern.arguments,
        pattern.outer,
        q,
        k,
        v,
        scale,
        mask,
        causal and not pattern.heads_as_queries,
        means,
        outputs,
        scoring=None if recorder.scoring is None else told_apart(recorder, recorder.scoring)[0],
        table=table,
        lengths=lengths,
        window=window,
        heads_as_queries=pattern.heads_as_queries,
    )


class _Recorder(AttentionRecorder):
    """A recorder that notes the table and the lengths of the one attention, too."""

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__(batch)
        self.pages: tuple[Value, Value, int] | None = None

    def attend_pages(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: Value,
        table: Value,
        lengths: Value,
        causal: bool,
        window: int,
        scored: Callable[[Value], Value] | None = None,
    ) -> Value:
        """The tile of weighted means."""
        self.pages = table, lengths, window
        return self.attend(q, k, v, scale, None, causal, scored)
