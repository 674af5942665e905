"""What the kernels of attention to pages are generated for."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class PagedAttentionSpec(AttentionSpec):
    """Attention whose keys and values have an axis more, p, the pages of a pool: along k they have the keys of a page.

    `table`, over a batch axis and t, says which page holds the keys t times the keys of a page and on; `lengths`, over
    the batch axis, how many keys there are. Of a `window`, which is 0 where there is none, queries see the last keys up
    to their own. With `heads_as_queries` all queries are at the last key.
    """

    table: Value
    lengths: Value
    window: int
    heads_as_queries: bool
