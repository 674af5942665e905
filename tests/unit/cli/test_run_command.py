"""`tessera opt --emit=object | tessera run`: edited Tile IR computes what the edit says."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from tessera import op
from tests.forked import tessera

KERNEL = """
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, 1]>>, %bias: memref<?x?xf32, strided<[0, 1]>>, %s: f32,
     %Y: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = memref.dim %X, %c0 : memref<?x?xf32, strided<[?, 1]>>
  %columns = memref.dim %X, %c1 : memref<?x?xf32, strided<[?, 1]>>
  "tessera.tile.parallel"(%rows, %columns) ({
  ^box(%i_lo: index, %i_hi: index, %j_lo: index, %j_hi: index):
    "tessera.tile.for"(%i_lo, %i_hi) ({
    ^row(%i: index):
      "tessera.tile.for"(%j_lo, %j_hi) ({
      ^column(%j: index):
        %x = "tessera.tile.load"(%X, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<4x16xf32>
        %b = "tessera.tile.load"(%bias, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (memref<?x?xf32, strided<[0, 1]>>, index, index) -> vector<4x16xf32>
        %factor = "tessera.tile.broadcast"(%s) : (f32) -> vector<4x16xf32>
        %scaled = arith.mulf %x, %factor : vector<4x16xf32>
        %y = arith.addf %scaled, %b : vector<4x16xf32>
        "tessera.tile.store"(%y, %Y, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (vector<4x16xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }) {step = 16} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 4} : (index, index) -> ()
  }) {steps = array<i64: 4, 16>, split = 0} : (index, index) -> ()
}) {sym_name = "scale_and_shift", outputs = array<i64: 3>} : () -> ()
"""


def run_text(text: str, folder: Path, *arguments: str) -> numpy.ndarray:
    compiled = tessera("opt", "--emit=object", given=text.encode())
    assert compiled.returncode == 0, compiled.stderr.decode()
    ran = tessera("run", "-", *arguments, "--output", str(folder / "y.npy"), given=compiled.stdout)
    assert ran.returncode == 0, ran.stderr.decode()
    assert "output 0: f32[6x19]" in ran.stdout.decode()
    result: numpy.ndarray = numpy.load(folder / "y.npy")
    return result


def test_edited_tile_ir_computes_what_the_edit_says(tmp_path: Path) -> None:
    generator = numpy.random.default_rng(0)
    x, bias = generator.normal(size=(6, 19)).astype("f4"), generator.normal(size=(6, 19)).astype("f4")
    numpy.save(tmp_path / "x.npy", x)
    numpy.save(tmp_path / "bias.npy", bias)
    operands = ["-a", str(tmp_path / "x.npy"), "-a", str(tmp_path / "bias.npy"), "-a", "2.5", "-a", "6x19"]

    as_printed = run_text(KERNEL, tmp_path, *operands)
    numpy.testing.assert_allclose(as_printed, x * 2.5 + bias[:1], rtol=1e-6)

    edited = KERNEL.replace("%y = arith.addf", "%y = arith.mulf").replace("arith.mulf %x,", "arith.divf %x,")
    numpy.testing.assert_allclose(run_text(edited, tmp_path, *operands), x / 2.5 * bias[:1], rtol=1e-6)


def test_a_wrong_number_of_arguments_shows_the_parameters(tmp_path: Path) -> None:
    compiled = tessera("opt", "--emit=object", given=KERNEL.encode())
    ran = tessera("run", "-", "-a", "6x19", given=compiled.stdout)
    assert ran.returncode == 1
    assert b"E_ARGUMENT" in ran.stderr
    assert b"f32[?x?], f32[?x?], f32, f32[?x?] (output)" in ran.stderr


@pytest.mark.parametrize("damage", [b"", b"no object", b"TESSERA-KERNEL-1\n1234"])
def test_what_is_no_object_is_refused(damage: bytes) -> None:
    ran = tessera("run", "-", given=damage)
    assert ran.returncode == 1
    assert b"E_CACHE_FORMAT" in ran.stderr


def test_an_operand_beyond_memory_is_an_error() -> None:
    compiled = tessera("opt", "--emit=object", given=KERNEL.encode())
    ran = tessera("run", "-", "-a", "9999999999999x99", "-a", "1x1", "-a", "1", "-a", "1x1", given=compiled.stdout)
    assert ran.returncode == 1
    assert ran.stderr.startswith(b"E_MEMORY_LIMIT: an array of 9999999999999x99 fp32")


def test_what_inspect_printed_runs_kernel_by_kernel(tmp_path: Path) -> None:
    x, w = numpy.random.default_rng(0).normal(size=(2, 20, 20)).astype("f4")
    numpy.save(tmp_path / "x.npy", x)
    numpy.save(tmp_path / "w.npy", w.T)  # its dimensions in the kernel's order: m, n, k
    (tmp_path / "tile.mlir").write_text(op.softmax(op.matmul(op.matmul(x, w), w)).inspect("tile"))
    refused = tessera("opt", str(tmp_path / "tile.mlir"), "--emit=object")
    assert b"3 kernels: matmul_0, matmul_1, softmax_2" in refused.stderr
    assert b"--kernel" in refused.stderr

    compiled = tessera("opt", str(tmp_path / "tile.mlir"), "--emit=object", "--kernel=matmul_1")
    operands = ["-a", str(tmp_path / "x.npy"), "-a", str(tmp_path / "w.npy"), "-a", "20x20"]
    ran = tessera("run", "-", *operands, "-o", str(tmp_path / "y.npy"), given=compiled.stdout)
    assert ran.returncode == 0, ran.stderr.decode()
    numpy.testing.assert_allclose(numpy.load(tmp_path / "y.npy"), x @ w, rtol=1e-4, atol=1e-5)
