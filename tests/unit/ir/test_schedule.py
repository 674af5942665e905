"""Schedule IR: kernels and tiles refuse what does not fit."""

from __future__ import annotations

import pytest

from tessera.errors import IRError
from tessera.ir.parsing import parse
from tessera.ir.schedule.operations import TileOp

KERNEL = """
func.func @f(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %y = "tessera.schedule.kernel"(%x) ({
  ^bb0(%a: tensor<?x8xf32>):
    %t = "tessera.schedule.tile"(%a) {m = 4, n = 8, k = 2} : (tensor<?x8xf32>) -> tensor<?x8xf32>
    "tessera.schedule.yield"(%t) : (tensor<?x8xf32>) -> ()
  }) {sym_name = "k", family = "row"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  func.return %y : tensor<?x8xf32>
}
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("^bb0(%a: tensor<?x8xf32>)", "^bb0(%a: tensor<?x8xf32>, %b: f32)", "arguments differ in type"),
        (
            '"tessera.schedule.yield"(%t) : (tensor<?x8xf32>)',
            '"tessera.schedule.yield"() : ()',
            "yielded values differ",
        ),
        ("m = 4, n = 8, k = 2", "m = 4, n = 8", "m, n and k stand together"),
        ("m = 4, n = 8, k = 2", "tile_sizes = [4], m = 4, n = 8, k = 2", "either as tile_sizes or as m, n, k"),
        ("m = 4, n = 8, k = 2", "autotune = true", "either as tile_sizes or as m, n, k"),
        ("m = 4, n = 8, k = 2", "tile_sizes = [4, 0]", r"tile sizes \[4, 0\] should be positive"),
        ('"tessera.schedule.tile"(%a)', '"tessera.schedule.tile"(%x)', "IsolatedFromAbove"),
    ],
)
def test_malformed_schedules_are_refused(before: str, after: str, message: str) -> None:
    parse(KERNEL)
    assert before in KERNEL
    with pytest.raises(IRError, match=message):
        parse(KERNEL.replace(before, after))


def test_a_tiled_product_has_the_shape_of_the_product() -> None:
    text = """
    func.func @f(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>) {
      %c = "tessera.schedule.tile"(%a, %b) {tile_sizes = [2, 2, 2]}
        : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
      func.return
    }"""
    tiles = [op for op in parse(text).walk() if isinstance(op, TileOp)]
    assert [tile.sizes for tile in tiles] == [(2, 2, 2)]
    with pytest.raises(IRError, match=r"tile of \(4, 8\) f32 and \(8, 6\) f32 .* should be \(4, 6\)"):
        parse(text.replace("tensor<4x6xf32>", "tensor<6x4xf32>"))
