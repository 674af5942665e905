"""`arith`, `math` and tile arithmetic on the LLVM backend, element type by element type, against the interpreter."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse
from tessera.target import Target
from tests.unit.backend.llvm.harness import compile_module, run, targets
from tests.whole import some

TARGETS = pytest.mark.parametrize("target", targets(), ids=lambda target: f"{target.vector_bits}bit")
DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "i1": torch.bool,
    "i32": torch.int32,
    "i64": torch.int64,
}
FLOATS = ("f32", "f64", "f16", "bf16", "f8E4M3FN", "f8E5M2")
COLUMNS = 37
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-40,
    -3e-39,
    65504.0,
    1e30,
    3.0e38,
    0.1,
    -0.7,
]


def kernel(body: str, sources: list[str], result: str, width: int = COLUMNS) -> str:
    """A kernel that computes `%r` of tiles `%x0`, `%x1`, ... of one row each and `width` columns."""
    buffers = [f"%X{i}: memref<?x?x{kind}, strided<[?, 1]>>" for i, kind in enumerate(sources)]
    loads = "\n".join(
        f'%x{i} = "tessera.tile.load"(%X{i}, %i, %j) {{dims = array<i64: 0, 1>, in_bounds = array<i1: true, false>}} '
        f": (memref<?x?x{kind}, strided<[?, 1]>>, index, index) -> vector<1x{width}x{kind}>"
        for i, kind in enumerate(sources)
    )
    return f"""
