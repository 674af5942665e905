"""The interpreter's arithmetic on scalars, `index` and tiles agrees with the definitions of arith and math."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tessera.errors import IRError
from tessera.ir.interpreter.arithmetic import ARITHMETIC, apply_arithmetic
from tessera.ir.parsing import parse

NAN = math.nan
I1, I8, I32, I64, F32, F64 = torch.bool, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64


def compute(line: str, arguments: str, *operands: Any) -> Any:
    """The result of the one operation `line` over a function's `arguments`, as Python numbers."""
    module = parse(f"func.func @f({arguments}) {{\n  %r = {line}\n  func.return\n}}")
    (op,) = [op for op in module.walk() if type(op) in ARITHMETIC]
    result = apply_arithmetic(op, operands)
    return result.tolist() if isinstance(result, torch.Tensor) else result


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=I32)


def f32(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F32)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("divsi", [-3, 3, -3]),
        ("floordivsi", [-4, 3, -4]),
        ("ceildivsi", [-3, 4, -3]),
        ("remsi", [-1, 1, 1]),
        ("maxsi", [2, 7, 7]),
        ("minsi", [-7, 2, -2]),
        ("maxui", [-7, 7, -2]),
        ("minui", [2, 2, 7]),
        ("subi", [-9, 5, 9]),
        ("xori", [-7 ^ 2, 7 ^ 2, 7 ^ -2]),
    ],
)
def test_integer_arithmetic(operation: str, expected: list[int]) -> None:
    line = f"arith.{operation} %a, %b : vector<3xi32>"
    assert compute(line, "%a: vector<3xi32>, %b: vector<3xi32>", i32(-7, 7, 7), i32(2, 2, -2)) == expected


def test_index_arithmetic_gives_python_integers() -> None:
    result = compute("arith.divsi %a, %b : index", "%a: index, %b: index", 7, 2)
    assert (result, type(result)) == (3, int)
    assert compute("arith.index_cast %a : index to i64", "%a: index", 7) == 7


def test_integers_wrap_around() -> None:
    largest = i32(2**31 - 1)
    assert compute("arith.addi %a, %b : vector<1xi32>", "%a: vector<1xi32>, %b: vector<1xi32>", largest, largest) == [
        -2
    ]


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(IRError, match=r"arith\.divsi by zero"):
        compute("arith.divsi %a, %b : index", "%a: index, %b: index", 7, 0)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("eq", 0),
        ("ne", 1),
        ("slt", 1),
        ("sle", 1),
        ("sgt", 0),
        ("sge", 0),
        ("ult", 0),
        ("ule", 0),
        ("ugt", 1),
        ("uge", 1),
    ],
)
def test_integer_comparisons_signed_and_unsigned(predicate: str, expected: int) -> None:
    assert compute(f"arith.cmpi {predicate}, %a, %b : i64", "%a: i64, %b: i64", -1, 1) == bool(expected)


@pytest.mark.parametrize(("predicate", "expected"), [("slt", False), ("ult", True), ("sgt", True), ("ugt", False)])
def test_false_is_below_true_only_without_sign(predicate: str, expected: bool) -> None:
    line = f"arith.cmpi {predicate}, %a, %b : i1"
    assert compute(line, "%a: i1, %b: i1", torch.tensor(False), torch.tensor(True)) == expected


@pytest.mark.parametrize(
    ("predicate", "one_two", "nan_one"),
    [
        ("false", 0, 0),
        ("oeq", 0, 0),
        ("ogt", 0, 0),
        ("oge", 0, 0),
        ("olt", 1, 0),
        ("ole", 1, 0),
        ("one", 1, 0),
        ("ord", 1, 0),
        ("ueq", 0, 1),
        ("ugt", 0, 1),
        ("uge", 0, 1),
        ("ult", 1, 1),
        ("ule", 1, 1),
        ("une", 1, 1),
        ("uno", 0, 1),
        ("true", 1, 1),
    ],
)
def test_float_comparisons_ordered_and_unordered(predicate: str, one_two: int, nan_one: int) -> None:
    line = f"arith.cmpf {predicate}, %a, %b : f32"
    arguments = "%a: f32, %b: f32"
    assert compute(line, arguments, torch.tensor(1.0), torch.tensor(2.0)) == bool(one_two)
    assert compute(line, arguments, torch.tensor(NAN), torch.tensor(1.0)) == bool(nan_one)


