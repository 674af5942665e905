"""Attention of a program over merged axes, and what it computes there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from tessera.dtypes import accumulator
from tessera.rewrite.fusion.alignment import Alignment, beyond
from tessera.scheduling.binding.arrays import (
    ArrayLayout,
    ArrayRole,
    Arrays,
    Copy,
    LayoutFacts,
    Limits,
    Pattern,
    ShapedArrays,
    Tensor,
    V,
    array_layout,
    columns_of,
    layout_facts,
    numbered,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import Axes, merge_axes
from tessera.scheduling.binding.regions import Region, read_region
from tessera.scheduling.families.attention.functions import ScoreFunctions
from tessera.scheduling.families.attention.online_softmax import LOG2_E
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.lowering.spec import Argument, AttentionSpec, Scoring, Sums


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays]:
    """The arrays of attention: what is multiplied, in memory."""
    rank = len(domain) - 3
    sizes = {rank - 1, rank + 1}  # operands that are multiplied have a size of keys or values
    arrays = [
        (copied(tensor, None) if tensor.is_counted and sizes & set(place) else tensor, place)
        for tensor, place in arrays
    ]
    return arrays, attention_arrays(domain, arrays, len(region.loads))


def attention_arrays(domain: Sequence[int], arrays: Arrays[Tensor], loads: int) -> ShapedArrays:
    """Merges the batch dimensions of attention, heads among them; the others are called q, v, k and d.

    The domain is that of the result and then keys, size of a key, heads of K and V. Heads that share keys and values
    are a dimension of their own, which K and V do not walk: no kernel divides by how many they are.
    """
    rank = len(domain) - 3
    columns = columns_of(arrays, len(domain))
    extents, batch = tuple(domain[: rank - 2]), columns[: rank - 2]
    inner, inner_columns = tuple(domain[rank - 2 : -1]), columns[rank - 2 : -1]
    joined = False
    if rank > 2:
        shared = domain[-1]
        group = domain[rank - 3] // max(shared, 1)
        own = columns[rank - 3]
        apart = tuple([stride * group + other for stride, other in zip(own, columns[-1], strict=True)])
        extents, batch = (*extents[:-1], shared, group), (*batch[:-1], apart, own)
        joined = group > 1 and inner[0] == 1
        if joined:
            extents, inner = extents[:-1], (group, *inner[1:])
            batch, inner_columns = batch[:-1], (own, *inner_columns[1:])
    merged = merge_axes(extents, batch)
    axes = Axes(merged.extents + inner, merged.columns + inner_columns)
    names = numbered("b", len(merged.extents), "q", "v", "k", "d")
    facts = layout_facts(names, axes, arrays)
    roles = tuple([_role(alignment, rank, place >= loads) for place, (_, alignment) in enumerate(arrays)])
    return shaped_arrays(_attention_layout(facts, roles, joined), names, axes)


@lru_cache(maxsize=1 << 10)
def _role(alignment: Alignment, rank: int, is_output: bool) -> ArrayRole:
    """Q, K, V and the result are matrices, which have a size of keys or values, and walk both their axes; mask and
    scale are none. The last dimension is the usual contiguous one.
    """
    places = beyond("attention", rank)
    names = {rank - 2: "q", rank - 1: "v", places[1, "j"]: "k", places[1, "d"]: "d"}
    own = tuple([names[place] for place in reversed(alignment) if place in names])
    walked = frozenset(own if is_output or "d" in own or "v" in own else ())
    return ArrayRole(walked, single=walked, contiguous=own)


@lru_cache(maxsize=1 << 12)
def _attention_layout(
    facts: LayoutFacts,
    roles: tuple[ArrayRole, ...],
    joined: bool,
) -> ArrayLayout:
    names, _, _, _ = facts

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, names[:-4], None, "v", True, joined)

    return array_layout(pattern, facts, roles)


def attention_spec(region: Region, pattern: Pattern) -> AttentionSpec:
    """The specification of attention."""
    recorder = AttentionRecorder(pattern.outer)
    outputs = read_region(region, pattern, recorder)
    assert recorder.attended is not None
    q, k, v, scale, mask, causal, means = recorder.attended
    scoring, seen = recorder.scoring, None
    if scoring is not None:
        scoring, seen, _ = told_apart(recorder, scoring)
        mask = seen if mask is None else mask
    causal = causal and not pattern.heads_as_queries  # the only query of a head is the last one, which sees all keys
    return AttentionSpec(
        region.name,
        pattern.arguments,
        pattern.outer,
        q,
        k,
        v,
        scale,
        mask,
        causal,
        means,
        outputs,
        scoring=scoring,
        saved=recorder.saved,
    )


def told_apart(recorder: ScoreFunctions, scoring: Scoring) -> tuple[Scoring | None, Value | None, frozenset[Value]]:
    """What becomes of scores that are seen, times log2(e), and which are: many end in where(seen, score, -inf). Also
    the conditions of those.
    """
    changed, seen, conditions = scoring.changed, None, set()
    while changed.operation == "select" and _is_hiding(changed.arguments[2]):
        condition = changed.arguments[0]
        if scoring.score in post_order([condition]):
            break
        conditions.add(condition)
        seen = condition if seen is None else recorder.logical_and(condition, seen)
        changed = changed.arguments[1]
    if changed is scoring.score:
        return None, seen, frozenset(conditions)
    return Scoring(scoring.score, recorder.times(changed, LOG2_E)), seen, frozenset(conditions)


def _is_hiding(value: Value) -> bool:
    return value.operation == "constant" and value.number == -math.inf


class AttentionRecorder(ScoreFunctions):
    """A recorder that notes the operands of the one attention."""

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__(None)
        self.batch = batch
        self.scoring: Scoring | None = None
        self.saved: Sums | None = None
        self.attended: tuple[Value, Value, Value, Value, Value | None, bool, Value] | None = None

    def attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: Value,
        mask: Value | None,
        causal: bool,
        scored: Callable[[Value], Value] | None = None,
    ) -> Value:
        """The tile of weighted means."""
        if scored is not None:
            score = self.make("score", (), (), accumulator(q.dtype), (*self.batch, "q", "k"))
            self.scoring = Scoring(score, scored(score))
        result = self.make("accumulator", (), (), q.dtype, (*self.batch, "q", "v"))
        self.attended = q, k, v, scale, mask, causal, result
        return result

    def attend_logarithms(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: Value,
        mask: Value | None,
        causal: bool,
        scored: Callable[[Value], Value] | None = None,
    ) -> Value:
        """The tile of logarithms of sums."""
        self.attend(q, k, v, scale, mask, causal, scored)
        self.saved = Sums(self.make("accumulator", (), (1,), accumulator(q.dtype), (*self.batch, "q")))
        return self.saved.accumulator