"tessera.tile.kernel"() ({{
^bb0({", ".join(buffers)}, %Y: memref<?x?x{result}, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = memref.dim %Y, %c0 : memref<?x?x{result}, strided<[?, 1]>>
  %columns = memref.dim %Y, %c1 : memref<?x?x{result}, strided<[?, 1]>>
  "tessera.tile.parallel"(%rows) ({{
  ^box(%lo: index, %hi: index):
    "tessera.tile.for"(%lo, %hi) ({{
    ^row(%i: index):
      "tessera.tile.for"(%c0, %columns) ({{
      ^column(%j: index):
        {loads}
        {body}
        "tessera.tile.store"(%r, %Y, %i, %j) {{dims = array<i64: 0, 1>, in_bounds = array<i1: true, false>}}
          : (vector<1x{width}x{result}>, memref<?x?x{result}, strided<[?, 1]>>, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }}) {{step = {width}}} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = 1}} : (index, index) -> ()
  }}) {{steps = array<i64: 1>, split = 0}} : (index) -> ()
}}) {{sym_name = "elementwise", outputs = array<i64: {len(sources)}>}} : () -> ()
"""


def values(kind: str, seed: int, positive: bool = False) -> torch.Tensor:
    """Two rows of drawn numbers, the first ones special where the type has such."""
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[kind]
    shape = (2, COLUMNS + 3)
    if kind == "i1":
        return torch.randint(2, shape, generator=generator).bool()
    if kind[0] == "i":
        return torch.randint(1 if positive else -50, 50, shape, generator=generator).to(dtype)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    drawn = drawn.abs() + 0.01 if positive else drawn
    if not positive:
        drawn[0, : len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)[
            torch.randperm(len(SPECIAL), generator=generator)
        ]
    return drawn.to(dtype)


def check(text: str, operands: list[torch.Tensor], result: str, target: Target, tolerance: float = 0.0) -> None:
    module = parse(text)
    expected, got = (torch.zeros(operands[0].shape, dtype=DTYPES[result]) for _ in range(2))
    run_kernel(module, [*operands, expected])
    run(compile_module(module, target), [*operands, got], workers=2)
    if expected.itemsize == 1 and expected.is_floating_point():
        expected, got = expected.float(), got.float()  # torch compares few 8-bit floats
    if tolerance == 0.0 and expected.is_floating_point():
        # Bit by bit where both are numbers, so that signed zeros and denormals count.
        assert torch.equal(expected.isnan(), got.isnan())
        expected, got = expected.nan_to_num(nan=7.0), got.nan_to_num(nan=7.0)
        assert torch.equal(expected.signbit(), got.signbit()), (expected, got)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def vector(kind: str, width: int = COLUMNS) -> str:
    return f"vector<1x{width}x{kind}>"


@TARGETS
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("operation", ["addf", "subf", "mulf", "divf"])
def test_float_arithmetic_rounds_once(operation: str, kind: str, target: Target) -> None:
    text = kernel(f"%r = arith.{operation} %x0, %x1 : {vector(kind)}", [kind, kind], kind)
    check(text, [values(kind, 1), values(kind, 2)], kind, target)


@TARGETS
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("operation", ["maximumf", "minimumf"])
def test_maximum_and_minimum_propagate_nan(operation: str, kind: str, target: Target) -> None:
    a, b = values(kind, 1), values(kind, 2)
    # Which of two zeros is the larger is left open.
    a, b = (torch.where(x.double() == 0, 0.0, x.double()).to(DTYPES[kind]) for x in (a, b))
    check(kernel(f"%r = arith.{operation} %x0, %x1 : {vector(kind)}", [kind, kind], kind), [a, b], kind, target)


@TARGETS
@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize(
    "operation", ["addi", "subi", "muli", "maxsi", "minsi", "maxui", "minui", "andi", "ori", "xori"]
)
def test_integer_arithmetic(operation: str, kind: str, target: Target) -> None:
    text = kernel(f"%r = arith.{operation} %x0, %x1 : {vector(kind)}", [kind, kind], kind)
    check(text, [values(kind, 1), values(kind, 2)], kind, target)


@TARGETS
@pytest.mark.parametrize("operation", ["addi", "muli", "maxsi", "minsi", "maxui", "minui", "andi", "ori", "xori"])
def test_boolean_arithmetic(operation: str, target: Target) -> None:
    text = kernel(f"%r = arith.{operation} %x0, %x1 : {vector('i1')}", ["i1", "i1"], "i1")
    check(text, [values("i1", 1), values("i1", 2)], "i1", target)


@TARGETS
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("operation", ["absf", "floor", "ceil", "trunc", "roundeven", "round"])
def test_exact_functions(operation: str, kind: str, target: Target) -> None:
    text = kernel(f"%r = math.{operation} %x0 : {vector(kind)}", [kind], kind)
    check(text, [values(kind, 3)], kind, target)


@TARGETS
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    "operation",
    ["exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "tan"],
)
def test_functions(operation: str, kind: str, target: Target) -> None:
    tolerance = {"f64": 1e-12, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2, "f8E4M3FN": 0.125, "f8E5M2": 0.25}[kind]
    text = kernel(f"%r = math.{operation} %x0 : {vector(kind)}", [kind], kind)
    check(text, [values(kind, 4, positive=operation in ("tan", "sin", "cos"))], kind, target, tolerance)


@TARGETS
def test_power_and_fused_multiply_add(target: Target) -> None:
    text = kernel(
        f"%p = math.powf %x0, %x1 : {vector('f32')}\n%r = math.fma %p, %x0, %x1 : {vector('f32')}", ["f32"] * 2, "f32"
    )
    check(text, [values("f32", 5, positive=True), values("f32", 6, positive=True)], "f32", target, 1e-5)


def _castable(source: str, result: str) -> torch.Tensor:
    """Numbers whose conversion torch defines."""
    numbers = values(source, 7)
    if source in FLOATS and result in ("i32", "i64"):
        wide = numbers.double()
        numbers = torch.where(wide.isfinite() & (wide.abs() < 1e6), wide, -2.5).to(numbers.dtype)
    return numbers


@TARGETS
@pytest.mark.parametrize(("result", "source"), some(product(DTYPES, DTYPES), lambda case: case[0]))
def test_casts_between_all_types(source: str, result: str, target: Target) -> None:
    text = kernel(f'%r = "tessera.tile.cast"(%x0) : ({vector(source)}) -> {vector(result)}', [source], result)
    check(text, [_castable(source, result)], result, target)


def test_bf16_rounds_to_nearest_even_and_keeps_denormals() -> None:
    text = kernel(f"%r = arith.truncf %x0 : {vector('f32')} to {vector('bf16')}", ["f32"], "bf16")
    bits = torch.tensor(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x00018000, 0x00008001, 0x7F7FFFFF, 0x7FC00001, 0x7F800001]
    )
    numbers = bits.to(torch.int32).view(torch.float32).repeat(2, 5)
    check(text, [numbers], "bf16", targets()[0])


@TARGETS
@pytest.mark.parametrize("denormals", [False, True], ids=["normal", "with-denormals"])
def test_bf16_rounding_gives_torchs_bits(denormals: bool, target: Target) -> None:
    # A CPU's instruction rounds tiles without denormals, the generated code those with one: both must agree with torch.
    width = 64
    text = kernel(f"%r = arith.truncf %x0 : {vector('f32', width)} to {vector('bf16', width)}", ["f32"], "bf16", width)
    generator = torch.Generator().manual_seed(12)
    bits = torch.randint(-(2**31), 2**31, (6, 100), generator=generator).to(torch.int32)
    exponent = bits & 0x7F800000
    bits = torch.where(exponent == 0, bits | 0x00800000, bits)
    if denormals:
        bits[::2, ::37] &= ~0x7F800000
    bits[1, 5], bits[2, 6], bits[3, 7] = 0, -(2**31), 0x7F800000
    check(text, [bits.view(torch.float32)], "bf16", target)


@TARGETS
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_compare(predicate: str, kind: str, target: Target) -> None:
    types = f"({vector(kind)}, {vector(kind)}) -> {vector('i1')}"
    body = f'%r = "tessera.tile.compare"(%x0, %x1) {{predicate = "{predicate}"}} : {types}'
    a, b = values(kind, 8), values(kind, 9)
    b[:, ::3] = a[:, ::3]
    check(kernel(body, [kind, kind], "i1"), [a, b], "i1", target)


@TARGETS
@pytest.mark.parametrize("kind", DTYPES)
def test_select(kind: str, target: Target) -> None:
    types = f"({vector('i1')}, {vector(kind)}, {vector(kind)}) -> {vector(kind)}"
    text = kernel(f'%r = "tessera.tile.select"(%x0, %x1, %x2) : {types}', ["i1", kind, kind], kind)
    check(text, [values("i1", 1), values(kind, 2), values(kind, 3)], kind, target)


@TARGETS
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_reduce_along_a_row(reduction: str, kind: str, target: Target) -> None:
    one = f"vector<1x1x{kind}>"
    body = f"""
    %one = "tessera.tile.reduce"(%x0) {{kind = "{reduction}", axis = 1}} : ({vector(kind)}) -> {one}
    %r = "tessera.tile.broadcast"(%one) : ({one}) -> {vector(kind)}"""
    tolerances = {"f32": 1e-5, "f64": 1e-12, "f16": 1e-2, "bf16": 5e-2, "f8E4M3FN": 0.125, "f8E5M2": 0.25}
    tolerance = tolerances.get(kind, 0.0)
    operand = values(kind, 10, positive=kind in FLOATS)
    if kind in FLOATS and reduction == "mul":
        operand = (operand.double() * 0.1 + 0.8).to(operand.dtype)
    check(kernel(body, [kind], kind), [operand], kind, target, tolerance)


@TARGETS
def test_mask_and_iota(target: Target) -> None:
    body = f"""
    %m = "tessera.tile.mask"(%j, %columns) {{axis = 1}} : (index, index) -> {vector("i1")}
    %n = "tessera.tile.iota"(%j) {{axis = 1}} : (index) -> {vector("i64")}
    %zero = arith.constant dense<-5> : {vector("i64")}
    %r = "tessera.tile.select"(%m, %n, %zero) : ({vector("i1")}, {vector("i64")}, {vector("i64")}) -> {vector("i64")}"""
    check(kernel(body, ["i64"], "i64"), [values("i64", 1)], "i64", target)


@TARGETS
def test_constants_element_by_element(target: Target) -> None:
    numbers = ", ".join(str(float(i) - 3.5) for i in range(COLUMNS))
    body = f"%c = arith.constant dense<[[{numbers}]]> : {vector('f32')}\n%r = arith.addf %x0, %c : {vector('f32')}"
    check(kernel(body, ["f32"], "f32"), [values("f32", 1)], "f32", target)
