"""Blocks as operators of factors: that of a transformer by its dimensions."""

from __future__ import annotations

from tessera.sharding.planner.layouts import BlockOperator
from tessera.sharding.planner.transformer import Transformer

_X = ("batch", "sequence", "hidden")


def transformer_block(
    model: Transformer, batch: int, *, outside: frozenset[str] = frozenset()
) -> tuple[tuple[BlockOperator, ...], dict[str, int]]:
    """One dense block over `batch` sequences, and the extents of its factors; its result feeds its beginning.

    Factors in `outside` are not split in the block: "batch" where data parallelism does that around it.
    Keys and values of grouped heads count as their queries' heads do; an MLP of experts is that of those a token uses.
    """
    tokens = float(batch * model.sequence)
    own, gates = 2.0 * model.attention_parameters, 2 if model.gated else 1
    used = (model.top_k if model.experts > 1 else 1) + model.shared_experts
    inner = used * model.feedforward
    heads, up = ("batch", "sequence", "heads", "extent"), ("batch", "sequence", "inner")
    rows = frozenset(("hidden",))
    scores = frozenset(("extent", "sequence"))
    operators = (
        _map("x", _X, (9,)),
        _map("norm", _X, (0,), rows),
        _product("queries", _X, ("hidden", "heads", "extent"), heads, 1, tokens * own * 0.75, frozenset(("extent",))),
        BlockOperator("attention", (heads,), heads, (2,), (False,), tokens * model.attention_flops, scores),
        _product(
            "projection", heads, ("heads", "extent", "hidden"), _X, 3, tokens * own * 0.25, frozenset(("extent",))
        ),
        BlockOperator("residual", (_X, _X), _X, (0, 4), (False, False), 0.0),
        _map("second norm", _X, (5,), rows),
        _product("up", _X, ("hidden", "inner"), up, 6, 2 * tokens * gates * model.hidden * inner),
        _product("down", up, ("inner", "hidden"), _X, 7, 2 * tokens * model.hidden * inner),
        BlockOperator("second residual", (_X, _X), _X, (5, 8), (False, False), 0.0),
    )
    extents = {
        "batch": batch,
        "sequence": model.sequence,
        "hidden": model.hidden,
        "heads": model.heads,
        "extent": model.queries // model.heads,
        "inner": inner,
    }
    return tuple(operator._replace(whole=operator.whole | outside) for operator in operators), extents


def _map(
    name: str, dims: tuple[str, ...], sources: tuple[int, ...], whole: frozenset[str] = frozenset()
) -> BlockOperator:
    return BlockOperator(name, (dims,), dims, sources, (False,), 0.0, whole)


def _product(
    name: str,
    operand: tuple[str, ...],
    weight: tuple[str, ...],
    result: tuple[str, ...],
    source: int,
    flops: float,
    whole: frozenset[str] = frozenset(),
) -> BlockOperator:
    return BlockOperator(name, (operand, weight), result, (source, None), (False, True), flops, whole)
