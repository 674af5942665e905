"""Staging layouts, scratch memory, streaming stores and hints on the LLVM backend."""

from __future__ import annotations

import pytest
import torch

from tessera.backend.llvm import LLVMBackend
from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse
from tessera.target import Target, detect
from tests.unit.backend.llvm.harness import Guarded, compile_text, run, targets
from tests.unit.scheduling.problems import AVX512

TARGETS = pytest.mark.parametrize("target", targets(), ids=lambda target: f"{target.vector_bits}bit")
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i1": torch.bool}


def staged_copy(dtype: str, layout: str, staged: str, tile: tuple[int, int], source: str, at: str, dims: str) -> str:
    """A kernel that stages all of X and copies it out of the staged buffer element by element."""
    x = f"memref<?x?x{dtype}, strided<{source}>>"
    y = f"memref<?x?x{dtype}, strided<[?, 1]>>"
    rows, columns = tile
    return f"""
"tessera.tile.kernel"() ({{
^bb0(%X: {x}, %Y: {y}):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %m = memref.dim %X, %c0 : {x}
  %n = memref.dim %X, %c1 : {x}
  %S = "tessera.tile.stage"(%m, %n) ({{
  ^at(%i: index, %j: index):
    %t = "tessera.tile.load"(%X, %i, %j) {{dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}}
      : ({x}, index, index) -> vector<{rows}x{columns}x{dtype}>
    "tessera.tile.yield"(%t) : (vector<{rows}x{columns}x{dtype}>) -> ()
  }}) {{level = "L2", layout = "{layout}", maximum = array<i64: 40, 50>}} : (index, index) -> {staged}
  "tessera.tile.for"(%c0, %m) ({{
  ^row(%i: index):
    "tessera.tile.for"(%c0, %n) ({{
    ^column(%j: index):
      %i8 = arith.divsi %i, %c8 : index
      %ir = arith.remsi %i, %c8 : index
      %i2 = arith.divsi %i, %c2 : index
      %ip = arith.remsi %i, %c2 : index
      %j8 = arith.divsi %j, %c8 : index
      %jr = arith.remsi %j, %c8 : index
      %e = "tessera.tile.load"(%S, {at}) {{dims = array<i64: {dims}>, in_bounds = array<i1: true, true>}}
        : ({staged}, {", ".join(["index"] * len(at.split(",")))}) -> vector<1x1x{dtype}>
      "tessera.tile.store"(%e, %Y, %i, %j) {{dims = array<i64: 0, 1>, in_bounds = array<i1: true, true>}}
        : (vector<1x1x{dtype}>, {y}, index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = 1}} : (index, index) -> ()
    "tessera.tile.yield"() : () -> ()
  }}) {{step = 1}} : (index, index) -> ()
}}) {{sym_name = "staged_copy", outputs = array<i64: 1>}} : () -> ()
"""


LAYOUTS = {
    "rows": ("memref<?x?x{}>", "%i, %j", "0, 1"),
    "panels": ("memref<?x?x8x{}>", "%j8, %i, %jr", "1, 2"),
    "row_panels": ("memref<?x?x8x{}>", "%i8, %j, %ir", "2, 1"),
}


def check_copy(text: str, x: torch.Tensor, target: Target) -> None:
    y = Guarded(torch.zeros(x.shape, dtype=x.dtype))
    run(compile_text(text, target), [x, y.tensor])
    y.check(output=True)
    assert torch.equal(y.tensor, x)


