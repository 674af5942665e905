"""Patterns at the borders of what rules and layouts promise: each is where a kernel once was, or could be, wrong."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from tessera import op
from tessera.dtypes import dtype_of
from tessera.ops.algebra import call

Tensor: TypeAlias = Any


def _exact_enough(growth: Any, x: Tensor) -> Any:
    """A dtype whose roundings leave something to see of small differences between large numbers."""
    return x.dtype if x.dtype.name in ("fp32", "fp64") else growth.chance.choice((dtype_of("fp32"), dtype_of("fp64")))


def overflowing_integers(growth: Any, x: Tensor) -> Tensor | None:
    """Integers that leave their dtype on the way, and what asks for their sign."""
    if growth.smooth:
        return None
    chance = growth.chance
    dtype = dtype_of(chance.choice(("int8", "int8", "int32")))
    a = op.tensor(growth.fresh((chance.choice((5, 17, 33)),), dtype))
    large = a * a * (9 if dtype.name == "int8" else 1 << 26)
    kind = chance.randint(0, 2)
    if kind == 0:
        return op.relu(large)
    return op.maximum(large, a) if kind == 1 else op.where(large > 0, a, large)


def halves(growth: Any, x: Tensor) -> Tensor | None:
    """Numbers half-way between whole ones, rounded."""
    if growth.smooth or x.dtype.kind != "float" or x.dtype.itemsize == 1:
        return None
    whole = op.cast(growth.fresh((growth.chance.choice((4, 17, 40)),), dtype_of("int8")), x.dtype.torch)
    return op.round(whole * 0.5) + whole


def padded_after(growth: Any, x: Tensor) -> Tensor | None:
    """A convolution of single pixels whose image has zeros below and at its right, but none before."""
    chance, dtype = growth.chance, _exact_enough(growth, x)
    c, h, w = chance.choice((3, 8)), chance.randint(3, 9), chance.randint(3, 9)
    image, weights = growth.fresh((1, h, w, c), dtype), growth.fresh((c, c, 1, 1), dtype)
    made = call("conv2d", image, weights, padding=chance.choice(((0, 0, 1, 1), (0, 0, 2, 0), (0, 0, 0, 1))))
    return made * 0.5 if growth.smooth else op.relu(made)


def scaled_image(growth: Any, x: Tensor) -> Tensor | None:
    """A convolution of an image whose channels, columns or rows are scaled on the way in."""
    chance, dtype = growth.chance, _exact_enough(growth, x)
    c, h, w, kernel = chance.choice((3, 8)), chance.randint(3, 9), chance.randint(3, 9), chance.choice((2, 3))
    scale = growth.fresh(chance.choice(((c,), (w, 1), (h, 1, 1))), dtype)
    weights = growth.fresh((c, c, kernel, kernel), dtype)
    padding = chance.choice(((0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1)))
    return call("conv2d", growth.fresh((2, h, w, c), dtype) * scale, weights, padding=padding)


def weighted_channels(growth: Any, x: Tensor) -> Tensor | None:
    """A convolution's channels times their means, on the way into the next convolution."""
    chance, dtype = growth.chance, _exact_enough(growth, x)
    c, side = chance.choice((4, 8)), chance.randint(2, 6)
    weights = [growth.fresh((c, c, 1, 1), dtype) for _ in range(2)]
    y = op.conv2d(growth.fresh((1, c, side, side), dtype), weights[0])
    return op.conv2d(op.mean(y, (2, 3), True) * y, weights[1])


def far_from_zero(growth: Any, x: Tensor) -> Tensor | None:
    """Rows that deviate little from a large mean, normalized."""
    chance, dtype = growth.chance, _exact_enough(growth, x)
    rows = growth.fresh((chance.choice((1, 3, 8)), chance.choice((5, 17, 64))), dtype) + 700.0
    return op.layer_norm(rows, eps=1e-3) if chance.random() < 0.7 else op.var(rows, -1, True) * 1.0


def hidden_by_position(growth: Any, x: Tensor) -> Tensor | None:
    """Attention whose mask compares positions, over as many keys as queries and over others."""
    chance, dtype = growth.chance, _exact_enough(growth, x)
    rows, head = chance.choice((3, 8, 17)), chance.choice((4, 8))
    q = growth.fresh((rows, head), dtype)
    made = []
    for keys in (rows, rows + chance.choice((1, 5))):
        k, v = growth.fresh((keys, head), dtype), growth.fresh((keys, 5), dtype)
        scores = op.matmul(q, op.swapaxes(k, -1, -2)) * 0.25
        seen = op.reshape(op.arange(rows), (rows, 1)) >= op.arange(keys)
        made.append(op.matmul(op.softmax(op.where(seen, scores, float("-inf"))), v))
    growth.values.append(made[0])
    return made[1]


def repeated_heads(growth: Any, x: Tensor) -> Tensor | None:
    """Attention whose keys and values are repeated for the heads that share them."""
    chance, dtype = growth.chance, _exact_enough(growth, x)
    shared, times, keys, head = chance.choice((1, 2)), chance.choice((2, 3)), chance.choice((5, 17)), 8
    q = growth.fresh((1, shared * times, chance.choice((1, 17, 17)), head), dtype)
    k, v = (growth.fresh((1, shared, 1, keys, head), dtype) for _ in range(2))
    k, v = (
        op.reshape(op.broadcast_to(each, (1, shared, times, keys, head)), (1, shared * times, keys, head))
        for each in (k, v)
    )
    return op.flash_attention(q, op.tanh(k) if chance.random() < 0.3 else k, v)


def reshaped_heads(growth: Any, x: Tensor) -> Tensor | None:
    """Attention whose keys are copied and reshaped, twice in one form: as repeated heads, and across the heads."""
    dtype, made = _exact_enough(growth, x), []
    for shared, times, keys, heads in ((2, 3, 24, 6), (2, 4, 24, 6)):
        q = growth.fresh((heads, 8, 4), dtype)
        k = op.broadcast_to(growth.fresh((shared, 1, keys, 4), dtype), (shared, times, keys, 4))
        k = op.reshape(k, (heads, shared * times * keys // heads, 4))
        made.append(op.flash_attention(q, k, k))
    growth.values.append(made[0])
    return made[1]


def single_numbers(growth: Any, x: Tensor) -> Tensor | None:
    """Single numbers of fp64 in narrower dtypes, through functions, beside what they scale."""
    if growth.smooth:
        return None
    chance = growth.chance
    one = growth.fresh((), dtype_of("fp64"))
    narrow = op.cast(one, chance.choice((torch.float16, torch.bfloat16, torch.float32)))
    return op.tanh(narrow) * op.cast(growth.fresh((3, 7), dtype_of("fp16")), torch.float32)


BORDERS = (
    overflowing_integers,
    halves,
    padded_after,
    scaled_image,
    weighted_channels,
    far_from_zero,
    hidden_by_position,
    repeated_heads,
    reshaped_heads,
    single_numbers,
)
