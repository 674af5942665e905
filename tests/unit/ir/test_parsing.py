"""Text to IR: errors point into the text, printing is stable, bit patterns keep their value."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, ModuleOp, VectorType, bf16, f16, f32, f64

from tessera.errors import IRError
from tessera.ir.parsing import parse, print_module

FILES = [path for path in (Path(__file__).parents[2] / "ir").glob("*.mlir") if "RUN: not" not in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_printed_parses_to_the_same_text(path: Path) -> None:
    printed = print_module(parse(path.read_text()))
    assert print_module(parse(printed)) == printed
    assert printed.endswith("}\n")


@pytest.mark.parametrize(
    ("text", "place", "message", "marked"),
    [
        ("func.func @f() {\n  func.retrun\n}", "x.mlir:2:3", "func.retrun is not registered", "func.retrun"),
        ('"tessera.graph.foo"() : () -> ()', "x.mlir:1:2", "tessera.graph.foo is not registered", "tessera.graph.foo"),
        ("%a = arith.constant 1 : i64\n%a = arith.constant 2 : i64", "x.mlir:2:1", "%a is already defined", "%a"),
        ("%a = arith.constant 1 : q64", "x.mlir:1:25", "type expected", "q64"),
        ("%a = arith.constant 0xFFFFFFFFFF : f32", "x.mlir:1:39", "int too big to convert", ""),
        ("%a = arith.constant dense<0xFFFFFFFFFF> : vector<1xf32>", "x.mlir:1:56", "int too big to convert", ""),
        ("%a = arith.addi %b, %b : i64", "x.mlir:1:17", "values used but not defined: [%b]", "%b"),
        (
            '%k = "tessera.graph.constant"() {value = 1.0} : () -> tensor<f32>\n'
            '%s = "tessera.graph.sum"(%k) {axes = [0]} : (tensor<f32>) -> tensor<f32>',
            "x.mlir:2:1",
            "axes [0] are not distinct dimensions",
            "%s",
        ),
        ("%a = arith.addi %b, %b : i64\n%b = arith.constant 1 : i64", "x.mlir:1:1", "defines it later (line 2)", "%a"),
    ],
)
def test_errors_point_into_the_text(text: str, place: str, message: str, marked: str) -> None:
    with pytest.raises(IRError) as raised:
        parse(text, "x.mlir")
    first, line, caret = raised.value.message.splitlines()
    assert first.startswith(f"{place}: ")
    assert message in first
    row, column = (int(number) for number in place.split(":")[1:])
    assert line == "  " + text.splitlines()[row - 1]
    assert caret.index("^") == column + 1
    assert line[column + 1 :].startswith(marked)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('%1 = "tessera.schedule.tile"(%0) {tile_sizes = [128, 128, 32]}\n', "x.mlir:2:1"),
        ("func.func @f() {\n\n", "x.mlir:3:1"),
        ("func.func @f() {", "x.mlir:1:17"),
        ("", "x.mlir:1:1"),
    ],
)
def test_a_text_that_ends_too_early_is_an_error_at_its_end(text: str, place: str) -> None:
    with pytest.raises(IRError) as raised:
        parse(text, "x.mlir")
    first, line, caret = raised.value.message.split("\n")
    assert first.startswith(f"{place}: ")
    assert caret.index("^") == int(place.split(":")[2]) + 1
    assert line[2:] == (text.splitlines()[-1] if text and not text.endswith("\n") else "")


@pytest.mark.parametrize("kind", [f64, f32, bf16, f16])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, -0.0, 65504.0])
def test_dense_elements_keep_their_value(kind: AnyFloat, value: float) -> None:
    written = DenseIntOrFPElementsAttr.from_list(VectorType(kind, [3]), [value, 1.0, value])
    printed = print_module(ModuleOp([ConstantOp(written)]))
    constant = parse(printed).body.block.first_op
    assert isinstance(constant, ConstantOp)
    assert isinstance(constant.value, DenseIntOrFPElementsAttr)
    assert constant.value.data == written.data


@pytest.mark.parametrize(
    ("text", "place", "typed"),
    [
        (
            '%1 = "tessera.schedule.tile"(%0)\n       {tile_sizes = [128, 128, 32], cost_model = "roofline"}\n',
            "<text>:1:6: ",
            '"tessera.schedule.tile"(%0) {...} : (tensor<?x?xf32>) -> tensor<?x?xf32>',
        ),
        (
            'func.func @f(%a: tensor<?x?xbf16>) {\n  %b = "tessera.schedule.tile"(%a) {m = 16}\n  return\n}\n',
            "<text>:2:8: ",
            '"tessera.schedule.tile"(%a) {...} : (tensor<?x?xbf16>) -> tensor<?x?xbf16>',
        ),
    ],
)
def test_an_operation_without_types_is_shown_with_them(text: str, place: str, typed: str) -> None:
    with pytest.raises(IRError) as raised:
        parse(text)
    message = raised.value.message
    assert message.startswith(place + 'the types of "tessera.schedule.tile" are missing')
    line, caret = message.splitlines()[-2:]
    assert line[caret.index("^") : caret.rindex("^") + 1] == '"tessera.schedule.tile"'
    assert raised.value.hints == (f"for example {typed}",)
