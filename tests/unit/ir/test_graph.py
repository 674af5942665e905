"""Graph IR: every operator has a well-formed example, and each rule refuses what breaks it, with the shapes."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, TensorType, f16, f32, i64
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from tessera.ir.attributes import dimension_names, tensor_type, to_attribute, to_value
from tessera.ir.dialect import context
from tessera.ir.graph.operations import GRAPH_OPERATIONS, GraphOperation, create

CONTEXT: Context = context()

Example: TypeAlias = "tuple[str, str, dict[str, object]]"
"""Operand types, result type, attributes."""

MAP: Example = ("?x8xf32", "?x8xf32", {})
TWO: Example = ("?x8xf32, 1x8xf32", "?x8xf32", {})
TEST: Example = ("?x8xf32, ?x1xf32", "?x8xi1", {})
WINDOW: dict[str, object] = {
    "kernel": (3, 3),
    "stride": (1, 2),
    "padding": (1, 1, 0, 0),
    "dilation": (1, 1),
    "layout": "NHWC",
}
REDUCE: Example = ("?x8xf32", "?x1xf32", {"axes": (1,), "keepdims": True})
VALID: dict[str, Example] = {
    "matmul": ("4x?x8xbf16, 8x?xbf16", "4x?x?xf32", {"accum_dtype": "fp32"}),
    "gemm": ("8x?xf32, 8x?xf32, 1x?xf32", "?x?xf32", {"transpose_a": True, "alpha": 2.0, "beta": 1}),
    "conv2d": (
        "?x?x9x6xbf16, 8x3x3x?xbf16",
        "?x?x?x8xbf16",
        {"stride": (2, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 2},
    ),
    "depthwise_conv2d": ("?x9x9x8xf32, 16x3x3xf32", "?x9x4x16xf32", {**WINDOW, "multiplier": 2}),
    **dict.fromkeys(("max_pool2d", "sum_pool2d"), ("?x9x9x8xbf16", "?x9x4x8xbf16", WINDOW)),
    "flash_attention": (
        "2x8x?x64xbf16, 2x?x?x64xbf16, 2x?x?x32xbf16, f32, 1x?xi1",
        "2x8x?x32xbf16",
        {"causal": False},
    ),
    "scaled_attention": (
        "2x8x?x64xf8E4M3FN, 2x?x?x64xf8E4M3FN, 2x?x?x32xf8E4M3FN, f32, f32",
        "2x8x?x32xbf16",
        {"causal": True, "dtype": "bf16"},
    ),
    "paged_attention": (
        "2x8x?x64xbf16, 9x2x16x64xbf16, 9x2x16x32xbf16, f32, 2x?xi64, 2xi64",
        "2x8x?x32xbf16",
        {"causal": True, "soft_cap": 0.0, "window": 0},
    ),
    "attention_logarithms": ("8x3x4xf32, 2x5x4xf32, 2x5x2xf32, f32, 3x5xi1", "8x3x1xf32", {"causal": False}),
    **{
        f"attention_d{of}": (
            "8x3x4xbf16, 2x5x4xbf16, 2x5x6xbf16, 8x3x6xbf16, 8x3x1xf32, 8x3x1xf32, f32",
            result,
            {"causal": True, "scores": ()},
        )
        for of, result in (("q", "8x3x4xf32"), ("k", "2x5x4xf32"), ("v", "2x5x6xf32"))
    },
    "attention_dx": (
        "8x3x4xbf16, 2x5x4xbf16, 2x5x6xbf16, 8x3x6xbf16, 8x3x1xf32, 8x3x1xf32, f32, 8x1x1xf32",
        "8x3x1xf32",
        {"causal": False, "scores": (("add", (0, 1), (), "fp32"),), "place": 1, "along": "q"},
    ),
    "scored_attention_logarithms": (
        "8x3x4xf32, 2x5x4xf32, 2x5x2xf32, f32, 3x5xi1",
        "8x3x1xf32",
        {"scores": (("constant", (), (("value", "-inf"),), "fp32"), ("where", (1, 0, -1), (), "fp32"))},
    ),
    "scored_attention": (
        "2x8x?x64xbf16, 2x?x?x64xbf16, 2x?x?x32xbf16, f32, f32, 1x?xi64",
        "2x8x?x32xbf16",
        {"scores": (("div", (0, 1), (), "fp32"), ("tanh", (-1,), (), "fp32"))},
    ),
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "minimum", "maximum"), TWO),
    **dict.fromkeys("tan asin acos atan sinh cosh asinh acosh atanh log2 log10 exp2 erfinv".split(), MAP),
    **dict.fromkeys(("atan2", "hypot"), TWO),
    **dict.fromkeys(
        "floor_divide bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split(),
        ("?x8xi32, i32", "?x8xi32", {}),
    ),
    "bitwise_not": ("?x8xi32", "?x8xi32", {}),
    **dict.fromkeys(("neg", "abs", "relu", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "silu"), MAP),
    **dict.fromkeys(("expm1", "log1p", "sin", "cos", "floor", "ceil", "round"), MAP),
    "gelu": ("?xf16", "?xf16", {"approximate": "tanh"}),
    "clamp": ("?xi32", "?xi32", {"minimum": 0}),
    "where": ("?x1xi1, ?x8xf32, f32", "?x8xf32", {}),
    "cast": ("?x8xf32", "?x8xi64", {}),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), TEST),
    **dict.fromkeys(("logical_and", "logical_or"), ("?xi1, ?xi1", "?xi1", {})),
    "logical_not": ("?xi1", "?xi1", {}),
    **dict.fromkeys(("mean", "max", "min", "logsumexp"), REDUCE),
    "sum": ("?x8xi32", "?xi64", {"axes": (1,)}),
    "prod": ("?x8xf32", "f32", {"axes": (0, 1)}),
    "argmax": ("?x8xf32", "?xi64", {"axes": (1,)}),
    **dict.fromkeys(("softmax", "log_softmax"), ("?x8xf32", "?x8xf32", {"axis": 0})),
    "layer_norm": ("?x8xbf16, 8xf32, 8xf32", "?x8xbf16", {"eps": 1e-5}),
    "rms_norm": ("?x8xf32, 8xf32", "?x8xf32", {"eps": 1e-6}),
    "reshape": ("4x6xf32", "3x8xf32", {}),
    "transpose": ("?x8x1xf32", "8x1x?xf32", {"permutation": (1, 2, 0)}),
    "broadcast_to": ("1x8xf32", "?x4x8xf32", {}),
    "concat": ("3x8xf32, 5x8xf32, ?x8xf32", "?x8xf32", {"axis": 0}),
    "slice": ("10x8xf32", "3x8xf32", {"starts": (8, 0), "steps": (-3, 1)}),
    "constant": ("", "?x8xf32", {"value": 1.5}),
    "view_as_real": ("?x8xcomplex<f32>", "?x8x2xf32", {}),
    "view_as_complex": ("?x8x2xf64", "?x8xcomplex<f64>", {}),
    "iota": ("", "?x8xi64", {}),
    "philox": ("?x8xi64, i64", "?x8xi64", {}),
    "pad": ("?x8xf32, f32", "?x?xf32", {"mode": "constant"}),
    "library": ("?x8xf32, 4xi64", "?x3xi64", {"callee": "topk_indices", "axis": 1}),
}
ONE_STEP = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
MATRICES = "?x8xf32, 8x?xf32"
INVALID = [
    ("add", "3x4xf32, 5x4xf32", "3x4xf32", {}, "(3, 4) f32 and (5, 4) f32 .* do not broadcast"),
    ("add", "?x4xf32, 1x4xf32", "1x4xf32", {}, r"the result's shape should be (?, 4)"),
    ("add", "4xf32, 4xf64", "4xf32", {}, "(4,) f32 and (4,) f64 .* insert a cast"),
    ("add", "4xf32", "4xf32", {}, "takes 2 operands, not 1"),
    ("exp", "4xi32", "4xi32", {}, "defined on floating-point elements only"),
    ("exp", "4xf32", "4xf64", {}, "the result's element type should be f32"),
    ("lt", "4xf32, 4xf32", "4xf32", {}, "the result's element type should be i1"),
    ("logical_not", "4xi32", "4xi32", {}, "the result's element type should be i1"),
    ("where", "4xf32, 4xf32, 4xf32", "4xf32", {}, "the condition should be i1"),
    ("where", "4xi1, 4xf32, 4xf64", "4xf32", {}, "of the two branches differ"),
    ("cast", "4xf32", "5xi64", {}, "the result's shape should be (4,)"),
    ("matmul", "3x4xf32, 5x6xf32", "3x6xf32", {}, "(3, 4) f32 and (5, 6) f32 .* inner extents 4 and 5 differ"),
    ("matmul", "3x4xf32, 4x6xf32", "6x3xf32", {}, "the result's shape should be (3, 6)"),
    ("matmul", "2x3x4xf32, 3x4x6xf32", "2x3x6xf32", {}, "the batch dimensions do not broadcast"),
    ("matmul", "f32, 4x6xf32", "6xf32", {}, "at least one dimension"),
    ("matmul", MATRICES, "?x?xi32", {}, "floating-point and integer elements do not mix"),
    ("flash_attention", "3x4xf32, 5x4xf32, 6x2xf32, f32", "3x2xf32", {"causal": True}, "K has 5 keys, V has 6 values"),
    ("flash_attention", "3x4xf32, 5x4xf32, 5x2xf32, 1xf32", "3x2xf32", {"causal": True}, "the scale is one number"),
    ("flash_attention", "3x4xf32, 5x4xf32, 5x2xbf16, f32", "3x2xf32", {"causal": True}, "one floating-point element"),
    ("flash_attention", "3x4xf32, 5x4xf32, 5x2xf32, f32, 4xi1", "3x2xf32", {"causal": True}, "mask does not broadcast"),
    ("flash_attention", "8x3x4xf32, 2x5x4xf32, 2x5x2xf32, f32", "2x3x2xf32", {"causal": True}, "8, 3, 2"),
    ("conv2d", "2x9x9xf32, 8x3x3x3xf32", "2x7x7x8xf32", ONE_STEP, "four dimensions"),
    (
        "conv2d",
        "2x9x9x4xf32, 8x3x3x3xf32",
        "2x7x7x8xf32",
        ONE_STEP,
        "has 4 channels, the weights take 3 in each of 1 groups",
    ),
    ("conv2d", "2x9x9x3xf32, 8x3x3x3xf32", "2x9x7x8xf32", ONE_STEP, "should be (2, 7, 7, 8)"),
    ("conv2d", "2x9x9x3xf32, 8x3x3x3xbf16", "2x7x7x8xf32", ONE_STEP, "element types differ"),
    ("conv2d", "2x9x9x3xi32, 8x3x3x3xi32", "2x7x7x8xi32", ONE_STEP, "floating-point elements only"),
    ("conv2d", "2x9x9x3xf32, 8x3x3x3xf32", "2x7x7x8xf32", {**ONE_STEP, "padding": (0, 0)}, "padding is four"),
    ("max_pool2d", "9x9x8xf32", "9x4x8xf32", WINDOW, "images have four dimensions"),
    ("max_pool2d", "2x9x9x8xf32", "3x9x4x8xf32", WINDOW, "the result's shape should be (2, 9, 4, 8)"),
    ("max_pool2d", "2x9x9x8xi32", "2x9x4x8xi32", WINDOW, "floating-point elements only"),
    ("depthwise_conv2d", "2x9x9x8xf32, 8x3x5xf32", "2x9x4x8xf32", WINDOW, "operands beside the image"),
    ("gemm", "3x4xf32, 4x6xf32, 5x6xf32", "3x6xf32", {}, "C does not broadcast"),
    ("sum", "4x4xf32", "4xf32", {}, "needs the attribute 'axes'"),
    ("sum", "4x4xf32", "4xf32", {"axes": (2,)}, r"axes \[2\] are not distinct dimensions in 0..1"),
    ("sum", "4x4xf32", "4xf32", {"axes": (True,)}, "attribute 'axes' should be integers"),
    ("sum", "4x4xi32", "4xi32", {"axes": (1,)}, "element type should be i64"),
    ("mean", "4x4xi32", "4xi32", {"axes": (1,)}, "floating-point elements only"),
    ("max", "4x6xf32", "6xf32", {"axes": (1,)}, "the result's shape should be (4,)"),
    ("argmax", "2x3x4xf32", "4xi64", {"axes": (0, 1)}, "one axis or all axes"),
    ("softmax", "4x4xf32", "4x4xf32", {"axis": True}, "attribute 'axis' should be int"),
    ("softmax", "4x4xf32", "4x4xf32", {"axis": -1}, r"axes \[-1\] are not"),
    ("layer_norm", "4x8xf32, 4xf32", "4x8xf32", {"eps": 1e-5}, "must have shape (8,)"),
    ("rms_norm", "f32", "f32", {"eps": 1e-5}, "normalizes the last dimension"),
    ("reshape", "4x6xf32", "5x5xf32", {}, "24 elements do not fill 25"),
    ("transpose", "4x6xf32", "6x4xf32", {"permutation": (1, 1)}, r"\[1, 1\] is no permutation"),
    ("transpose", "4x6xf32", "4x6xf32", {"permutation": (1, 0)}, "the result's shape should be (6, 4)"),
    ("broadcast_to", "3xf32", "4xf32", {}, "does not broadcast to the result"),
    ("broadcast_to", "3xf32", "1xf32", {}, "does not broadcast to the result"),
    ("concat", "3x8xf32, 5x9xf32", "8x8xf32", {"axis": 0}, "only axis 0 may differ, and 9 is not 8"),
    ("concat", "3x8xf32, 5x8xf32", "9x8xf32", {"axis": 0}, "the result's shape should be (8, 8)"),
    ("slice", "10xf32", "4xf32", {"starts": (8,), "steps": (1,)}, "4 elements from 8 by 1 leave the extent 10"),
    ("slice", "10xf32", "4xf32", {"starts": (8,), "steps": (0,)}, "a step of 0"),
    ("slice", "10xf32", "4x4xf32", {}, "one entry for each of the 1 dimensions"),
    ("constant", "", "4xi32", {"value": 1.5}, "is no i32"),
    ("relu", "4xf32", "4xf32", {"dims": ("s0", "s1")}, "one name per result dimension"),
]


def tensors(text: str) -> list[TensorType[Attribute]]:
    types = [Parser(CONTEXT, f"tensor<{part}>").parse_type() for part in text.split(", ") if part]
    return [kind for kind in types if isinstance(kind, TensorType)]


def make(operator: str, operands: str, result: str, attributes: dict[str, object]) -> GraphOperation:
    values = [create_ssa_value(kind) for kind in tensors(operands)]
    return create(operator, values, tensors(result)[0], attributes)  # type: ignore[arg-type]


def test_every_operator_has_an_example() -> None:
    assert set(VALID) == set(GRAPH_OPERATIONS)


@pytest.mark.parametrize("operator", VALID)
def test_examples_verify_and_print_back(operator: str) -> None:
    operation = make(operator, *VALID[operator])
    operation.verify()
    assert operation.operator == operator
    assert operation.name == f"tessera.graph.{operator}"
    for name, value in VALID[operator][2].items():
        assert operation.attribute(name) == value


@pytest.mark.parametrize(("operator", "operands", "result", "attributes", "message"), INVALID)
def test_rules_refuse(operator: str, operands: str, result: str, attributes: dict[str, object], message: str) -> None:
    # Parentheses in the messages are shapes; all else is a pattern.
    pattern = message.replace("(", r"\(").replace(")", r"\)").replace("?,", r"\?,")
    with pytest.raises(VerifyException, match=pattern):
        make(operator, operands, result, attributes).verify()


@pytest.mark.parametrize(
    ("operands", "result"),
    [
        ("8xf32, 8x5xf32", "5xf32"),
        ("3x8xf32, 8xf32", "3xf32"),
        ("8xf32, 8xf32", "f32"),
        ("2x3x8xf32, 8xf32", "2x3xf32"),
    ],
)
def test_products_with_vectors_as_in_torch(operands: str, result: str) -> None:
    make("matmul", operands, result, {}).verify()


def test_attributes_are_interned_by_value_and_type() -> None:
    assert to_attribute((1, 2)) is to_attribute((1, 2))
    assert to_attribute(1) != to_attribute(True)
    assert to_attribute(1) != to_attribute(1.0)
    assert to_attribute((1, 0)) != to_attribute((True, False))
    assert tensor_type((None, 8), f32) is tensor_type((None, 8), f32)
    assert dimension_names(("s0",)) is dimension_names(("s0",))


@pytest.mark.parametrize("value", [True, False, 0, -7, 1.5, "none", (), (1, 2), ((1, "x"), 2.0)])
def test_attributes_give_back_the_python_value(value: object) -> None:
    back = to_value(to_attribute(value))  # type: ignore[arg-type]
    assert back == value
    assert type(back) is type(value)


def test_other_attributes_pass_unchanged() -> None:
    half = FloatAttr(0.5, f16)
    assert to_attribute(half) is half
    assert to_value(i64) is i64


def test_an_unknown_operator_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="conv9d"):
        create("conv9d", (), tensor_type((), f32))
