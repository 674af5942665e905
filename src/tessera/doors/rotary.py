"""Rotary position embedding."""

from __future__ import annotations

from tessera import dtypes
from tessera.doors.calls.nodes import call, node, on
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops import algebra
from tessera.ops.layout import views
from tessera.ops.layout.views import flag, normalized_axis
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike

TURN = 6.283185307179586


def rope(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    cos: ArrayLike | None = None,
    sin: ArrayLike | None = None,
    theta: float = 10000.0,
    interleaved: bool = False,
    axis: int = -2,
    stream: Stream | None = None,
) -> Tensor:
    """x with pairs of elements of its last dimension, of extent D, turned by angles that grow with the position: pair i
    of position l by l * theta^(-2 i / D).

    Pairs are the elements i and i + D / 2 (GPT-NeoX, Llama in `transformers`), or with `interleaved` 2 i and 2 i + 1
    (Su et al. 2021, Meta's Llama). `axis` is the one of positions: -2 of [..., heads, length, D], -3 of
    [..., length, heads, D].

    `positions` are integers or floats of shape [length], or [batch, length] where x has a first dimension of batches; 0
    to length - 1 by default. Angles are formed and reduced to one turn in fp64, so that they are exact to fp32 however
    long the sequence. Or pass tables of `cos` and `sin`, [length, D / 2], or [length, D] where each value stands twice,
    as pairs stand in x. What is turned is computed in the dtype of x and of the tables, fp32 by default.

    Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021). Raises ShapeMismatchError,
    DTypeError and ArgumentError (E_ARGUMENT).

    Shapes: x [..., length, D] or, with `axis=-3`, [..., length, heads, D]; the result has it. Dtypes: floats; not 8-bit
    floats, integers, bools and complex (E_DTYPE).

    >>> op.rope(op.ones((2, 8, 5, 16))).shape
    (2, 8, 5, 16)
    """
    value = node(x)
    rank = len(value.shape)
    if rank < 2 or value.shape[-1] % 2:
        raise ShapeMismatchError(
            f"rope of shape {value.shape}", hints=["two dimensions at least, the last of even extent"]
        )
    if value.dtype.kind != "float":
        raise DTypeError(f"rope of {value.dtype}: defined on floating-point elements only", hints=["cast to fp32"])
    interleaved = flag(interleaved, "interleaved")
    place = normalized_axis(axis, rank)
    if place == rank - 1:
        raise ArgumentError(f"rope: axis={axis} is the dimension that is turned", hints=["-2 or -3"])
    if (cos is None) != (sin is None) or (cos is not None and positions is not None):
        raise ArgumentError("rope takes both tables, or positions", hints=["cos= and sin=, or positions="])
    if cos is None:
        angles = _angles(value, positions, place, theta)
        tables = call("cos", angles), call("sin", angles)
    else:
        tables = _table("cos", cos, value, place, interleaved), _table("sin", sin, value, place, interleaved)
    lead = tables[0].shape[:-2]
    cosines, sines = (_aligned(table, lead, rank, place) for table in tables)
    return on(_turned(value, cosines, sines, interleaved), stream)


def _angles(value: Tensor, positions: object, place: int, theta: float) -> Tensor:
    """[length, D / 2] or [batch, length, D / 2] in fp32, within half a turn."""
    if type(theta) not in (int, float) or theta <= 0:
        raise ArgumentError(f"rope: theta={theta!r}", hints=["a positive number"])
    length, size = value.shape[place], value.shape[-1]
    where = call("iota", shape=(length,)) if positions is None else node(positions)
    batch = value.shape[:1] if len(where.shape) == 2 and place > 0 else ()
    if where.shape != (*batch, length) or where.dtype.kind == "bool":
        raise ShapeMismatchError(
            f"rope: positions of shape {where.shape} for {length} positions of a tensor of shape {value.shape}",
            hints=[f"[{length}], or a row for each of the first dimension"],
        )
    exponents = call("iota", shape=(size // 2,)).to(dtypes.fp64) * (-2.0 / size)
    turns = views.reshape(where.to(dtypes.fp64), (*where.shape, 1)) * (call("pow", float(theta), exponents) / TURN)
    return call("mul", turns - call("round", turns), TURN).to(dtypes.fp32)


def _table(name: str, table: object, value: Tensor, place: int, interleaved: bool) -> Tensor:
    """The half of a table that has a value for each pair."""
    given, length, half = node(table), value.shape[place], value.shape[-1] // 2
    if given.dtype.kind != "float" or given.shape not in ((length, half), (length, 2 * half)):
        raise ShapeMismatchError(
            f"rope: a table {name} of shape {given.shape} and {given.dtype} for {length} positions and {half} pairs",
            hints=[f"floats, [{length}, {half}] or [{length}, {2 * half}]"],
        )
    if given.shape[-1] == half:
        return given
    found: Tensor = views.indexed(given, (slice(None), slice(0, None, 2) if interleaved else slice(0, half)))
    return found


def _aligned(table: Tensor, lead: tuple[int, ...], rank: int, place: int) -> Tensor:
    """A table over the dimensions of x, with its last dimension."""
    length, half = table.shape[-2:]
    shape = [1] * (rank - 1) + [half]
    shape[place] = length
    shape[0] = lead[0] if lead else shape[0]
    made: Tensor = views.reshape(table, tuple(shape))
    return made


def _turned(value: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """x cos + (the other of each pair) (-sin, sin), as one map over x."""
    if interleaved:
        cosines, sines = _twice(cosines), _twice(sines)
        half = value.shape[-1] // 2
        first_of_pair = views.broadcast_to(call("iota", shape=(2,)) == 0, (half, 2))
        is_first: Tensor = views.reshape(first_of_pair, (2 * half,))
        return _mixed(value, _neighbours(value, is_first), is_first, cosines, sines)
    shape = (*value.shape[:-1], 2, value.shape[-1] // 2)
    pairs: Tensor = views.reshape(value, shape)
    other: Tensor = views.indexed(pairs, (Ellipsis, slice(None, None, -1), slice(None)))
    cosines, sines = (views.reshape(table, (*table.shape[:-1], 1, table.shape[-1])) for table in (cosines, sines))
    made: Tensor = views.reshape(_mixed(pairs, other, call("iota", shape=(2, 1)) == 0, cosines, sines), value.shape)
    return made


def _mixed(value: Tensor, other: Tensor, is_first: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    across = other * sines
    turned = call("add", value * cosines, call("where", is_first, -across, across))
    return turned.to(value.dtype)


def _neighbours(value: Tensor, is_first: Tensor) -> Tensor:
    """The other of each pair that lies side by side: the next element or the one before. Both are views of one padded
    copy, so that kernels read whole vectors.
    """
    rank = len(value.shape)
    sides = [(*[0] * (rank - 1), 1)] * 2
    wider = call("pad", value, algebra.literal(0, value.dtype), before=sides[0], after=sides[1], mode="constant")
    size = value.shape[-1]
    after, before = (views.indexed(wider, (Ellipsis, slice(start, start + size))) for start in (2, 0))
    return call("where", is_first, after, before)


def _twice(table: Tensor) -> Tensor:
    """Each value of the last dimension twice, side by side."""
    wide = (*table.shape, 2)
    spread = views.broadcast_to(views.reshape(table, (*table.shape, 1)), wide)
    made: Tensor = views.reshape(spread, (*table.shape[:-1], 2 * table.shape[-1]))
    return made
