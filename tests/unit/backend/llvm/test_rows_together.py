"""What is done to several rows at once: sums across the lanes of each, and two rows stored column by column."""

from __future__ import annotations

import pytest
import torch

from tessera.errors import IRError
from tessera.ir.parsing import parse
from tessera.target import Target
from tests.unit.backend.llvm.test_tile_operations import TARGETS, compare

REDUCTION = """
"tessera.tile.kernel"() ({{
^bb0(%X: memref<?x?xf32>, %Y: memref<?x?xf32>):
  %c0 = arith.constant 0 : index
  %x = "tessera.tile.load"(%X, %c0, %c0) {{dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}}
    : (memref<?x?xf32>, index, index) -> vector<{rows}x{columns}xf32>
  %y = "tessera.tile.reduce"(%x) {{kind = "{kind}", axis = 1}}
    : (vector<{rows}x{columns}xf32>) -> vector<{rows}x1xf32>
  "tessera.tile.store"(%y, %Y, %c0, %c0) {{dims = array<i64: 1, 0>, in_bounds = array<i1: false, false>}}
    : (vector<{rows}x1xf32>, memref<?x?xf32>, index, index) -> ()
}}) {{sym_name = "reduction", outputs = array<i64: 1>}} : () -> ()
"""

PAIRS = """
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xbf16>, %Y: memref<?x?x2xbf16>):
  %c0 = arith.constant 0 : index
  %x = "tessera.tile.load"(%X, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: true, true>}
    : (memref<?x?xbf16>, index, index) -> vector<2x40xbf16>
  "tessera.tile.store"(%x, %Y, %c0, %c0, %c0) {dims = array<i64: 2, 1>, in_bounds = array<i1: true, true>}
    : (vector<2x40xbf16>, memref<?x?x2xbf16>, index, index, index) -> ()
}) {sym_name = "pairs", outputs = array<i64: 1>} : () -> ()
"""


@TARGETS
@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (2, 16), (3, 32), (7, 48), (16, 16), (21, 64), (4, 40)])
def test_rows_reduced_together_give_what_each_gives_alone(kind: str, rows: int, columns: int, target: Target) -> None:
    x = torch.randn(rows, columns)
    x[0, 3] = float("nan") if kind == "max" else 1e6
    together = REDUCTION.format(kind=kind, rows=rows, columns=columns)
    compare(together, [x, torch.full((1, rows), 7.0)], target, 1e-5)


@TARGETS
@pytest.mark.parametrize("kind", ["max", "min"])
def test_where_nan_may_become_anything_numbers_are_compared_alike(kind: str, target: Target) -> None:
    text = REDUCTION.format(kind=kind, rows=5, columns=48).replace("axis = 1}", 'axis = 1, nan = "any"}')
    x = torch.randn(5, 48)
    x[1, 7], x[2, 9], x[3] = float("inf"), -float("inf"), -float("inf")
    compare(text, [x, torch.full((1, 5), 7.0)], target)


def test_nan_is_any_or_absent() -> None:
    text = REDUCTION.format(kind="max", rows=1, columns=16).replace("axis = 1}", 'axis = 1, nan = "first"}')
    with pytest.raises(IRError, match='nan is "any" or absent'):
        parse(text)


@TARGETS
def test_two_rows_are_stored_column_by_column(target: Target) -> None:
    compare(PAIRS, [torch.randn(2, 40).bfloat16(), torch.zeros(1, 40, 2, dtype=torch.bfloat16)], target)
