"""Rules of matrix products and of attention."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from tessera.dtypes import accumulator, bf16, bool_, fp16, fp32, fp64, int32, int64
from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand, floating, like


def of_products(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `matmul`: a value of two dimensions or more, from the left or from the right, with and without batches."""
    if len(x.shape) < 2:
        return None
    *batch, rows, columns = x.shape
    others = tuple(chance.choice((tuple(batch), (), (1,) * len(batch))))
    extent = chance.choice((1, 2, 5, 16, 17, rows, columns))
    if chance.random() < 0.5:
        return Application((like(x), WantedOperand((*others, columns, extent), x.dtype)))
    return Application((WantedOperand((*others, extent, rows), x.dtype), like(x)))


def of_scaled_products(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `gemm`: a product, and with it maybe what is added to it."""
    product = of_products(chance, x)
    if product is None:
        return None
    a, b = product.operands
    result = (a.shape[-2], b.shape[-1])
    addend = [WantedOperand(chance.choice((result, result[1:], (result[0], 1))), x.dtype)]
    scales = {"alpha": chance.choice((1.0, 0.5)), "beta": chance.choice((1.0, -2.0, 0.0))}
    return Application((a, b, *addend[: chance.randint(0, 1)]), scales if x.dtype.kind == "float" else {})


def of_grouped_products(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `grouped_matmul`: rows in up to three groups, maybe some in none."""
    if len(x.shape) != 2 or 0 in x.shape or x.dtype.kind != "float" or x.dtype.itemsize == 1:
        return None
    count = chance.randint(1, 3)
    weights = WantedOperand((count, x.shape[1], chance.choice((1, 5, 16))), x.dtype)
    return Application((like(x), weights, _sizes(count, x.shape[0])))


def of_grouped_outer_products(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `grouped_outer`: two matrices of as many rows."""
    found = of_grouped_products(chance, x)
    if found is None:
        return None
    rows, weights, sizes = found.operands
    return Application((rows, WantedOperand((x.shape[0], weights.shape[2]), x.dtype), sizes))


def _sizes(count: int, rows: int) -> WantedOperand:
    """Sizes of groups that add up to so many rows at most."""
    return WantedOperand((count,), int64, below=rows // count + 1)


def of_attention(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `flash_attention`: heads that share keys, causal or with a mask of any broadcast shape."""
    if not 2 <= len(x.shape) <= 4 or x.shape[-1] == 0:
        return None
    *lead, queries, head = x.shape
    group = chance.choice([count for count in (1, 2, 3) if lead and lead[-1] % count == 0] or [1])
    shared = (*lead[:-1], lead[-1] // group) if lead else ()
    keys, values = chance.choice((1, 3, 17, queries)), chance.choice((1, 5, 16, head))
    dtype = floating(x.dtype)
    operands = [
        WantedOperand(x.shape, dtype),
        WantedOperand((*shared, keys, head), dtype),
        WantedOperand((*shared, keys, values), dtype),
    ]
    operands.append(WantedOperand((), fp32 if dtype.itemsize < 4 else dtype, below=3))  # a scale, which is not negative
    if chance.random() < 0.4:
        mask = chance.choice(((*lead, queries, keys), (keys,), (queries, keys), (queries, 1)))
        operands.append(WantedOperand(mask, chance.choice((bool_, dtype))))
    return Application(tuple(operands), {"causal": chance.random() < 0.4})


def of_attention_by_factors(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `scaled_attention`: without a mask, with a factor of the values, and a result of any float's dtype."""
    plain = of_attention(chance, x)
    if plain is None:
        return None
    *operands, scale = plain.operands[:4]
    own = operands[0].dtype
    # What is asked of fp64 is asked of its rounding: a result of fewer bits would say nothing of its gradient.
    dtype = own if own is fp64 else chance.choice((own, bf16, fp16, fp32))
    named = {"causal": plain.attributes["causal"], "dtype": dtype}
    return Application((*operands, scale, WantedOperand((), scale.dtype, below=3)), named)


_SCORINGS: Final = (
    ((("div", (0, 1), (), "{}"), ("tanh", (-1,), (), "{}"), ("mul", (-2, 1), (), "{}")), ("cap",)),
    ((("add", (0, 1), (), "{}"),), ("bias",)),
    ((("constant", (), (("value", "-inf"),), "{}"), ("where", (1, 0, -1), (), "{}")), ("seen",)),
    (
        (
            ("le", (2, 1), (), "bool"),
            ("constant", (), (("value", "-inf"),), "{}"),
            ("where", (-1, 0, -2), (), "{}"),
            ("add", (-3, 3), (), "{}"),
        ),
        ("queries", "keys", "bias"),
    ),
    (
        (("eq", (1, 2), (), "bool"), ("constant", (), (("value", "-inf"),), "{}"), ("where", (-1, 0, -2), (), "{}")),
        ("queries", "keys"),
    ),
)
"""Steps of `scored_attention`, and what they read beside the score."""


def of_scored_attention(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `scored_attention`: a cap, a bias, masks by booleans and by numbers of queries and keys."""
    found = _scored(chance, x)
    return None if found is None else found[0]


def _scored(chance: random.Random, x: AbstractValue) -> tuple[Application, tuple[str, ...]] | None:
    """The same, and what lies beside the scores."""
    plain = of_attention(chance, x)
    if plain is None:
        return None
    q, k, *_ = plain.operands
    lead, dtype = q.shape[:-1], accumulator(q.dtype)
    steps, beside = chance.choice(_SCORINGS)
    kinds = {
        "cap": WantedOperand((), dtype, below=5),
        "bias": WantedOperand(chance.choice(((k.shape[-2],), (*lead, k.shape[-2]))), dtype),
        "seen": WantedOperand(chance.choice(((k.shape[-2],), (q.shape[-2], k.shape[-2]), (*lead, 1))), bool_),
        "queries": WantedOperand((q.shape[-2], 1), int32, below=4),
        "keys": WantedOperand((k.shape[-2],), int32, below=4),
    }
    scores = tuple((name, places, texts, kind.format(dtype.name)) for name, places, texts, kind in steps)
    return Application((*plain.operands[:4], *(kinds[each] for each in beside)), {"scores": scores}), beside


def of_attention_gradients(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of what the gradient of such attention is made of: also a cotangent, the logarithms of sums, and means."""
    found = _trained(chance, x)
    return None if found is None else found[0]


def of_cotangents_beside(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of the cotangent of a number beside the scores that has one: a cap, or a bias."""
    found = _trained(chance, x)
    if found is None:
        return None
    application, beside = found
    places = [place for place, name in enumerate(beside, 1) if name in ("cap", "bias")]
    if not places:
        return None
    own = {"place": chance.choice(places), "along": chance.choice(("q", "k", "qk"))}
    return replace(application, attributes={**application.attributes, **own})


def _trained(chance: random.Random, x: AbstractValue) -> tuple[Application, tuple[str, ...]] | None:
    found = _scored(chance, x) if len(x.shape) > 2 else None
    if found is None:
        return None
    application, beside = found
    q, k, v, scale, *extras = application.operands
    numbers = WantedOperand((*q.shape[:-1], 1), scale.dtype)
    g = WantedOperand((*q.shape[:-1], v.shape[-1]), q.dtype)
    attributes: dict[str, object] = {"causal": chance.random() < 0.4, **application.attributes}
    if chance.random() < 0.3 and "cap" not in beside and "bias" not in beside:
        extras, beside, attributes["scores"] = [], (), ()
    return Application((q, k, v, g, numbers, numbers, scale, *extras), attributes), beside