def test_maximum_propagates_nan_and_maxnum_does_not() -> None:
    arguments = "%a: vector<2xf32>, %b: vector<2xf32>"
    larger = compute("arith.maximumf %a, %b : vector<2xf32>", arguments, f32(NAN, 1), f32(0, 2))
    assert math.isnan(larger[0])
    assert larger[1] == 2
    assert compute("arith.maxnumf %a, %b : vector<2xf32>", arguments, f32(NAN, 1), f32(0, 2)) == [0, 2]


@pytest.mark.parametrize(
    ("line", "argument", "operand", "expected"),
    [
        ("arith.extsi %a : i1 to i32", "i1", torch.tensor(True), -1),
        ("arith.extui %a : i1 to i32", "i1", torch.tensor(True), 1),
        ("arith.extui %a : i32 to i64", "i32", torch.tensor(-1, dtype=I32), 2**32 - 1),
        ("arith.extui %a : i8 to i32", "i8", torch.tensor(-1, dtype=I8), 255),
        ("arith.trunci %a : i64 to i32", "i64", torch.tensor(2**32 + 5), 5),
        ("arith.trunci %a : i64 to i1", "i64", torch.tensor(6), False),
        ("arith.sitofp %a : i1 to f32", "i1", torch.tensor(True), -1.0),
        ("arith.uitofp %a : i1 to f32", "i1", torch.tensor(True), 1.0),
        ("arith.uitofp %a : i64 to f64", "i64", torch.tensor(-1), 2.0**64),
        ("arith.fptosi %a : f32 to i32", "f32", torch.tensor(-2.7), -2),
        ("arith.truncf %a : f32 to bf16", "f32", torch.tensor(1.0 + 2**-9), 1.0),
        ("arith.bitcast %a : f32 to i32", "f32", torch.tensor(1.0), 0x3F800000),
    ],
)
def test_conversions(line: str, argument: str, operand: torch.Tensor, expected: float) -> None:
    assert compute(line, f"%a: {argument}", operand) == expected


@pytest.mark.parametrize(
    ("literal", "kind", "expected"),
    [
        ("7", "index", 7),
        ("true", "i1", True),
        ("0x7F800000", "f32", math.inf),
        ("dense<1.5>", "vector<2x1xbf16>", [[1.5], [1.5]]),
        ("dense<[[1, 2], [3, 4]]>", "vector<2x2xi64>", [[1, 2], [3, 4]]),
        ("dense<[true, false]>", "vector<2xi1>", [True, False]),
    ],
)
def test_constants(literal: str, kind: str, expected: object) -> None:
    suffix = "" if kind == "i1" else f" : {kind}"
    assert compute(f"arith.constant {literal}{suffix}", "") == expected


@pytest.mark.parametrize(
    ("line", "operands", "expected"),
    [
        ("math.absi %a : vector<2xi32>", [i32(-3, 3)], [3, 3]),
        ("math.rsqrt %a : vector<2xf32>", [f32(4, 16)], [0.5, 0.25]),
        ("math.roundeven %a : vector<2xf32>", [f32(2.5, -3.5)], [2, -4]),
        ("math.round %a : vector<2xf32>", [f32(2.5, -3.5)], [3, -4]),
        ("math.floor %a : vector<2xf32>", [f32(2.5, -3.5)], [2, -4]),
        ("math.trunc %a : vector<2xf32>", [f32(2.5, -3.5)], [2, -3]),
        ("math.exp2 %a : vector<2xf32>", [f32(3, -1)], [8, 0.5]),
        ("arith.negf %a : vector<2xf32>", [f32(3, -1)], [-3, 1]),
    ],
)
def test_functions_of_one_operand(line: str, operands: list[torch.Tensor], expected: list[float]) -> None:
    kind = line.rsplit(" : ", 1)[1]
    assert compute(line, f"%a: {kind}", *operands) == expected


def test_fused_multiply_add_and_power() -> None:
    arguments = "%a: f32, %b: f32, %c: f32"
    operands = [torch.tensor(value) for value in (2.0, 3.0, 4.0)]
    assert compute("math.fma %a, %b, %c : f32", arguments, *operands) == 10
    assert compute("math.powf %a, %b : f32", "%a: f32, %b: f32", *operands[:2]) == 8


def test_booleans_count_modulo_two() -> None:
    true, arguments = torch.tensor([True]), "%a: vector<1xi1>, %b: vector<1xi1>"
    assert compute("arith.addi %a, %b : vector<1xi1>", arguments, true, true) == [False]
    assert compute("arith.muli %a, %b : vector<1xi1>", arguments, true, true) == [True]
