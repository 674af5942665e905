"""How many values of an expression live at once: what its evaluation needs of vector registers."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.scheduling.language.expression import Value


def live_values(ordered: Sequence[Value]) -> int:
    """The most values that are needed later at any time, when they are computed in this order, which is one of
    `post_order`. Constants and scalars are operands of instructions.
    """
    last: dict[Value, int] = {}
    for time, value in enumerate(ordered):
        for argument in value.arguments:
            last[argument] = time
    live: set[Value] = set()
    most = 0
    for time, value in enumerate(ordered):
        if value.operation in ("constant", "scalar", "extent"):
            continue
        live.add(value)
        most = max(most, len(live))
        live = {each for each in live if last.get(each, time) > time}
    return most
