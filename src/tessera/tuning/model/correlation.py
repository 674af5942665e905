"""How well predictions order what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 3
"""Fewer pairs have no order to speak of."""


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's rank correlation of pairs (equal values share their mean rank), from -1 to 1; None of fewer than three
    pairs, and where one of the two does not vary.
    """
    import polars  # takes a tenth of a second to load

    if len(predicted) < LEAST:
        return None
    columns = {"predicted": list(predicted), "measured": list(measured)}
    found = polars.DataFrame(columns).select(polars.corr("predicted", "measured", method="spearman")).item()
    return None if math.isnan(found) else float(found)
