"""Loads and stores of drawn tiles over drawn buffers: the interpreter's result, and nothing beyond the buffers."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse
from tests.unit.backend.llvm.harness import Guarded, compile_module, run, targets
from tests.whole import examples

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i1": torch.bool,
    "i32": torch.int32,
}
LAYOUTS = {"rows": "[?, 1]", "columns": "[1, ?]", "open": "[?, ?]", "spread": "[0, 1]", "repeated": "[?, 0]"}


@dataclass(frozen=True)
class Copy:
    """A kernel that copies a matrix in tiles: from (i + row, j + column) of the source to (i, j) of the target."""

    dtype: str
    tile: tuple[int, int]
    source: str
    target: str
    row: int
    column: int
    fill: int
    anything: bool
    steps: tuple[int, int] = (1, 1)

    def text(self) -> str:
        """The kernel as Tile IR."""
        rows, columns = self.tile
        x = f"memref<?x?x{self.dtype}, strided<{LAYOUTS[self.source]}>>"
        y = f"memref<?x?x{self.dtype}, strided<{LAYOUTS[self.target]}>>"
        vector = f"vector<{rows}x{columns}x{self.dtype}>"
        literal = f"{float(self.fill)} : {self.dtype}" if "f" in self.dtype else f"{self.fill} : {self.dtype}"
        if self.dtype == "i1":
            literal = "true" if self.fill else "false"
        extra = ', oob = "any"' if self.anything else f", fill = {literal}"
        if self.steps != (1, 1):
            extra += f", steps = array<i64: {self.steps[0]}, {self.steps[1]}>"
        return f"""
"tessera.tile.kernel"() ({{
^bb0(%X: {x}, %Y: {y}):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %row = arith.constant {self.row} : index
  %column = arith.constant {self.column} : index
  %rows = memref.dim %Y, %c0 : {y}
  %columns = memref.dim %Y, %c1 : {y}
  "tessera.tile.parallel"(%rows, %columns) ({{
  ^box(%i_lo: index, %i_hi: index, %j_lo: index, %j_hi: index):
    "tessera.tile.for"(%i_lo, %i_hi) ({{
    ^rows(%i: index):
      %from = arith.addi %i, %row : index
      "tessera.tile.for"(%j_lo, %j_hi) ({{
      ^columns(%j: index):
        %at = arith.addi %j, %column : index
        %t = "tessera.tile.load"(%X, %from, %at) {{dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>{extra}}}
          : ({x}, index, index) -> {vector}
        "tessera.tile.store"(%t, %Y, %i, %j) {{dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}}
          : ({vector}, {y}, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }}) {{step = {columns}}} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = {rows}}} : (index, index) -> ()
  }}) {{steps = array<i64: {rows}, {columns}>, split = 0}} : (index, index) -> ()
}}) {{sym_name = "copy", outputs = array<i64: 1>}} : () -> ()
"""


def strides_of(layout: str, shape: Sequence[int], gap: int) -> list[int]:
    """Strides that a layout allows, with gaps between rows (or columns, or elements)."""
    rows, columns = shape
    return {
        "rows": [columns + gap, 1],
        "columns": [1, rows + gap],
        "open": [(columns + 1) * (gap + 1), gap + 1],
        "spread": [0, 1],
        "repeated": [1 + gap, 0],
    }[layout]


def drawn_values(dtype: str, shape: Sequence[int], layout: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-40, 40, tuple(shape), generator=generator)
    if layout == "spread":
        values = values[:1].expand(*shape)
    if layout == "repeated":
        values = values[:, :1].expand(*shape)
    return values.ge(0) if dtype == "i1" else values.to(DTYPES[dtype])


COPIES = st.builds(
    Copy,
    dtype=st.sampled_from(sorted(DTYPES)),
    tile=st.sampled_from([(1, 1), (1, 16), (1, 40), (4, 8), (16, 16), (3, 5), (12, 1), (6, 33), (2, 17), (16, 32)]),
    source=st.sampled_from(sorted(LAYOUTS)),
    target=st.sampled_from(["rows", "columns", "open"]),
    row=st.integers(-5, 5),
    column=st.integers(-20, 20),
    fill=st.integers(0, 1),
    anything=st.just(False),
    steps=st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (1, 3)]),
)
SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 70))


@settings(max_examples=examples(40, 80))
@given(copy=COPIES, source=SHAPES, target=SHAPES, gap=st.integers(0, 3), seed=st.integers(0, 99))
def test_tiles_over_drawn_buffers(
    copy: Copy, source: tuple[int, int], target: tuple[int, int], gap: int, seed: int
) -> None:
    x = drawn_values(copy.dtype, source, copy.source, seed)
    module = parse(copy.text())
    given_x = Guarded(x, strides_of(copy.source, source, gap))
    expected = Guarded(torch.zeros(target, dtype=x.dtype), strides_of(copy.target, target, gap)).tensor
    run_kernel(module, [given_x.tensor, expected])
    for cpu in targets():
        given_y = Guarded(torch.zeros_like(expected), strides_of(copy.target, target, gap))
        run(compile_module(module, cpu), [given_x.tensor, given_y.tensor], workers=2)
        given_x.check(output=False)
        given_y.check(output=True)
        assert torch.equal(given_y.tensor, expected)


class GuardPages:
    """Memory for one tensor between pages that may not be touched; it begins or ends right at such a page."""

    def __init__(self, values: torch.Tensor, at_end: bool) -> None:
        page, size = mmap.PAGESIZE, values.numel() * values.element_size()
        pages = -(-size // page)
        self._memory = mmap.mmap(-1, (pages + 2) * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._forbid(start, page)
        self._forbid(start + (pages + 1) * page, page)
        offset = page + (pages * page - size if at_end else 0)
        self.tensor = torch.frombuffer(self._memory, dtype=values.dtype, count=values.numel(), offset=offset)
        self.tensor = self.tensor.view(values.shape)
        self.tensor.copy_(values)

    @staticmethod
    def _forbid(address: int, size: int) -> None:
        mprotect = ctypes.CDLL(None).mprotect
        mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert mprotect(address, size, 0) == 0


@settings(max_examples=examples(20, 40))
@given(
    copy=COPIES,
    source=SHAPES,
    target=SHAPES,
    at_end=st.booleans(),
    anything=st.booleans(),
)
def test_no_page_beyond_a_buffer_is_touched(
    copy: Copy, source: tuple[int, int], target: tuple[int, int], at_end: bool, anything: bool
) -> None:
    copy = Copy(copy.dtype, copy.tile, "rows", "rows", copy.row, copy.column, copy.fill, anything, copy.steps)
    x = GuardPages(drawn_values(copy.dtype, source, "rows", 1), at_end)
    module = parse(copy.text())
    expected = torch.zeros(target, dtype=DTYPES[copy.dtype])
    if not anything:
        run_kernel(module, [x.tensor, expected])
    for cpu in targets():
        y = GuardPages(torch.zeros_like(expected), at_end)
        run(compile_module(module, cpu), [x.tensor, y.tensor])
        assert anything or torch.equal(y.tensor, expected)
