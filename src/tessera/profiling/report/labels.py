"""The names under which operators and kernels are shown: `MatMul[128x128x64]`, `FusedOp[FlashAttn]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tessera.ops import OPERATORS
from tessera.ops.record import family_of
from tessera.scheduling.language.schedule import Schedule

MOST_NAMED: Final = 4
"""Operators of a fused kernel that are named; of more, the first three are."""


def operator_name(operator: str) -> str:
    """An operator's name as a title: that of its record, else its words, `layer_norm` as LayerNorm."""
    record = OPERATORS.get(operator)
    title = record.title if record is not None else ""
    return title or "".join(part[:1].upper() + part[1:] for part in operator.split("_"))


def kernel_label(operators: Sequence[str], schedule: str) -> str:
    """A kernel of one operator with the tile of its schedule, if it has one, or of several operators with their names.
    Attention, which is always several operators in one, counts as fused.
    """
    names = [operator_name(operator) for operator in operators]
    if len(names) > 1 or any(family_of(operator).is_several for operator in operators):
        shown = names if len(names) <= MOST_NAMED else [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
        return f"FusedOp[{'+'.join(shown)}]"
    tile = tile_of(schedule)
    return names[0] if tile is None else f"{names[0]}[{'x'.join(map(str, tile))}]"


def tile_of(schedule: str) -> tuple[int, ...] | None:
    """The tile of a schedule as it prints itself; None where it has none."""
    tile = Schedule.parse(schedule).get("tile") if schedule else None
    return tile if isinstance(tile, tuple) else None
