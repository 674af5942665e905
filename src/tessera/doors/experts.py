"""Mixtures of experts: each token is computed by the few experts that a router chooses for it.

All of it is algebra. On a mesh what moves follows from layouts, but for two exchanges that are asked for: rows go to
the devices of their experts, and what these make of them goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tessera.doors.calls.nodes import call, node, on
from tessera.doors.mesh.pinning import parts_of
from tessera.doors.selection import topk
from tessera.errors import ArgumentError, DTypeError, MeshError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.layouts import Layout, layout
from tessera.lazy.structures.structure import Shape
from tessera.ops.collective.parts import MeshPart
from tessera.ops.layout import views
from tessera.ops.layout.records import padded
from tessera.ops.layout.views import integer, is_one_of, number
from tessera.runtime.streams.stream import Stream
from tessera.sharding.tensors.properties import layout_of
from tessera.typing import ArrayLike

Weighting: TypeAlias = Literal["softmax", "scores"]

TokensTo: TypeAlias = Callable[[Tensor], Tensor]


def moe(
    x: ArrayLike,
    router: ArrayLike | TokensTo,
    experts: ArrayLike | TokensTo | Sequence[TokensTo],
    *,
    axis: str | None = "ep",
    top_k: int = 2,
    capacity: float | None = 1.25,
    groups: int | None = None,
    weighting: Weighting = "softmax",
    batch: int = 0,
    stream: Stream | None = None,
) -> Tensor:
    """What the chosen experts make of each token, weighted and added up.

    `router` is a matrix [width, experts], or a function that gives scores [..., experts] of tokens [..., width]. The
    `top_k` experts of the highest scores are chosen. Their weights are the softmax of their scores, or with
    `weighting="scores"` the scores themselves. `experts` is a function of rows [experts, rows, width], which gives as
    many rows of any width, or a matrix for each expert, [experts, width, width_out], or a list of functions, one for
    each expert, of its rows [rows, width]. These may differ, and may be pinned to parts of the mesh along `axis`
    (`dist.pin`), which hold their tensors alone. Of the order of its rows such a function knows nothing.

    An expert takes a limited number of tokens: `capacity` times its even share, rounded up; with None all that come.
    First choices go before second ones, and earlier tokens before later ones. A choice that finds no place adds
    nothing. Capacities hold for each of `groups` of consecutive tokens: without `groups` one on a single device, on a
    mesh one for each part into which layouts split the tokens.

    The first `batch` dimensions of x are no tokens: there each place has a router, [..., width, experts], and experts
    of its own, whose rows are [..., experts, rows, width]. So an expert is a mixture itself.

    On a mesh with the axis `axis`, the experts lie on the devices along it, and those along the other axes share their
    work. Rows go to them and back by an all-to-all each. With `axis=None` nothing is asked for, and what moves is
    chosen by cost. On a single device `axis` says nothing.

    Shazeer et al., "Outrageously large neural networks" (2017); Lepikhin et al., "GShard" (2020). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH), ArgumentError (E_ARGUMENT) for numbers that do not fit, MeshError (E_MESH)
    for an axis that the mesh does not have.

    Shapes: x [..., width] gives [..., width_out]. Dtypes: floats; not 8-bit floats, integers, bools and complex
    (E_DTYPE).

    >>> op.moe(op.ones((6, 4)), op.ones((4, 3)), op.ones((3, 4, 5))).shape
    (6, 5)
    """
    tokens = node(x)
    outer = integer(batch, "batch")
    if tokens.dtype.kind != "float" or tokens.dtype.itemsize == 1:
        raise DTypeError(f"moe of {tokens.dtype}", hints=["floats of 16 bits and more"])
    if not 0 <= outer <= tokens.ndim - 2:
        raise ShapeMismatchError(
            f"moe of shape {tokens.shape}, of which {outer} dimensions are no tokens", hints=["x is [..., width]"]
        )
    if not is_one_of(weighting, get_args(Weighting)):
        raise ArgumentError(f"moe: weighting={weighting!r}", hints=[f"one of {', '.join(get_args(Weighting))}"])
    lead, width = tokens.shape[:outer], tokens.shape[-1]
    count = math.prod(tokens.shape[outer:-1])
    parts = _groups(tokens, outer, count, groups)
    rows = views.reshape(tokens, (*lead, parts, count // parts, width))
    scores = _scores(rows, router, outer)
    chosen_scores, chosen = topk(scores, _chosen(top_k, scores.shape[-1]))
    weights = call("softmax", chosen_scores, axis=chosen_scores.ndim - 1) if weighting == "softmax" else chosen_scores
    places = _places(chosen, scores.shape[-1], capacity)
    made = _computed(_dispatched(rows, places), experts, axis, outer)
    return on(views.reshape(_combined(made, weights, places), (*tokens.shape[:-1], made.shape[-1])), stream)


def _groups(tokens: Tensor, outer: int, count: int, groups: int | None) -> int:
    """The number of groups of tokens. Raises ArgumentError for one that does not divide them."""
    if groups is not None:
        parts = integer(groups, "groups")
    elif tokens.mesh is not None:
        laid = layout_of(tokens)
        parts = math.prod(laid.mesh.size(axis) for axis in laid.dims[outer])
    else:
        parts = 1
    if parts < 1 or count % parts:
        raise ArgumentError(
            f"moe: {parts} groups of {count} tokens", hints=["groups= divides the tokens", "pad the tokens"]
        )
    return parts


def _scores(rows: Tensor, router: ArrayLike | TokensTo, outer: int) -> Tensor:
    """Scores [..., group, token, expert]."""
    if callable(router):
        scores = node(router(rows))
    else:
        matrix = node(router)
        if matrix.shape[:-1] != (*rows.shape[:outer], rows.shape[-1]) or matrix.ndim < 2:
            raise ShapeMismatchError(
                f"moe of tokens of width {rows.shape[-1]}, and a router of shape {matrix.shape}",
                hints=["[width, experts]"],
            )
        scores = call("matmul", rows, views.reshape(matrix, (*matrix.shape[:-2], 1, *matrix.shape[-2:])))
    if scores.shape[:-1] != rows.shape[:-1]:
        raise ShapeMismatchError(
            f"moe: scores of shape {scores.shape} for tokens of shape {rows.shape}",
            hints=["a router gives [..., experts] of [..., width]"],
        )
    return scores


def _chosen(top_k: int, experts: int) -> int:
    count = integer(top_k, "top_k")
    if not 1 <= count <= experts:
        raise ArgumentError(f"moe: top_k={count} of {experts} experts")
    return count


@dataclass(frozen=True)
class _Places:
    """Where choices go: of each group `kept` [..., choice, token] says whether there is a place, and `slot` which of
    the experts' places it is, one expert behind the other.
    """

    experts: int
    capacity: int
    kept: Tensor
    slot: Tensor

    @property
    def slots(self) -> int:
        """The places of a group."""
        return self.experts * self.capacity


def _places(chosen: Tensor, experts: int, capacity: float | None) -> _Places:
    *lead, tokens, choices = chosen.shape
    limit = tokens
    if capacity is not None:
        factor = number(capacity, "capacity")
        if not 0 < factor < math.inf:
            raise ArgumentError(f"moe: capacity={capacity}", hints=["a factor of the even share, 1.25; None for all"])
        limit = min(tokens, max(1, math.ceil(choices * tokens * factor / experts)))
    by_choice = views.swapped(chosen)  # first choices before second ones
    asked = views.reshape(by_choice, (*lead, choices * tokens, 1))
    hits: Tensor = asked == call("iota", shape=(experts,))
    order = call("cumsum", hits, axis=len(lead))
    own = call("sum", call("where", hits, order, 0), axes=(len(lead) + 1,), keepdims=False) - 1
    place = views.reshape(own, by_choice.shape)
    return _Places(experts, limit, place < limit, by_choice * limit + place)


def _dispatched(rows: Tensor, places: _Places) -> Tensor:
    """What the experts read, [..., group, expert, place, width]; zeros in places that nobody takes."""
    *lead, tokens, width = rows.shape
    flat = (*lead, places.kept.shape[-2] * tokens)
    # From 1, since 0 says that nobody takes a place; what is not kept goes behind the last one.
    taker = call("where", places.kept, call("iota", shape=(tokens,)) + 1, 0)
    slot = call("where", places.kept, places.slot, places.slots)
    taken = call(
        "scatter_along", views.reshape(taker, flat), views.reshape(slot, flat), axis=len(lead), extent=places.slots + 1
    )
    own_taker = views.part(taken, len(lead), 0, places.slots)
    own = _taken(rows, call("maximum", own_taker - 1, 0), own_taker > 0)
    sent: Tensor = views.reshape(own, (*lead, places.experts, places.capacity, width))
    return sent


def _taken(rows: Tensor, index: Tensor, there: Tensor) -> Tensor:
    """The rows at places [..., place], and zeros where nothing is there."""
    shape = (*index.shape, rows.shape[-1])
    column = views.broadcast_to(views.reshape(index, (*index.shape, 1)), shape)
    found = call("gather", rows, column, axis=len(shape) - 2)
    return call("where", views.reshape(there, (*there.shape, 1)), found, 0)


def _computed(sent: Tensor, experts: ArrayLike | TokensTo | Sequence[TokensTo], axis: str | None, outer: int) -> Tensor:
    """What experts make of the rows that are sent to them, [..., group, expert, place, width]."""
    home = None if sent.mesh is None or axis is None else layout_of(sent)
    if home is not None and sent.mesh is not None and axis is not None and axis not in sent.mesh.shape:
        raise MeshError(f"moe: axis={axis!r} on {sent.mesh}", hints=[f"one of {home.mesh}, or None"])
    if isinstance(experts, list | tuple) and all(map(callable, experts)):
        back = _each_computed(sent, experts, axis, outer)
    else:
        back = _computed_together(sent, experts, axis if home is not None else None, outer)
    if home is not None and axis is not None:
        laid = layout_of(back)
        there = next((dim for dim, axes in enumerate(home.dims) if axis in axes), None)
        back = back.reshard(_with(laid, axis, there, home))
    return back


def _computed_together(sent: Tensor, experts: Any, axis: str | None, outer: int) -> Tensor:
    *lead, groups, count, places, width = sent.shape
    if axis is not None:
        sent = sent.reshard(_with(layout_of(sent), axis, outer + 1))
    by_expert = views.reshape(views.swapped(sent, outer, outer + 1), (*lead, count, groups * places, width))
    made = node(experts(by_expert)) if callable(experts) else call("matmul", by_expert, node(experts))
    if made.shape[:-1] != by_expert.shape[:-1]:
        raise ShapeMismatchError(
            f"moe: experts made {made.shape} of rows of shape {by_expert.shape}", hints=["a row of each row"]
        )
    apart = views.reshape(made, (*lead, count, groups, places, made.shape[-1]))
    back: Tensor = views.swapped(apart, outer, outer + 1)
    return back


def _each_computed(sent: Tensor, experts: Sequence[TokensTo], axis: str | None, outer: int) -> Tensor:
    """As `_computed`, of a function for each expert."""
    if outer or len(experts) != sent.shape[1]:
        raise ArgumentError(
            f"moe: {len(experts)} functions as the experts of {sent.shape[outer + 1]}, and batch={outer}",
            hints=["a function for each expert, of a router without dimensions before its own"],
        )
    mesh = sent.mesh
    parts = None if mesh is None or axis is None else parts_of(experts, mesh, axis)
    if parts is not None and axis is not None:
        return _by_parts(sent, experts, axis, parts)
    groups, count, places, width = sent.shape
    rows = views.reshape(views.swapped(sent, 0, 1), (count, groups * places, width))
    each = [
        _made_by(expert, views.reshape(views.part(rows, 0, n, 1), rows.shape[1:])) for n, expert in enumerate(experts)
    ]
    made = views.concat([views.reshape(one, (1, groups, places, one.shape[-1])) for one in each], 0)
    back: Tensor = views.swapped(made, 0, 1)
    return back


def _by_parts(sent: Tensor, experts: Sequence[TokensTo], axis: str, parts: Sequence[MeshPart]) -> Tensor:
    """As `_computed`, of functions that are pinned: each device of a part gets as many places of its experts."""
    groups, count, places, width = sent.shape
    size, own = parts[0].size, count // len(parts)
    share = -(-places // size)
    apart = views.reshape(padded(sent, 2, 0, size * share - places), (groups, len(parts), own, size, share, width))
    of_devices: Tensor = views.reshape(
        views.transpose(apart, (0, 1, 3, 2, 4, 5)), (groups, len(parts) * size, own, share, width)
    )
    home = layout_of(of_devices)
    there = views.swapped(of_devices.reshard(_with(home, axis, 1)), 0, 1)
    made: list[Tensor] = []
    for index, part in enumerate(parts):
        here = call("to_part", there, part=part)  # [device and group, expert, place, width]
        each = [
            _made_by(expert, views.reshape(views.part(here, 1, n, 1), (size * groups * share, width)))
            for n, expert in enumerate(experts[index * own : (index + 1) * own])
        ]
        made.append(views.concat([views.reshape(one, (size * groups, 1, share, one.shape[-1])) for one in each], 1))
    back: Tensor = views.swapped(call("from_parts", *made, parts=tuple(parts)), 0, 1)
    back = back.reshard(home)
    by_expert = views.transpose(
        views.reshape(back, (groups, len(parts), size, own, share, back.shape[-1])), (0, 1, 3, 2, 4, 5)
    )
    whole: Tensor = views.reshape(by_expert, (groups, count, size * share, back.shape[-1]))
    kept: Tensor = views.part(whole, 2, 0, places)
    return kept


def _made_by(expert: TokensTo, rows: Tensor) -> Tensor:
    made = node(expert(rows))
    if made.shape[:-1] != rows.shape[:-1]:
        raise ShapeMismatchError(
            f"moe: an expert made {made.shape} of rows of shape {rows.shape}", hints=["a row of each row"]
        )
    return made


def _with(laid: Layout, axis: str, dim: int | None, order: Layout | None = None) -> Layout:
    """The layout whose dimension `dim` an axis of the mesh splits, and no other; it takes its place of the `order` of
    another layout there.
    """
    dims = [tuple(each for each in axes if each != axis) for axes in laid.dims]
    if dim is not None:
        dims[dim] += (axis,)
        if order is not None and set(order.dims[dim]) == set(dims[dim]):
            dims[dim] = order.dims[dim]
    return layout(laid.mesh, dims)


def _combined(made: Tensor, weights: Tensor, places: _Places) -> Tensor:
    """The weighted sums of what each token's experts made of it, [..., group, token, width]."""
    lead: Shape = made.shape[:-3]
    width = made.shape[-1]
    choices, tokens = places.kept.shape[-2:]
    flat = (*lead, choices * tokens)
    rows = views.reshape(made, (*lead, places.slots, width))
    slot = call("where", places.kept, places.slot, 0)
    found = _taken(rows, views.reshape(slot, flat), views.reshape(places.kept, flat))
    apart = views.reshape(found, (*lead, choices, tokens, width))
    factors = views.reshape(views.swapped(weights), (*lead, choices, tokens, 1))
    return call("sum", apart * factors.to(made.dtype), axes=(len(lead),), keepdims=False)
