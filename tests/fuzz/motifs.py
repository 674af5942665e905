"""Patterns of networks, as users write them: what idioms, layouts and fusions of the compiler were made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tessera import op
from tessera.dtypes import int32, int64
from tessera.ops.applications.rule import WantedOperand
from tessera.ops.flow.records import DTYPES as FLOWING
from tests.fuzz.borders import BORDERS

Tensor: TypeAlias = Any
Motif: TypeAlias = Callable[[Any, Tensor], "Tensor | None"]
"""(growth, a value) -> what the pattern makes of it; None where it takes no such value."""


def _floating(x: Tensor) -> bool:
    return bool(x.dtype.kind == "float" and x.dtype.itemsize > 1)


def _image(growth: Any, x: Tensor) -> Tensor | None:
    """An image [N, C, H, W] with small extents."""
    if len(x.shape) == 4 and max(x.shape) <= 24 and min(x.shape) > 0 and _floating(x):
        return x
    if not _floating(x):
        return None
    chance = growth.chance
    shape = (chance.choice((1, 1, 2)), chance.choice((1, 3, 4, 8)), chance.randint(2, 9), chance.randint(2, 9))
    return growth.obtain(WantedOperand(shape, x.dtype))


def _matrix(growth: Any, x: Tensor) -> Tensor | None:
    return x if len(x.shape) >= 2 and _floating(x) and 0 not in x.shape else None


def _convolved(growth: Any, x: Tensor, outputs: int, size: int, **options: Any) -> Tensor:
    groups = options.get("groups", 1)
    weights = growth.obtain(WantedOperand((outputs, x.shape[1] // groups, size, size), x.dtype))
    return op.conv2d(x, op.tanh(weights) * 0.3 if growth.chance.random() < 0.3 else weights, **options)


def convolution_block(growth: Any, x: Tensor) -> Tensor | None:
    """Convolution, scale and shift of each channel, activation; now and then what came in, added."""
    image = _image(growth, x)
    if image is None:
        return None
    chance, c = growth.chance, image.shape[1]
    size = chance.choice((1, 1, 3))
    y = _convolved(growth, image, c, size, padding=size // 2, stride=chance.choice((1, 1, 2)))
    scale, shift = (growth.obtain(WantedOperand((c, 1, 1), x.dtype)) for _ in range(2))
    y = chance.choice((op.relu, op.silu, op.gelu, op.tanh))(y * scale + shift)
    return y + image if y.shape == image.shape and chance.random() < 0.6 else y


def squeeze_and_excitation(growth: Any, x: Tensor) -> Tensor | None:
    """Channels weighted by what a small network makes of their means, then a convolution."""
    image = _image(growth, x)
    if image is None:
        return None
    chance, c = growth.chance, image.shape[1]
    y = _convolved(growth, image, c, 1) if chance.random() < 0.7 else image
    gate = op.mean(y, (2, 3), True)
    if chance.random() < 0.6:
        gate = op.sigmoid(_convolved(growth, op.relu(_convolved(growth, gate, max(c // 2, 1), 1)), c, 1))
    scaled = gate * y
    return _convolved(growth, scaled, c, 1) if chance.random() < 0.7 else scaled


def depthwise_separable(growth: Any, x: Tensor) -> Tensor | None:
    """A convolution of each channel, padded as it comes, then one over channels."""
    image = _image(growth, x)
    if image is None:
        return None
    chance, c = growth.chance, image.shape[1]
    weights = growth.obtain(WantedOperand((c, 1, 3, 3), x.dtype))
    y = op.depthwise_conv2d(image, weights, padding=1, stride=chance.choice((1, 2)))
    return _convolved(growth, op.relu(y), chance.choice((c, 5)), 1)


def pooled(growth: Any, x: Tensor) -> Tensor | None:
    """Pools of either kind, and what lies around them."""
    image = _image(growth, x)
    if image is None or min(image.shape[2:]) < 2:
        return None
    chance = growth.chance
    pool = op.avg_pool2d if growth.smooth or chance.random() < 0.5 else op.max_pool2d
    return pool(op.relu(image), chance.choice((2, (1, 2))), stride=chance.choice((1, 2))) * 0.5


def upsampled(growth: Any, x: Tensor) -> Tensor | None:
    """Each pixel twice along both sides, by repetition, and a skip connection beside it."""
    image = _image(growth, x)
    if image is None:
        return None
    n, c, h, w = image.shape
    wide = op.reshape(op.broadcast_to(op.reshape(image, (n, c, h, 1, w, 1)), (n, c, h, 2, w, 2)), (n, c, 2 * h, 2 * w))
    skip = growth.obtain(WantedOperand((n, 2, 2 * h, 2 * w), x.dtype))
    return _convolved(growth, op.concat([wide, skip], 1), 4, 3, padding=1)


def group_norm(growth: Any, x: Tensor) -> Tensor | None:
    """Images normalized in groups of channels, by hand."""
    image = _image(growth, x)
    if image is None:
        return None
    n, c, h, w = image.shape
    groups = growth.chance.choice([count for count in (1, 2, 4) if c % count == 0])
    y = op.reshape(image, (n, groups, c // groups * h * w))
    mean = op.mean(y, -1, True)
    variance = op.mean((y - mean) * (y - mean), -1, True)
    y = op.reshape((y - mean) * op.rsqrt(variance + 0.1), (n, c, h, w))
    return op.silu(y * growth.obtain(WantedOperand((c, 1, 1), x.dtype)))


def channel_shuffle(growth: Any, x: Tensor) -> Tensor | None:
    """Channels exchanged between groups, around a convolution in groups."""
    image = _image(growth, x)
    if image is None or image.shape[1] % 2:
        return None
    n, c, h, w = image.shape
    y = _convolved(growth, image, c, 1, groups=2)
    return op.reshape(op.transpose(op.reshape(y, (n, 2, c // 2, h, w)), (0, 2, 1, 3, 4)), (n, c, h, w))


def attention_written_out(growth: Any, x: Tensor) -> Tensor | None:
    """softmax(Q K^T) V, with one of several masks."""
    q = _matrix(growth, x)
    if q is None or len(q.shape) > 4:
        return None
    chance, (*lead, rows, head) = growth.chance, q.shape
    keys = chance.choice((rows, 1, 5, 17))
    k, v = (
        growth.obtain(WantedOperand((*lead, keys, head), x.dtype)),
        growth.obtain(WantedOperand((*lead, keys, 5), x.dtype)),
    )
    scores = op.matmul(op.tanh(q), op.swapaxes(op.tanh(k), -1, -2)) * chance.choice((0.125, 1.0))
    kind = chance.randint(0, 5)
    if kind > 3:  # soft-capped, and then maybe seen through a window
        scores = op.tanh(scores / 2.5) * 2.5
    if kind == 5:
        row, column = op.reshape(op.arange(rows), (rows, 1)), op.arange(keys)
        scores = op.where((column <= row) & (row - column < 7), scores, float("-inf"))
    if kind == 1:
        scores = scores + growth.obtain(WantedOperand((rows, keys), x.dtype))
    elif kind == 2:
        scores = op.where(op.reshape(op.arange(rows), (rows, 1)) >= op.arange(keys), scores, float("-inf"))
    elif kind == 3:
        weights = op.exp(scores - op.max(scores, -1, True))
        return op.matmul(weights / op.sum(weights, -1, True), v)
    return op.matmul(op.softmax(scores), v)


def feed_forward(growth: Any, x: Tensor) -> Tensor | None:
    """A norm, a gated product and a product back, added to what came in."""
    value = _matrix(growth, x)
    if value is None or len(value.shape) > 3:
        return None
    chance, columns = growth.chance, value.shape[-1]
    normed = chance.choice((op.rms_norm, op.layer_norm))(value, eps=0.5)
    wide = chance.choice((columns, 7, 33))
    up, gate = (growth.obtain(WantedOperand((columns, wide), x.dtype)) for _ in range(2))
    down = growth.obtain(WantedOperand((wide, columns), x.dtype))
    hidden = op.silu(op.matmul(normed, gate)) * op.matmul(normed, up) if chance.random() < 0.6 else op.gelu(normed @ up)
    return value + op.matmul(hidden, down) * (1.0 / wide)


def heads(growth: Any, x: Tensor) -> Tensor | None:
    """Columns taken apart into heads, mixed, and put together again."""
    value = _matrix(growth, x)
    if value is None or len(value.shape) != 2:
        return None
    rows, columns = value.shape
    count = growth.chance.choice([number for number in (1, 2, 3, 4) if columns % number == 0])
    apart = op.transpose(op.reshape(value, (rows, count, columns // count)), (1, 0, 2))
    mixed = op.flash_attention(apart, op.tanh(apart), apart, causal=growth.chance.random() < 0.5)
    return op.reshape(op.transpose(mixed, (1, 0, 2)), (rows, columns))


def generated(growth: Any, x: Tensor) -> Tensor | None:
    """A step of generating tokens: heads of each row against keys and values in pages of a pool, which rows share."""
    value = _matrix(growth, x)
    if value is None or len(value.shape) != 2 or 0 in value.shape:
        return None
    chance, (rows, columns) = growth.chance, value.shape
    count = chance.choice([number for number in (1, 2, 3, 4, 6) if columns % number == 0])
    shared = chance.choice([number for number in (1, 2, 3) if count % number == 0])
    pages, page, most = chance.choice((1, 2, 5)), chance.choice((1, 3, 16)), chance.choice((1, 2, 4))
    pool = growth.obtain(WantedOperand((pages, shared, page, columns // count), value.dtype))
    table = growth.obtain(WantedOperand((rows, most), int32, below=pages))
    lengths = growth.obtain(WantedOperand((rows,), int32, below=most * page + 1))
    mixed = op.paged_attention(
        op.reshape(value, (rows, count, columns // count)),
        op.tanh(pool),
        pool,
        table,
        lengths,
        soft_cap=chance.choice((None, 2.0)),
        window=chance.choice((None, 2, page)),
    )
    return op.reshape(mixed, (rows, columns))


def both_ways(growth: Any, x: Tensor) -> Tensor | None:
    """A value beside itself turned round, or moved by one."""
    if len(x.shape) < 2 or x.dtype.kind not in ("float", "int"):
        return None
    turned = op.swapaxes(x, -1, -2)
    if turned.shape == x.shape:
        return x + turned
    rows = x.shape[-2]
    return op.concat([x[..., 1:, :], x[..., : rows - 1, :] * 2], -2) if rows > 1 else x * 2


def standardized(growth: Any, x: Tensor) -> Tensor | None:
    """Rows or columns less their means, divided by what they deviate."""
    value = _matrix(growth, x)
    if value is None:
        return None
    axis = growth.chance.randrange(-len(value.shape), 0)
    mean = op.mean(value, axis, True)
    centred = value - mean
    return centred / op.sqrt(op.mean(centred * centred, axis, True) + 0.5)


def running(growth: Any, x: Tensor) -> Tensor | None:
    """A running sum, weighted."""
    if not x.shape or not _floating(x):
        return None
    return op.tanh(op.cumsum(x * 0.1, growth.chance.randrange(len(x.shape)))) * x


def selected(growth: Any, x: Tensor) -> Tensor | None:
    """One value where a third is large, else another."""
    if not _floating(x) or growth.smooth:
        return None
    other = growth.obtain(WantedOperand(x.shape, x.dtype))
    return op.where(x > 0.25, other * 2.0, op.minimum(x, other))


def filtered(growth: Any, x: Tensor) -> Tensor | None:
    """Frequencies weighted, and back."""
    if not x.shape or x.dtype.name not in ("fp32", "fp64") or x.shape[-1] < 2:
        return None
    spectrum = op.rfft(x)
    return op.irfft(spectrum * 0.5, n=x.shape[-1]) + x


def looped(growth: Any, x: Tensor) -> Tensor | None:
    """A loop or a branch whose body is drawn, over a value, its rows, and what it reads from outside."""
    if x.dtype not in FLOWING or (growth.smooth and x.dtype.kind != "float"):
        return None
    chance, kind = growth.chance, growth.chance.choice(("scan", "scan", "scan", "map", "while", "cond"))
    carry = WantedOperand(x.shape, x.dtype)
    if kind == "while":
        steps = chance.randint(0, 4)
        found = op.while_loop(
            lambda value: value[0] < steps,
            lambda value: (value[0] + 1, growth.within([value[1]], [carry])[0]),
            (growth.fresh((), int64, below=1), x),
        )
        return found[1]
    if kind == "cond":
        asked = op.sum(x) > chance.choice((-1e9, 0, 1e9)) if x.dtype.kind != "bool" else op.all(x)
        return op.cond(asked, *[lambda value: growth.within([value], [carry])[0]] * 2, x)
    length = chance.choice((0, 1, 2, 3, 5))
    if x.shape and x.shape[0] <= 7 and chance.random() < 0.5:
        xs, carry = x, WantedOperand(x.shape[1:], x.dtype)
    else:
        xs = growth.obtain(WantedOperand((length, *x.shape), x.dtype))
    if kind == "map":
        return op.map(lambda row: growth.within([row], [None])[0], xs)
    last, rows = op.scan(
        lambda value, row: tuple(growth.within([value, row], [carry, None])),
        growth.obtain(carry),
        xs,
        reverse=chance.random() < 0.3,
    )
    if chance.random() < 0.5 and last.dtype is rows.dtype:
        return op.concat([op.reshape(last, (-1,)), op.reshape(rows, (-1,))], 0)
    return chance.choice((last, rows))


MOTIFS: tuple[Motif, ...] = (
    convolution_block,
    squeeze_and_excitation,
    depthwise_separable,
    pooled,
    upsampled,
    group_norm,
    channel_shuffle,
    attention_written_out,
    feed_forward,
    heads,
    generated,
    both_ways,
    standardized,
    running,
    selected,
    filtered,
    looped,
    *BORDERS,
)
