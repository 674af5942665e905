"""Kernels that time their tiles, as Tile IR text asks for it."""

from __future__ import annotations

import numpy
import pytest
import torch

from tessera.backend.contract import KernelObject
from tessera.backend.llvm import LLVMBackend
from tessera.backend.tile_times import CAPACITY, COUNT, HEADER_WORDS, LONGEST, SHORTEST, TOTAL
from tessera.ir.parsing import parse
from tessera.runtime.plans.calling import call
from tessera.target import detect

DOUBLE = """
"tessera.tile.kernel"() ({{
^bb0(%x: memref<?xf32, strided<[1]>>):
  %zero = arith.constant 0 : index
  %count = memref.dim %x, %zero : memref<?xf32, strided<[1]>>
  "tessera.tile.parallel"(%count) ({{
  ^bb0(%lower: index, %upper: index):
    "tessera.tile.for"(%lower, %upper) ({{
    ^bb0(%i: index):
      %a = "tessera.tile.load"(%x, %i) {{dims = array<i64: -1, 0>, in_bounds = array<i1: true, false>}} : (memref<?xf32, strided<[1]>>, index) -> vector<1x16xf32>
      %b = arith.addf %a, %a : vector<1x16xf32>
      "tessera.tile.store"(%b, %x, %i) {{dims = array<i64: -1, 0>, in_bounds = array<i1: true, false>}} : (vector<1x16xf32>, memref<?xf32, strided<[1]>>, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = 16 : i64{mark}}} : (index, index) -> ()
  }}) {{steps = array<i64: 16>, split = 0 : i64}} : (index) -> ()
}}) {{sym_name = "double", outputs = array<i64: 0>{timed}}} : () -> ()
"""  # noqa: E501 - Tile IR


def built(mark: str = ", macro_tile", timed: str = ", timed") -> KernelObject:
    module = parse(DOUBLE.format(mark=mark, timed=timed))
    return LLVMBackend().compile(module, detect(), keep=False)


def timed_call(kernel: KernelObject, elements: int, workers: int = 1) -> numpy.ndarray | None:
    x = torch.arange(elements, dtype=torch.float32)
    times = call(LLVMBackend().load(kernel), [x], workers)
    assert torch.equal(x, 2 * torch.arange(elements, dtype=torch.float32))
    return times


@pytest.mark.parametrize("workers", [1, 3])
def test_every_turn_of_a_marked_loop_is_timed(workers: int) -> None:
    times = timed_call(built(), 16 * 10 + 5, workers)
    assert times is not None
    assert times[:, COUNT].sum() == 11
    for row in times:
        durations = row[HEADER_WORDS : HEADER_WORDS + row[COUNT]]
        assert row[TOTAL] == durations.sum()
        assert (row[SHORTEST], row[LONGEST]) == (durations.min(), durations.max())


def test_more_tiles_than_the_memory_holds_are_counted_and_summed() -> None:
    tiles = 2 * CAPACITY + 7
    times = timed_call(built(), 16 * tiles)
    assert times is not None
    (row,) = times
    assert row[COUNT] == tiles
    assert row[TOTAL] >= row[HEADER_WORDS:].sum()
    assert row[SHORTEST] <= row[HEADER_WORDS:].min()
    assert row[LONGEST] >= row[HEADER_WORDS:].max()


def test_without_a_marked_loop_a_workers_share_is_one_tile() -> None:
    times = timed_call(built(mark=""), 160, workers=2)
    assert times is not None
    assert times[:, COUNT].tolist() == [1, 1]


def test_a_worker_without_work_has_no_tile() -> None:
    times = timed_call(built(), 16, workers=2)
    assert times is not None
    assert sorted(times[:, COUNT].tolist()) == [0, 1]


def test_other_builds_time_nothing() -> None:
    assert timed_call(built(timed=""), 160) is None


def test_a_timed_build_says_so_when_it_is_kept() -> None:
    kernel = built()
    assert kernel.timed
    assert KernelObject.from_bytes(kernel.to_bytes()) == kernel
    assert not built(timed="").timed