@TARGETS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [(1, 8), (8, 8), (8, 4), (4, 1), (2, 2)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_layouts(layout: str, dtype: str, tile: tuple[int, int], by_columns: bool, target: Target) -> None:
    staged, at, dims = LAYOUTS[layout]
    text = staged_copy(dtype, layout, staged.format(dtype), tile, "[1, ?]" if by_columns else "[?, 1]", at, dims)
    x = torch.randn(37, 45).gt(0).to(DTYPES[dtype]) if dtype == "i1" else torch.randn(37, 45).to(DTYPES[dtype])
    check_copy(text, x.t().contiguous().t() if by_columns else x, target)


@TARGETS
@pytest.mark.parametrize("tile", [(2, 8), (4, 8), (6, 8), (8, 4), (32, 8), (64, 8)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_interleaved_pairs(tile: tuple[int, int], by_columns: bool, target: Target) -> None:
    source = "[1, ?]" if by_columns else "[?, 1]"
    text = staged_copy("bf16", "panels_vnni", "memref<?x?x8x2xbf16>", tile, source, "%j8, %i2, %jr, %ip", "3, 2")
    x = torch.randn(33, 41).bfloat16()
    check_copy(text, x.t().contiguous().t() if by_columns else x, target)


def test_pairs_of_transposed_tiles_move_as_one_element() -> None:
    staged, at = "memref<?x?x8x2xbf16>", "%j8, %i2, %jr, %ip"
    module = parse(staged_copy("bf16", "panels_vnni", staged, (8, 8), "[1, ?]", at, "3, 2"))
    source = LLVMBackend().emit(module, AVX512, "source")
    assert isinstance(source, str)
    shuffles = [line for line in source.splitlines() if "shufflevector" in line]
    assert len(shuffles) >= 2 * 8  # two blocks of 4 x 4 pairs, two exchanges each of every row
    assert not [line for line in shuffles if "x i16> %" in line]


def test_tiles_wider_than_a_panel_of_whole_vectors() -> None:
    text = staged_copy("f32", "panels", "memref<?x?x16xf32>", (2, 32), "[?, 1]", "%j16, %i, %jr16", "1, 2").replace(
        "%ir = arith.remsi",
        "%c16 = arith.constant 16 : index\n%j16 = arith.divsi %j, %c16 : index\n"
        "%jr16 = arith.remsi %j, %c16 : index\n%ir = arith.remsi",
    )
    for target in targets():
        check_copy(text, torch.randn(9, 50), target)


def test_tiles_that_do_not_fit_the_panels_are_refused() -> None:
    text = staged_copy("f32", "panels", "memref<?x?x8xf32>", (1, 12), "[?, 1]", "%j8, %i, %jr", "1, 2")
    with pytest.raises(CompileError, match="12 columns does not fit panels of 8"):
        compile_text(text)


STREAM = """
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, 1]>>, %Y: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %S = "tessera.tile.alloc"() {level = "L1"} : () -> memref<2x32xf32>
  %m = memref.dim %X, %c0 : memref<?x?xf32, strided<[?, 1]>>
  %n = memref.dim %X, %c1 : memref<?x?xf32, strided<[?, 1]>>
  "tessera.tile.parallel"(%m) ({
  ^box(%lo: index, %hi: index):
    "tessera.tile.for"(%lo, %hi) ({
    ^row(%i: index):
      "tessera.tile.for"(%c0, %n) ({
      ^column(%j: index):
        "tessera.tile.prefetch"(%X, %i, %j) {rows = 4, columns = 64}
          : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        %x = "tessera.tile.load"(%X, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: true, true>}
          : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<1x32xf32>
        "tessera.tile.store"(%x, %S, %c1, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: true, true>}
          : (vector<1x32xf32>, memref<2x32xf32>, index, index) -> ()
        %y = "tessera.tile.load"(%S, %c1, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: true, true>}
          : (memref<2x32xf32>, index, index) -> vector<1x32xf32>
        "tessera.tile.store"(%y, %Y, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: true, true>, nontemporal}
          : (vector<1x32xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }) {step = 32} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 1} : (index, index) -> ()
  }) {steps = array<i64: 1>, split = 0} : (index) -> ()
}) {sym_name = "stream", outputs = array<i64: 1>} : () -> ()
"""


@TARGETS
@pytest.mark.parametrize("gap", [0, 1, 16])
def test_streaming_stores_at_any_alignment(gap: int, target: Target) -> None:
    x = torch.randn(5, 96)
    y = Guarded(torch.zeros(5, 96), [96 + gap, 1])
    kernel = compile_text(STREAM, target)
    run(kernel, [x, y.tensor], workers=2)
    y.check(output=True)
    assert torch.equal(y.tensor, x)
    assert kernel.workspace_bytes == 2 * 32 * 4


def test_streaming_stores_are_used_and_fenced() -> None:
    from tessera.backend.llvm import LLVMBackend

    text = str(LLVMBackend().emit(parse(STREAM), detect(), "source"))
    assert "!nontemporal" in text
    assert "fence" in text


REDUCE_ROWS = """
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, 1]>>, %Y: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %x = "tessera.tile.load"(%X, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
    : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<7x20xf32>
  %column = "tessera.tile.reduce"(%x) {kind = "max", axis = 1} : (vector<7x20xf32>) -> vector<7x1xf32>
  %wide = "tessera.tile.broadcast"(%column) : (vector<7x1xf32>) -> vector<7x20xf32>
  %centred = arith.subf %x, %wide : vector<7x20xf32>
  %row = "tessera.tile.reduce"(%centred) {kind = "add", axis = 0} : (vector<7x20xf32>) -> vector<1x20xf32>
  "tessera.tile.store"(%row, %Y, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
    : (vector<1x20xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
}) {sym_name = "reduce_rows", outputs = array<i64: 1>} : () -> ()
"""


@TARGETS
def test_reductions_along_both_axes(target: Target) -> None:
    x, y = torch.randn(7, 20), Guarded(torch.zeros(1, 18))
    run(compile_text(REDUCE_ROWS, target), [x, y.tensor])
    y.check(output=True)
    expected = torch.zeros(1, 18)
    run_kernel(parse(REDUCE_ROWS), [x, expected])
    torch.testing.assert_close(y.tensor, expected, rtol=1e-6, atol=1e-6)
