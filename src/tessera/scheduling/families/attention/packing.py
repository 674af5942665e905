"""What attention of many queries keeps in scratch memory: packed operands, scores, and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tessera.dtypes import bf16
from tessera.scheduling.families.attention.nest import AttentionNest
from tessera.scheduling.families.attention.online_softmax import OnlineSoftmax
from tessera.scheduling.families.attention.visibility import is_sparse
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.panels import PanelReader, packed_panels, packed_rows
from tessera.scheduling.lowering.ranges import rounded_up
from tessera.scheduling.lowering.spec import AttentionSpec, unit_axis
from tessera.scheduling.lowering.writer import ArgumentTile

PADDING = 16
"""Elements of 4 bytes added to a packed row, so that rows do not fall into the same cache set."""
SQUARE = 16
"""Side of the squares that are transposed in registers."""


class PackedAttention(AttentionNest):
    """The nest with its operands packed. The factor of the scores is `factor` while a block is written; with `skips`
    blocks of scores that the mask hides are.
    """

    factor: SSAValue
    queries: PanelReader

    def __init__(
        self,
        spec: AttentionSpec,
        schedule: Schedule,
        native_bf16: bool,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(spec, schedule, builder, arguments)
        queries, keys = schedule.integers("tile")
        self.mr, self.nr = schedule.integers("micro")
        self.bm, self.bn = max(queries // self.nr, 1) * self.nr, round_up(keys, math.lcm(self.mr, 2))
        operands = (spec.q, spec.k, spec.v)
        self.pairs = native_bf16 and self.nr % SQUARE == 0 and self.mr % 2 == 0 and all(map(_is_bf16, operands))
        self.element, self.step = (bf16, 2) if self.pairs else (self.dtype, 1)
        self.softmax = OnlineSoftmax(builder, self.dtype, self.nr, axis=0)
        self.head, self.value_head = schedule.integers("head")
        self.scales_scores = self.pairs
        self.skips = is_sparse(spec.mask) and not spec.causal
        self._reserve()

    def _reserve(self) -> None:
        """Scratch memory of one worker."""
        panels, nr = self.bm // self.nr, self.nr
        rows = max(round_up(self.value_head, self.mr), round_up(self.value_head, SQUARE))
        shapes = [round_up(self.bn, self.mr), nr], [panels, rows, nr], [panels, nr], [panels, nr]
        self.scores, self.sums, self.largest, self.totals = (self.scratch(self.dtype, each, "L2") for each in shapes)
        # Weights take the place of scores, but for those that are rounded.
        self.weights = self.scratch(bf16, [self.bn // 2, nr, 2], "L1") if self.pairs else self.scores
        self.weight_rows = PanelReader(self.builder, self.weights, self.step)

    # -- scratch memory -------------------------------------------------------------------------------------------

    def get_rows(self, memory: SSAValue, at: Sequence[SSAValue], rows: int) -> SSAValue:
        """Rows of NR elements: `at` is the position of the first in all dimensions but the last."""
        rank = len(at)
        position = [*at, self.builder.index(0)]
        return self.builder.load(memory, position, [rank - 1, rank], (rows, self.nr), [True, True])

    def put_rows(self, value: SSAValue, memory: SSAValue, at: Sequence[SSAValue]) -> None:
        """Writes them."""
        rank = len(at)
        self.builder.store(value, memory, [*at, self.builder.index(0)], [rank - 1, rank], [True, True])

    def panel_number(self, first: SSAValue) -> SSAValue:
        """The number of the panel that begins with query `first` of the block."""
        return self.builder.floor_div(first, self.builder.index(self.nr))

    # -- packing --------------------------------------------------------------------------------------------------

    def _element(self, value: Value) -> Value:
        """An operand in the dtype that is multiplied."""
        return value.arguments[0] if self.pairs else value

    def pack_queries(self, count: SSAValue) -> PanelReader:
        """Q^T in panels, multiplied by the factor of the scores; pairs are multiplied as they are."""
        builder, most = self.builder, (round_up(self.head, SQUARE), self.bm)
        extents = self.staged_head(), count
        with packed_panels(builder, extents, most, self.nr, self.element, "L2", self.step) as stage:
            at = {"d": stage.row, "q": builder.add(self.at["q"], stage.column)}
            queries = self.write(self._element(self.spec.q), {"d": SQUARE, "q": self.nr}, at)
            if not self.pairs:
                queries = builder.append(arith.MulfOp(queries, self.softmax.spread(self.factor, queries)))
            stage.tile = queries
        return PanelReader(builder, stage.buffer, self.step)

    def staged_head(self) -> SSAValue:
        """The elements of a query or key that are packed, zeros where it has fewer."""
        return self.extents["d"]

    def _tile_of(self, value: Value) -> tuple[int, int]:
        """Keys and elements that are packed at a time: parts of a row as it lies in memory, or squares to transpose."""
        if unit_axis(value, self.spec.arguments, "d") == "k":
            return SQUARE, SQUARE
        return 1, SQUARE * self.step

    def pack_keys(self, key: SSAValue, width: SSAValue) -> SSAValue:
        """K, row after row; rows past the last key are 0, up to a whole register tile."""
        builder = self.builder
        rows, columns = self._tile_of(self.spec.k)
        most = round_up(round_up(self.bn, self.mr), rows), round_up(self.head, columns)
        extents = rounded_up(builder, width, self.mr), self.staged_head()
        with packed_rows(builder, extents, most, PADDING * self.step, self.element) as stage:
            at = {"k": builder.add(key, stage.row), "d": stage.column}
            stage.tile = self.write(self._element(self.spec.k), {"k": rows, "d": columns}, at)
        return stage.buffer

    def pack_values(self, key: SSAValue, width: SSAValue) -> SSAValue:
        """V, row after row, or each two rows interleaved, which are one panel; up to whole register tiles."""
        builder = self.builder
        rows, columns = self._tile_of(self.spec.v)
        if self.pairs:
            rows, columns = max(rows, 2), SQUARE
        most = round_up(round_up(self.bn, 2), rows), round_up(round_up(self.value_head, self.mr), columns)
        extents = width, rounded_up(builder, self.extents["v"], self.mr)
        with (
            packed_panels(builder, extents, most, most[1], bf16, "L2", 2, PADDING)
            if self.pairs
            else packed_rows(builder, extents, most, PADDING, self.element)
        ) as stage:
            at = {"k": builder.add(key, stage.row), "v": stage.column}
            stage.tile = self.write(self._element(self.spec.v), {"k": rows, "v": columns}, at)
        return stage.buffer


def _is_bf16(value: Value) -> bool:
    return value.operation == "cast" and value.arguments[0].dtype is bf16


def round_up(extent: int, step: int) -> int:
    return -(-extent // step) * step
