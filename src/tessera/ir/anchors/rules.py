"""The anchors of the families of operators, from ranks and attributes alone.

Attributes that hold extents (`starts`, `before`) are None where these are known only at run time. `shape` and `sizes`
are the result's shape (`with_result`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from tessera.ir.anchors.anchor import DIFFERENT, Anchor, AnchorError, AnchorRule, Extent, Fit, Index, Reduction

Named: TypeAlias = Mapping[str, Any]
Pair: TypeAlias = tuple[int, int]

APART = "the shapes do not broadcast"
BATCH = "the batch dimensions do not broadcast"


def with_result(attributes: Named, shape: Sequence[Extent]) -> Named:
    """Attributes of an operator over a result of this shape, which some of them repeat."""
    return {**attributes, "shape": shape, "sizes": shape}


def _axes(rank: int, prefix: str = "d") -> tuple[str, ...]:
    return tuple(f"{prefix}{axis}" for axis in range(rank))


def _read(axes: Sequence[str], fit: Fit = "exact", refusal: str = DIFFERENT) -> tuple[Index, ...]:
    return tuple(Index((axis,), fit=fit, refusal=refusal) for axis in axes)


def _last(indices: Sequence[Index], count: int) -> tuple[Index, ...]:
    """The last indices, as an operand of fewer dimensions broadcasts."""
    return tuple(indices[len(indices) - count :])


# -- maps and rows ----------------------------------------------------------------------------------------------------


def broadcast(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Maps of elements: operands broadcast together, aligned at their last dimensions."""
    return _broadcast(ranks)


@lru_cache(maxsize=1024)
def _broadcast(ranks: tuple[int, ...]) -> Anchor:
    result = _axes(max(ranks, default=0))
    indices = _read(result, "broadcast", refusal=APART)
    return Anchor(tuple(_last(indices, rank) for rank in ranks), _read(result))


