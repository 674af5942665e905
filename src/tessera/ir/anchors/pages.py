"""The anchor of attention to keys and values that lie in pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tessera.ir.anchors.anchor import Anchor, AnchorError, Index

RANKS = (4, 4, 4, 0, 2, 1)


def paged_attention(ranks: tuple[int, ...], attributes: Mapping[str, Any]) -> Anchor:
    """`[s, (h g), i, d]`, `[p, h, j, d]`, `[p, h, j, e]`, a scale, `[s, t]`, `[s] -> [s, (h g), i, e]`: g heads of
    queries share one of keys and values; of sequence s the page p that holds its keys t, t + 1, ... times j is what the
    table says, which is data.
    """
    return _paged_attention(ranks, bool(attributes.get("causal")) or bool(attributes.get("window")))


@lru_cache(maxsize=64)
def _paged_attention(ranks: tuple[int, ...], is_placed: bool) -> Anchor:
    if ranks != RANKS:
        raise AnchorError(
            "queries are [sequences, heads, length, head size], pages of keys and of values [pages, heads, keys of a "
            "page, head size], the table is [sequences, pages of a sequence], lengths are [sequences]"
        )
    sequences = Index(("s",), refusal="queries of {known} sequences beside a table or lengths of {extent}")
    heads = Index(("h", "g"), refusal="{extent} heads of queries are no multiple of {known} heads of keys and values")
    shared = Index(("h",), refusal="keys have {known} heads, values have {extent}")
    pages = Index(("p",), refusal="{known} pages of keys and {extent} of values")
    inside = Index(("j",), refusal="{known} keys of a page and {extent} values")
    size, value_size = Index(("d",), refusal="head sizes {known} of queries and {extent} of keys differ"), Index(("e",))
    queries = Index(("i",))
    return Anchor(
        (
            (sequences, heads, queries, size),
            (pages, shared, inside, size),
            (pages, shared, inside, value_size),
            (),
            (sequences, Index(("t",))),
            (sequences,),
        ),
        (sequences, heads, queries, value_size),
        reduced={"d": "add", "j": "row", "p": "row", "t": "row"},
        placed=frozenset({"j", "t", *(("i",) if is_placed else ())}),
    )
