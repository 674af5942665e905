"""8-bit floats as integers in Tile IR: the rewritten kernels compute, bit by bit, what the written ones mean."""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.tile.float8 import float8_to_integers
from tests.unit.backend.llvm.harness import compile_module, run

DTYPES = {
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i1": torch.bool,
}
FLOAT8 = ("f8E4M3FN", "f8E5M2")


def kernel(source: str, target: str, body: str, fill: str = "") -> ModuleOp:
    """A kernel of one dimension that stores `%made`, which `body` makes of the tile `%read`."""
    access = "dims = array<i64: 0>, in_bounds = array<i1: false>"
    return parse(f"""
"tessera.tile.kernel"() ({{
^bb0(%x: memref<?x{source}>, %out: memref<?x{target}>):
  %c0 = arith.constant 0 : index
  %extent = memref.dim %out, %c0 : memref<?x{target}>
  "tessera.tile.parallel"(%extent) ({{
  ^box(%lo: index, %hi: index):
    "tessera.tile.for"(%lo, %hi) ({{
    ^at(%i: index):
      %read = "tessera.tile.load"(%x, %i) {{{access}{fill}}} : (memref<?x{source}>, index) -> vector<32x{source}>
      {body}
      "tessera.tile.store"(%made, %out, %i) {{{access}}} : (vector<32x{target}>, memref<?x{target}>, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = 32}} : (index, index) -> ()
  }}) {{steps = array<i64: 32>, split = 0}} : (index) -> ()
}}) {{sym_name = "convert", outputs = array<i64: 1>}} : () -> ()
""")


def conversion(source: str, target: str) -> ModuleOp:
    return kernel(source, target, f'%made = "tessera.tile.cast"(%read) : (vector<32x{source}>) -> vector<32x{target}>')


def numbers(source: str, target: str) -> torch.Tensor:
    """All patterns of an 8-bit source; for an 8-bit target the points where rounding changes, and their neighbours."""
    if source in FLOAT8:
        values = torch.arange(256, dtype=torch.uint8).view(DTYPES[source])
        return values[values.float().isfinite()] if target == "i64" else values
    if source in ("i64", "i1"):
        return torch.arange(-70000, 70000, 111).to(DTYPES[source])
    values = torch.arange(256, dtype=torch.uint8).view(DTYPES[target]).float()
    values = values[values.isfinite()].sort().values
    points = torch.cat(
        [values, (values[1:] + values[:-1]) / 2, values * 1.7, torch.tensor([math.inf, math.nan, 1e-45])]
    )
    points = torch.cat([points, points.nextafter(torch.tensor(math.inf)), points.nextafter(torch.tensor(-math.inf))])
    return torch.cat([points, -points]).to(DTYPES[source])


def patterns(tensor: torch.Tensor) -> torch.Tensor:
    """What integers hold of a tensor: the bits of 8-bit floats, all else as it is."""
    return tensor.view(torch.int8) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


PAIRS = [(a, b) for a in DTYPES for b in DTYPES if a in FLOAT8 or b in FLOAT8]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_conversions_by_integers_give_torchs_bits(source: str, target: str) -> None:
    x = numbers(source, target)
    module = float8_to_integers(conversion(source, target), native=False)
    assert "f8E" not in print_module(module)
    module.verify()
    expected = patterns(x.to(DTYPES[target]))
    for compiled in (False, True):
        out = torch.full_like(expected, 99 if expected.dtype != torch.bool else 1)
        arguments = [patterns(x), out]
        if compiled:
            run(compile_module(module), arguments)
        else:
            run_kernel(module, arguments)
        if target in FLOAT8:
            assert torch.equal(out, expected)
        else:
            torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("source", "target"),
    [*((each, "f8E5M2") for each in ("f32", "bf16", "f8E4M3FN", "i64")), ("f32", "f8E4M3FN"), ("f8E5M2", "f8E4M3FN")],
)
def test_native_compilers_keep_all_but_roundings_that_they_do_otherwise(source: str, target: str) -> None:
    written = conversion(source, target)
    module = float8_to_integers(written, native=True, rounds=False)
    assert "arith.bitcast" in print_module(module)
    x = numbers(source, target)
    out = torch.zeros(x.shape, dtype=DTYPES[target])
    run_kernel(module, [x, out])
    assert torch.equal(patterns(out), patterns(x.to(DTYPES[target])))
    for kept in (conversion("f8E5M2", "f32"), conversion("bf16", "f8E4M3FN")):
        assert print_module(float8_to_integers(kept, native=True)) == print_module(kept.clone())


def test_kernels_without_8_bit_floats_are_left_alone() -> None:
    module = conversion("bf16", "f32")
    assert float8_to_integers(module, native=False) is module


@pytest.mark.parametrize("kind", FLOAT8)
def test_what_lies_outside_and_constants_become_patterns(kind: str) -> None:
    tile = f"vector<32x{kind}>"
    body = f"""%c = arith.constant dense<-1.5> : {tile}
      %zero = arith.constant dense<0> : vector<32xi64>
      %i64 = "tessera.tile.iota"(%i) {{axis = 0}} : (index) -> vector<32xi64>
      %first = "tessera.tile.compare"(%i64, %zero) {{predicate = "eq"}}
        : (vector<32xi64>, vector<32xi64>) -> vector<32xi1>
      %made = "tessera.tile.select"(%first, %c, %read) : (vector<32xi1>, {tile}, {tile}) -> {tile}"""
    module = float8_to_integers(kernel(kind, kind, body, f", fill = 2.5 : {kind}"), native=False)
    x = torch.ones(3).to(DTYPES[kind])
    out = torch.zeros(5, dtype=torch.int8)
    run_kernel(module, [patterns(x), out])
    assert out.view(DTYPES[kind]).tolist() == [-1.5, 1.0, 1.0, 2.5, 2.5]


def test_arithmetic_on_8_bit_floats_is_refused_by_name() -> None:
    module = kernel("f8E5M2", "f8E5M2", "%made = arith.addf %read, %read : vector<32xf8E5M2>")
    for native in (True, False):
        with pytest.raises(CompileError, match=r"arith.addf on 8-bit floats.*"):
            float8_to_integers(module, native)