def numbering(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """No operands: an element for each place of `shape`."""
    shape = tuple(attributes["shape"])
    axes = _axes(len(shape))
    return Anchor((), _read(axes), given=dict(zip(axes, shape, strict=True)), placed=frozenset(axes))


def along_axis(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Rows along one `axis` of one operand."""
    return _along_axis(ranks[0], attributes["axis"])


@lru_cache(maxsize=256)
def _along_axis(rank: int, axis: int) -> Anchor:
    if not 0 <= axis < rank:
        raise AnchorError(f"axes {[axis]} are not distinct dimensions in 0..{rank - 1}")
    axes = _axes(rank)
    return Anchor((_read(axes),), _read(axes), reduced={axes[axis]: "row"})


def normalization(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Rows along the last dimension of the first operand; the others have an element for each of a row's."""
    return _normalization(ranks)


@lru_cache(maxsize=256)
def _normalization(ranks: tuple[int, ...]) -> Anchor:
    if not ranks[0]:
        raise AnchorError("normalizes the last dimension, and there is none")
    axes = _axes(ranks[0])
    refusal = "weight and bias must have shape ({known},)"
    if any(rank != 1 for rank in ranks[1:]):
        raise AnchorError("weight and bias must have one dimension")
    parameter = _read(axes[-1:], refusal=refusal)
    return Anchor((_read(axes), *[parameter] * (len(ranks) - 1)), _read(axes), reduced={axes[-1]: "row"})


def rows(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Rows of the first operand along `axis`, or its last dimension; the others broadcast to it, and dimensions in
    front of its own are theirs.
    """
    return _rows(ranks, attributes.get("axis", -1))


@lru_cache(maxsize=256)
def _rows(ranks: tuple[int, ...], axis: int) -> Anchor:
    if not -ranks[0] <= axis < ranks[0]:
        raise AnchorError(f"rows along dimension {axis} of tensors of {ranks[0]}")
    axes = _axes(ranks[0])
    spread = (*_read(_axes(max(ranks) - ranks[0], "e")), *_read(axes, "spread", refusal=APART))
    operands = (_read(axes), *[_last(spread, rank) for rank in ranks[1:]])
    return Anchor(operands, _read(axes), reduced={axes[axis]: "row"})


def reduction(by: Reduction = "row") -> AnchorRule:
    """Reductions of `axes` of one operand by a function; with `keepdims` a 1 is left of each."""

    def rule(ranks: tuple[int, ...], attributes: Named) -> Anchor:
        return _reduction(ranks[0], tuple(attributes["axes"]), bool(attributes.get("keepdims")), by)

    return rule


@lru_cache(maxsize=1024)
def _reduction(rank: int, reduced: tuple[int, ...], keepdims: bool, by: Reduction) -> Anchor:
    if any(not 0 <= axis < rank for axis in reduced) or len(set(reduced)) != len(reduced):
        raise AnchorError(f"axes {list(reduced)} are not distinct dimensions in 0..{rank - 1}")
    axes = _axes(rank)
    one = Index(())
    kept = [one if place in reduced else Index((axis,)) for place, axis in enumerate(axes)]
    result = tuple(index for index in kept if keepdims or index is not one)
    return Anchor((_read(axes),), result, reduced={axes[axis]: by for axis in reduced})


# -- products ---------------------------------------------------------------------------------------------------------


def product(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """`[..., m, k] @ [..., k, n] -> [..., m, n]`, and maybe C, which is spread over the result.

    `transpose_a` and `transpose_b` swap an operand's last two dimensions. As in torch, an operand of one dimension is a
    row (first) or a column (second) whose dimension of 1 is then dropped.
    """
    return _product(ranks, bool(attributes.get("transpose_a")), bool(attributes.get("transpose_b")))


def matrices(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """As `product`, of operands with rows and columns, neither of which is swapped."""
    if ranks[0] < 2 or ranks[1] < 2:
        raise AnchorError("operands need at least two dimensions")
    return _product(ranks, False, False)


@lru_cache(maxsize=256)
def _product(ranks: tuple[int, ...], transpose_a: bool, transpose_b: bool) -> Anchor:
    if not min(ranks[:2]):
        raise AnchorError("operands need at least one dimension")
    batch = _axes(max(*ranks[:2], 2) - 2, "b")
    inner = Index(("k",), refusal="inner extents {known} and {extent} differ")
    operands, matrix = [], []
    for rank, outer, flip in ((ranks[0], "m", transpose_a), (ranks[1], "n", not transpose_b)):
        own = [Index((outer,)), inner] if rank > 1 else [inner]
        lead = _last(_read(batch, "broadcast", refusal=BATCH), max(rank - 2, 0))
        operands.append((*lead, *(own[::-1] if flip else own)))
        matrix += own[:-1]
    result = (*_read(batch), *matrix)
    operands += [_spread(result, rank, "C does not broadcast to the product's shape") for rank in ranks[2:]]
    return Anchor(tuple(operands), result, reduced={"k": "add"})


def _spread(result: Sequence[Index], rank: int, refusal: str) -> tuple[Index, ...]:
    """An operand that broadcasts to a shape which others decide."""
    if rank > len(result):
        raise AnchorError(refusal)
    return tuple(Index(index.axes, fit="spread", refusal=refusal) for index in _last(result, rank))


def attention(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """`[..., (h g), i, d]`, `[..., h, j, d]`, `[..., h, j, e] -> [..., (h g), i, e]`: g heads of queries share one of
    keys and values. A scale without dimensions, and maybe a mask, spread over the scores, `[..., (h g), i, j]`.
    """
    return _attention(ranks, bool(attributes.get("causal")))


@lru_cache(maxsize=256)
def _attention(ranks: tuple[int, ...], causal: bool) -> Anchor:
    queries, keys, values, scale, *mask = ranks
    if min(queries, keys, values) < 2:
        raise AnchorError("Q, K and V are [..., heads, length, head size], or [length, head size]")
    if scale:
        raise AnchorError("the scale is one number, without dimensions")
    most = max(queries, keys, values)
    batch = _axes(max(most - 3, 0), "b")
    one_head = min(keys, values) == 2 or queries == 2
    apart = "{extent} heads beside an operand of two dimensions, which has one" if one_head else None
    shared = Index(("h",), refusal=apart or "K has {known} heads, V has {extent}")
    heads = Index(("h", "g"), refusal="{extent} heads of Q are no multiple of {known} heads of K and V")
    size = Index(("d",), refusal="head sizes {known} of Q and {extent} of K differ")
    length = Index(("j",), refusal="K has {known} keys, V has {extent} values")
    lead = [_last(_read(batch, "broadcast", refusal=BATCH), max(rank - 3, 0)) for rank in (queries, keys, values)]
    given: dict[str, Extent] = {"h": 1} if one_head else {}
    if queries == 2:
        given["g"] = 1
    own = [((heads,) if queries > 2 else ()), *((shared,) if rank > 2 else () for rank in (keys, values))]
    operands = [
        (*lead[0], *own[0], Index(("i",)), size),
        (*lead[1], *own[1], length, size),
        (*lead[2], *own[2], length, Index(("e",))),
        (),
    ]
    outer = (*_read(batch), *((heads,) if most > 2 else ()), Index(("i",)))
    refusal = "the mask does not broadcast to the scores"
    operands += [_spread((*outer, length), rank, refusal) for rank in mask]
    placed = frozenset({"i"} if causal else ())  # which keys a query sees
    return Anchor(
        tuple(operands), (*outer, Index(("e",))), reduced={"d": "add", "j": "row"}, given=given, placed=placed
    )


def scaled_attention(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """As `attention` without a mask, and a factor of the values without dimensions."""
    if ranks[4]:
        raise AnchorError("the factor of the values is one number, without dimensions")
    return attention(ranks, attributes)


def attention_logarithms(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """As `attention`, with one number for each query in the place of its mean of values."""
    return _attention_logarithms(ranks, bool(attributes.get("causal")))


@lru_cache(maxsize=256)
def _attention_logarithms(ranks: tuple[int, ...], causal: bool) -> Anchor:
    found = _attention(ranks, causal)
    return replace(found, result=(*found.result[:-1], Index(())), reduced={**found.reduced, "e": "row"})


def attention_cotangent(of: Literal["q", "k", "v", "x"]) -> AnchorRule:
    """The cotangent of an operand of attention, by those of its results and what a softmax left: `[..., (h g), i, d]`,
    `[..., h, j, d]`, `[..., h, j, e]`, `[..., (h g), i, e]`, two of `[..., (h g), i, 1]`, a scale and what lies beside
    the scores, as `attention` has them, but that nothing is repeated along dimensions of batches. That of x, which lies
    beside the scores, is `[..., (h g), i, j]`, along "q" and "k" as the attribute says.
    """

    def rule(ranks: tuple[int, ...], attributes: Named) -> Anchor:
        along = str(attributes.get("along", "")) if of == "x" else of
        return _attention_cotangent(ranks, bool(attributes.get("causal")), of, along)

    return rule


@lru_cache(maxsize=256)
def _attention_cotangent(ranks: tuple[int, ...], causal: bool, of: Literal["q", "k", "v", "x"], along: str) -> Anchor:
    scale, *mask = ranks[6:]
    if len(set(ranks[:6])) > 1 or ranks[0] < 3 or scale:
        raise AnchorError("the first six operands are [..., heads, length, size], and the scale has no dimensions")
    batch = _read(_axes(ranks[0] - 3, "b"))
    shared = Index(("h",), refusal="K has {known} heads, V has {extent}")
    heads = Index(("h", "g"), refusal="{extent} heads of Q are no multiple of {known} heads of K and V")
    size, value_size, one = Index(("d",)), Index(("e",)), Index(())
    rows, columns = (*batch, heads, Index(("i",))), (*batch, shared, Index(("j",)))
    operands = [(*rows, size), (*columns, size), (*columns, value_size), (*rows, value_size)]
    pair = (Index(("i",)) if "q" in along else one, Index(("j",)) if "k" in along else one)
    result = {**dict(zip("qkv", operands, strict=False)), "x": (*batch, heads, *pair)}[of]
    spread = (*rows, Index(("j",)))
    operands += [(*rows, one), (*rows, one), ()]
    operands += [_spread(spread, rank, "the mask does not broadcast to the scores") for rank in mask]
    left = {axis for index in result for axis in index.axes}
    # Scores need all of d, which stays in the cotangents of queries and keys.
    reduced: dict[str, Reduction] = {axis: "row" for axis in "dejig" if axis not in left or axis == "d"}
    return Anchor(tuple(operands), result, reduced=reduced, placed=frozenset({"i", "j"} if causal else ()))


# -- windows ----------------------------------------------------------------------------------------------------------


def convolution(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """`[n, y sy + ky dy - top, x sx + kx dx - left, (g c)]`, `[(g o), c, ky, kx] -> [n, y, x, (g o)]`."""
    stride, padding, dilation = (tuple(attributes[name]) for name in ("stride", "padding", "dilation"))
    return _convolution(ranks, stride, padding, dilation, attributes["groups"])


@lru_cache(maxsize=1024)
def _convolution(ranks: tuple[int, ...], stride: Pair, padding: tuple[int, ...], dilation: Pair, groups: int) -> Anchor:
    if ranks != (4, 4):
        raise AnchorError("image and weights have four dimensions")
    if (len(stride), len(padding), len(dilation)) != (2, 4, 2) or min(*stride, *dilation, groups) < 1:
        raise AnchorError("stride and dilation are two positive numbers, padding is four, groups is positive")
    several = ("g",) if groups > 1 else ()
    wanted = "the image has {} channels, the weights take {} in each of {} groups"
    channels = Index((*several, "c"), refusal=wanted.format("{extent}", "{c}", groups))
    outputs = Index((*several, "o"), refusal=f"{groups} groups do not divide {{extent}} output channels")
    image = (Index(("n",)), *_sides(stride, padding[:2], padding[2:], dilation), channels)
    depth = Index(("c",), refusal=wanted.format("{known}", "{extent}", groups))
    weights = (outputs, depth, Index(("ky",)), Index(("kx",)))
    result = (Index(("n",)), Index(("y",)), Index(("x",)), outputs)
    added: dict[str, Reduction] = dict.fromkeys(("ky", "kx", "c"), "add")
    return Anchor((image, weights), result, added, dict.fromkeys(several, groups))


def _sides(stride: Pair, before: Sequence[int], after: Sequence[int], dilation: Pair) -> list[Index]:
    """Rows and columns of an image that a window slides over."""
    refusal = "the window reaches over {known} pixels, the padded image has {extent}"
    sides = zip("yx", stride, before, after, dilation, strict=True)
    return [Index((s, f"k{s}"), (step, apart), front, back, refusal=refusal) for s, step, front, back, apart in sides]


def window(by: Reduction = "row") -> AnchorRule:
    """A window of `kernel` over images `[n, c, rows, columns]`, or with `layout="NHWC"` `[n, rows, columns, c]`, each
    channel by itself; with a `multiplier` a channel gives several. Further operands are `[channel, ky, kx]`.
    """

    def rule(ranks: tuple[int, ...], attributes: Named) -> Anchor:
        geometry = [tuple(attributes[name]) for name in ("kernel", "stride", "padding", "dilation")]
        return _window(ranks, *geometry, attributes["layout"], attributes.get("multiplier", 1), by)

    return rule


@lru_cache(maxsize=1024)
def _window(
    ranks: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: tuple[int, int, int, int],
    dilation: Pair,
    layout: str,
    multiplier: int,
    by: Reduction,
) -> Anchor:
    first = layout == "NCHW"
    if ranks[0] != 4:
        raise AnchorError(f"images have four dimensions, {'[N, C, H, W]' if first else '[N, H, W, C]'}")
    top, bottom, left, right = padding
    sides = _sides(stride, (top, left), (bottom, right), dilation)
    wanted = f"operands beside the image are [channels, rows, columns] of the window of {kernel[0]} x {kernel[1]}"
    if any(rank != 3 for rank in ranks[1:]):
        raise AnchorError(wanted)
    several = multiplier != 1
    channel, result = Index(("c",)), Index(("c", "j") if several else ("c",), refusal=wanted)
    taps = (result, Index(("ky",), refusal=wanted), Index(("kx",), refusal=wanted))
    places = [Index(("y",)), Index(("x",))]
    arranged = [
        (Index(("n",)), each, *two) if first else (Index(("n",)), *two, each)
        for each, two in ((channel, sides), (result, places))
    ]
    given: dict[str, Extent] = {"ky": kernel[0], "kx": kernel[1], **({"j": multiplier} if several else {})}
    operands = (arranged[0], *[taps] * (len(ranks) - 1))
    return Anchor(operands, arranged[1], reduced=dict.fromkeys(("ky", "kx"), by), given=given)


# -- layouts ----------------------------------------------------------------------------------------------------------


def transposition(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Result dimension `d` is operand dimension `permutation[d]`."""
    return _transposition(ranks[0], tuple(attributes["permutation"]))


@lru_cache(maxsize=256)
def _transposition(rank: int, permutation: tuple[int, ...]) -> Anchor:
    if sorted(permutation) != list(range(rank)):
        raise AnchorError(f"{list(permutation)} is no permutation of the {rank} dimensions")
    axes = _axes(rank)
    return Anchor((_read(axes),), _read([axes[dimension] for dimension in permutation]))


def repetition(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """The operand spread over `shape`."""
    shape = tuple(attributes["shape"])
    axes = _axes(len(shape))
    operand = _spread(_read(axes), ranks[0], "the operand does not broadcast to the result")
    return Anchor((operand,), _read(axes), given=dict(zip(axes, shape, strict=True)))


def concatenation(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Operands one behind the other along `axis`."""
    axis, rank = attributes["axis"], ranks[0]
    if not 0 <= axis < rank:
        raise AnchorError(f"axis {axis} of tensors of {rank} dimensions")
    refusal = f"only axis {axis} may differ, and {{extent}} is not {{known}}"
    if any(each != rank for each in ranks):
        raise AnchorError("ranks differ")
    shared = _read(_axes(rank), refusal=refusal)
    parts = _axes(len(ranks), "p")
    operands = tuple((*shared[:axis], Index((part,)), *shared[axis + 1 :]) for part in parts)
    return Anchor(operands, (*shared[:axis], Index(parts, joined=True), *shared[axis + 1 :]))


def cut(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Elements `starts[d] + i * steps[d]`, `sizes[d]` of them along each dimension."""
    starts, steps, sizes = (attributes.get(name) for name in ("starts", "steps", "sizes"))
    rank = ranks[0]
    if any(entries is not None and len(entries) != rank for entries in (starts, steps, sizes)):
        raise AnchorError(f"starts, steps and the result need one entry for each of the {rank} dimensions")
    axes = _axes(rank)
    given = dict(zip(axes, sizes or (None,) * rank, strict=True))
    if starts is None or steps is None:
        return Anchor((_read(_axes(rank, "i")),), _read(axes), given=given)
    if 0 in steps:
        raise AnchorError("a step of 0")
    indices = [
        Index(
            (axis,), (step,), -start, refusal=f"{{known}} elements from {start} by {step} leave the extent {{extent}}"
        )
        for axis, start, step in zip(axes, starts, steps, strict=True)
    ]
    return Anchor((tuple(indices),), _read(axes), given=given)


def padding(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """`before[d]` elements in front of, and `after[d]` behind those of the first operand; the second is one number."""
    rank, axes = ranks[0], _axes(ranks[0])
    if any(ranks[1:]):
        raise AnchorError("what is padded with is one number")
    before, after = attributes.get("before"), attributes.get("after")
    if before is None or after is None:
        shape = attributes.get("shape", (None,) * rank)
        if len(shape) != rank:
            raise AnchorError("ranks differ")
        free: dict[str, Extent] = dict(zip(axes, shape, strict=True))
        return Anchor((_read(_axes(rank, "i")), *[()] * (len(ranks) - 1)), _read(axes), given=free)
    sides = zip(axes, before, after, strict=True)
    operand = tuple(Index((axis,), (1,), front, back) for axis, front, back in sides)
    return Anchor((operand, *[()] * (len(ranks) - 1)), _read(axes))


def parts(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Complex elements as two real ones, along a new last dimension."""
    axes = _axes(ranks[0])
    return Anchor((_read(axes),), _read((*axes, "part")), given={"part": 2})


def pairs(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """Two real elements along the last dimension as one complex one."""
    if not ranks[0]:
        raise AnchorError("the last dimension holds two parts")
    axes = _axes(ranks[0] - 1)
    last = Index(("part",), refusal="the last dimension holds two parts, not {extent}")
    return Anchor(((*_read(axes), last),), _read(axes), given={"part": 2})
