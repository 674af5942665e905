"""The gradient of attention of a program over merged axes, and what it computes there."""

from __future__ import annotations

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
    V,
    array_layout,
    columns_of,
    layout_facts,
    numbered,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import Axes, merge_axes
from tessera.scheduling.binding.regions import Region, read_region
from tessera.scheduling.families.attention.binding import told_apart
from tessera.scheduling.families.attention.functions import ScoreFunctions
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.spec import (
    Argument,
    AttentionGradientSpec,
    PulledScore,
    Scoring,
    Sums,
    SumsBeside,
)


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays]:
    """Merges the batch dimensions, heads among them; the others are called q, d, k and v.

    The domain is that of queries and then keys, size of a value, heads of K and V. Heads that share keys and values are
    a dimension of their own, as in `attention/binding.py`.
    """
    rank = len(domain) - 3
    sizes = {rank - 1, beyond("attention_gradient", rank)[2, "e"]}  # operands that are multiplied have one of these
    arrays = [
        (copied(tensor, None) if tensor.is_counted and sizes & set(place) else tensor, place)
        for tensor, place in arrays
    ]
    columns = columns_of(arrays, len(domain))
    shared = domain[-1]
    group = domain[rank - 3] // max(shared, 1)
    own = columns[rank - 3]
    apart = tuple([stride * group + other for stride, other in zip(own, columns[-1], strict=True)])
    extents = (*domain[: rank - 3], shared, group)
    merged = merge_axes(extents, (*columns[: rank - 3], apart, own))
    axes = Axes(merged.extents + tuple(domain[rank - 2 : -1]), merged.columns + columns[rank - 2 : -1])
    names = numbered("b", len(merged.extents), "q", "d", "k", "v")
    roles = tuple([_role(alignment, rank) for _, alignment in arrays])
    return arrays, shaped_arrays(_layout(layout_facts(names, axes, arrays), roles), names, axes)


@lru_cache(maxsize=1 << 10)
def _role(alignment: Alignment, rank: int) -> ArrayRole:
    """Matrices walk both their axes, of which the last dimension is the usual contiguous one."""
    places = beyond("attention_gradient", rank)
    names = {rank - 2: "q", rank - 1: "d", places[1, "j"]: "k", places[2, "e"]: "v"}
    own = tuple([names[place] for place in reversed(alignment) if place in names])
    walked = frozenset(own if {"d", "v"} & set(own) else ())
    return ArrayRole(walked, single=walked, contiguous=own)


@lru_cache(maxsize=1 << 12)
def _layout(facts: LayoutFacts, roles: tuple[ArrayRole, ...]) -> ArrayLayout:
    names, _, _, _ = facts

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, names[:-4], None, "d", True)

    return array_layout(pattern, facts, roles)


def gradient_spec(region: Region, pattern: Pattern) -> AttentionGradientSpec:
    """The specification of the gradient."""
    recorder = _Recorder(pattern.outer)
    outputs = read_region(region, pattern, recorder)
    assert recorder.operands is not None
    q, k, v, g, logarithms, mean, scale = recorder.operands
    asked = {output.value for output in outputs}
    keys, values = (recorder.sums(of, q) for of in ("k", "v"))
    return AttentionGradientSpec(
        region.name,
        pattern.arguments,
        pattern.outer,
        q,
        k,
        v,
        g,
        logarithms,
        mean,
        scale,
        recorder.seen,
        recorder.causal,
        recorder.sums("q", q),
        outputs,
        Sums(keys) if keys in asked else None,
        Sums(values) if values in asked else None,
        recorder.scoring,
        recorder.pulled if recorder.changes else None,
        tuple(recorder.beside) or None,
    )


_AXES: dict[str, tuple[str, str]] = {"q": ("q", "d"), "k": ("k", "d"), "v": ("k", "v")}


class _Recorder(ScoreFunctions):
    """A recorder that notes the operands, what becomes of scores, and how cotangents go back, which all parts of one
    gradient have.
    """

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__(None)
        self.batch = batch
        self.operands: tuple[Value, ...] | None = None
        self.causal = False
        self.scoring: Scoring | None = None
        self.seen: Value | None = None
        self.pulled: PulledScore | None = None
        self.beside: list[SumsBeside] = []
        self._hiding: frozenset[Value] = frozenset()
        """Conditions that hide a score; its cotangent is 0 there without being asked."""

    @property
    def changes(self) -> bool:
        """Whether a cotangent becomes anything else on its way to a score, or to an operand beside it."""
        return self.pulled is not None and (self.pulled.derived is not self.pulled.changed or bool(self.beside))

    def sums(self, of: str, like: Value) -> Value:
        """The tile of sums for queries, keys or values."""
        number = () if of == "q" else (("k", "v").index(of) + 1,)
        return self.make("accumulator", (), number, accumulator(like.dtype), (*self.batch, *_AXES[of]))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if condition in self._hiding and self.pulled is not None and a is self.pulled.changed and _is_zero(b):
            return a
        return super().select(condition, a, b)

    def attend_back(
        self,
        of: str | tuple[int, str],
        operands: tuple[Value, ...],
        causal: bool,
        scored: Callable[[Value], Value] | None,
        derived: Callable[[Value, Value], Value] | None,
        beside: Callable[[Value, Value], Value] | None,
    ) -> Value:
        """The tile of sums."""
        q, dtype, axes = operands[0], accumulator(operands[0].dtype), (*self.batch, "q", "k")
        score, changed = (self.make(name, (), (), dtype, axes) for name in ("score", "cotangent"))
        if self.operands is None:
            self.operands, self.causal = operands, causal
            if scored is not None:
                self.scoring, self.seen, self._hiding = told_apart(self, Scoring(score, scored(score)))
            self.pulled = PulledScore(changed, changed)
            self.pulled = PulledScore(changed, changed if derived is None else derived(score, changed))
        if isinstance(of, str):
            return self.sums(of, q)
        assert beside is not None
        place, along = of
        sums = self.make("accumulator", (), (2 + place, along), dtype, (*self.batch, *along))
        self.beside.append(SumsBeside(sums, beside(score, changed), along))
        return sums


def _is_zero(value: Value) -> bool:
    return value.operation == "constant" and value.number == 0
