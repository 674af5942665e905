"""The Tile IR interpreter: kernels written by hand compute what torch computes, and broken promises are errors."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera.errors import IRError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.interpreter.memory import TilePlace
from tessera.ir.parsing import parse, print_module
from tessera.ir.verification import verify

KERNELS = {path.stem: path.read_text() for path in (Path(__file__).parent / "kernels").glob("*.mlir")}
MODULES = {name: parse(text, name) for name, text in KERNELS.items()}
EXTENT = st.integers(1, 21)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"))


def edited(name: str, before: str, after: str) -> ModuleOp:
    assert before in KERNELS[name]
    return parse(KERNELS[name].replace(before, after))


@pytest.mark.parametrize("name", KERNELS)
def test_printed_kernels_parse_back_to_the_same_text(name: str) -> None:
    printed = print_module(MODULES[name])
    assert print_module(parse(printed)) == printed


@settings(max_examples=15, deadline=None)
@given(m=EXTENT, n=EXTENT, k=EXTENT, seed=st.integers(0, 1000), transposed=st.booleans())
def test_staged_matmul_of_any_extents_and_any_partition(m: int, n: int, k: int, seed: int, transposed: bool) -> None:
    a, b, c = normal(m, k), normal(n, k).T if transposed else normal(k, n), poisoned(m, n)
    run_kernel(MODULES["matmul_staged"], [a, b, c], partition=random.Random(seed))
    torch.testing.assert_close(c, a @ b)


@settings(max_examples=10, deadline=None)
@given(m=EXTENT, n=EXTENT, k=EXTENT, seed=st.integers(0, 1000))
def test_vnni_staging_of_bfloat16_with_fp32_sums(m: int, n: int, k: int, seed: int) -> None:
    a, b, c = normal(m, k, dtype=torch.bfloat16), normal(k, n, dtype=torch.bfloat16), poisoned(m, n)
    run_kernel(MODULES["matmul_vnni"], [a, b, c], partition=random.Random(seed))
    torch.testing.assert_close(c, a.float() @ b.float())


@settings(max_examples=15, deadline=None)
@given(m=EXTENT, n=EXTENT, seed=st.integers(0, 1000))
def test_softmax_masks_what_lies_outside(m: int, n: int, seed: int) -> None:
    x, y = normal(m, 2 * n)[:, ::2], poisoned(m, n)
    run_kernel(MODULES["softmax"], [x, y], partition=random.Random(seed))
    torch.testing.assert_close(y, torch.softmax(x, -1))


@settings(max_examples=15, deadline=None)
@given(rows=EXTENT, columns=EXTENT, seed=st.integers(0, 1000))
def test_transposed_loads_and_broadcast_memrefs(rows: int, columns: int, seed: int) -> None:
    x, bias, z = normal(columns, rows), normal(columns), poisoned(rows, columns)
    run_kernel(MODULES["add_transposed"], [x, bias.expand(rows, columns), 0.5, z], partition=random.Random(seed))
    torch.testing.assert_close(z, 0.5 * x.T + bias)


def test_halves_and_tiles_side_by_side() -> None:
    x, y, z = normal(4, 16), normal(4, 16) + 1, poisoned(4, 16)
    run_kernel(MODULES["halves"], [x, y, z])
    torch.testing.assert_close(z, torch.cat([(x[:2] - x[2:]) * (y[:2] - y[2:]), (x[:2] + x[2:]) * (y[:2] + y[2:])]))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("%sum) {axis = 0}", "%sum) {axis = 1}", "2 tiles vector<2x32xf32> along axis 1 are vector<2x64xf32>"),
        ("(%x, %y) {axis = 1}", "(%x, %y) {axis = 2}", "has no axis 2"),
    ],
)
def test_tiles_side_by_side_are_as_large_as_they_are_together(before: str, after: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(edited("halves", before, after))


def test_an_empty_extent_runs_nothing() -> None:
    c = poisoned(0, 5)
    run_kernel(MODULES["matmul_staged"], [normal(0, 4), normal(4, 5), c])
    assert c.shape == (0, 5)


def test_any_value_outside_is_poison_where_it_is_not_masked() -> None:
    unmasked = edited("softmax", "%larger = arith.maximumf %so_far, %masked", "%larger = arith.maximumf %so_far, %x")
    y = torch.zeros(2, 5)
    run_kernel(unmasked, [normal(2, 5), y])
    assert y.isnan().all()


def test_scratch_memory_is_poison_until_it_is_written() -> None:
    module = parse("""
        "tessera.tile.kernel"() ({
        ^bb0(%out: memref<?xf32>, %flags: memref<?xi1>):
          %c0 = arith.constant 0 : index
          %scratch = "tessera.tile.alloc"() {level = "l1"} : () -> memref<4xf32>
          %t = "tessera.tile.load"(%scratch, %c0) {dims = array<i64: 0>, in_bounds = array<i1: true>}
            : (memref<4xf32>, index) -> vector<4xf32>
          "tessera.tile.store"(%t, %out, %c0) {dims = array<i64: 0>, in_bounds = array<i1: true>}
            : (vector<4xf32>, memref<?xf32>, index) -> ()
          %equal = "tessera.tile.compare"(%t, %t) {predicate = "eq"} : (vector<4xf32>, vector<4xf32>) -> vector<4xi1>
          "tessera.tile.store"(%equal, %flags, %c0) {dims = array<i64: 0>, in_bounds = array<i1: true>}
            : (vector<4xi1>, memref<?xi1>, index) -> ()
        }) {sym_name = "leak", outputs = array<i64: 0, 1>} : () -> ()
    """)
    out, flags = torch.zeros(4), torch.ones(4, dtype=torch.bool)
    run_kernel(module, [out, flags])
    assert out.isnan().all()
    assert not flags.any()


def test_a_broken_in_bounds_promise_is_an_error() -> None:
    bold = edited("add_transposed", "in_bounds = array<i1: false, false>", "in_bounds = array<i1: true, true>")
    with pytest.raises(IRError, match=r"leaves the extents .* in_bounds promises"):
        run_kernel(bold, [normal(5, 3), normal(5).expand(3, 5), 1.0, poisoned(3, 5)])


def test_a_stage_beyond_its_maximum_is_an_error() -> None:
    a, b = normal(2, 65, dtype=torch.bfloat16), normal(65, 3, dtype=torch.bfloat16)
    with pytest.raises(IRError, match=r"sub-block \(65, 3\) exceeds its maximum \(64, 64\)"):
        run_kernel(MODULES["matmul_vnni"], [a, b, poisoned(2, 3)])


def test_a_store_to_an_argument_that_is_no_output_is_an_error() -> None:
    silent = edited("softmax", "outputs = array<i64: 1>", "outputs = array<i64: 0>")
    with pytest.raises(IRError, match="store to argument 1, which is not among the outputs"):
        run_kernel(silent, [normal(2, 3), poisoned(2, 3)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([normal(2, 3)], "takes 2 arguments, not 1"),
        ([normal(2, 3), poisoned(3, 2).T], "does not have the stride 1"),
        ([normal(2, 3).double(), poisoned(2, 3)], "does not fit memref"),
        ([normal(6), poisoned(2, 3)], "does not fit memref"),
        ([1.0, poisoned(2, 3)], "should be a tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: list[torch.Tensor | int | float], message: str) -> None:
    with pytest.raises(IRError, match=message):
        run_kernel(MODULES["softmax"], arguments)


def test_an_unknown_operation_is_an_error() -> None:
    foreign = edited("softmax", "math.exp", "math.sinh")
    with pytest.raises(IRError, match=r"does not know math\.sinh"):
        run_kernel(foreign, [normal(2, 3), poisoned(2, 3)])


def test_the_kernel_is_chosen_by_name() -> None:
    both = parse(KERNELS["softmax"] + KERNELS["matmul_staged"])
    x, y = normal(3, 5), poisoned(3, 5)
    run_kernel(both, [x, y], name="softmax")
    torch.testing.assert_close(y, torch.softmax(x, -1))
    with pytest.raises(IRError, match="none or several"):
        run_kernel(both, [x, y])


TURNED = """
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, 1]>>, %Z: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %columns = memref.dim %Z, %c1 : memref<?x?xf32, strided<[?, 1]>>
  "tessera.tile.parallel"(%columns) ({
  ^box(%lo: index, %hi: index):
    %x = "tessera.tile.load"(%X, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
      : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<4x16xf32>
    %z = "tessera.tile.transpose"(%x) : (vector<4x16xf32>) -> vector<16x4xf32>
    "tessera.tile.store"(%z, %Z, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
      : (vector<16x4xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
  }) {steps = array<i64: 16>, split = 0} : (index) -> ()
}) {sym_name = "turned", outputs = array<i64: 1>} : () -> ()
"""


def test_rows_and_columns_are_exchanged() -> None:
    x, z = normal(4, 16), poisoned(16, 4)
    run_kernel(parse(TURNED), [x, z])
    assert torch.equal(z, x.mT)
    with pytest.raises(IRError, match="transpose of"):
        verify(parse(TURNED.replace("16x4xf32", "8x8xf32")))


def test_a_tile_along_no_dimension_repeats_its_element() -> None:
    place = TilePlace(1, (-1, -1), (1, 4), (1, 1))
    found = place.inside(torch.arange(3.0), [2])
    assert found is not None
    assert found.tolist() == [[2.0] * 4]
