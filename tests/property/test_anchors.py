"""What derives from an operator's anchor is what its reference does, on drawn shapes and attributes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from tessera.dtypes import COMPLEX, DType, dtype_of
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.ir.anchors.anchor import AnchorError, ExtentClasses
from tessera.ir.attributes import ELEMENT_TYPES, tensor_type
from tessera.ir.graph.operations import GraphOperation, create
from tessera.ops import OPERATORS, Operator
from tests.whole import examples


@dataclass(frozen=True)
class Operand:
    """A tensor's shape and dtype."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False


EXTENTS = (0, 1, 1, 2, 3, 4, 6, 9)
ANCHORED = [
    record
    for record in OPERATORS.values()
    if (record.result is None or record.family == "attention")
    and record.name not in ("pin", "constrain")  # no operations: a note on one, and what a mesh moves
]
STRICTER = frozenset(
    (
        "flash_attention scored_attention gemm matmul layer_norm rms_norm concat depthwise_conv2d max_pool2d "
        "sum_pool2d attention_logarithms scored_attention_logarithms attention_dq attention_dk attention_dv "
        "attention_dx paged_attention scaled_attention"
    ).split()
)
"""References of these take vectors, single images, or broadcast what the operators do not."""


OF_OTHERS = {"view_as_real": "complex64", "floor_divide": "int64"} | {
    name: "int64" for name in OPERATORS if name.startswith("bitwise_")
}
"""The dtype of operands, for operators that take no fp32."""


def cases(record: Operator) -> Iterator[tuple[list[Operand], dict[str, Any]]]:
    """Operands and attributes; in every other draw, maybe of other shapes than the operator takes."""
    made = 0
    for seed in range(300):
        chance = random.Random(seed)
        dtype = dtype_of(OF_OTHERS.get(record.name, "fp32"))
        value = Operand(tuple(chance.choice(EXTENTS) for _ in range(chance.choice((0, 1, 2, 2, 3, 4, 4)))), dtype)
        application = record.apply_to(value, chance)
        if application is None:
            continue
        operands = [Operand(each.shape, each.dtype) for each in application.operands]
        if len(operands) > 1 and seed % 2 and record.name != "pad":
            place = chance.randrange(len(operands))
            operands[place] = Operand(changed(operands[place].shape, chance), operands[place].dtype)
        yield operands, {**record.attributes, **application.attributes}
        made += 1
        if made == examples(120, 300):  # few values fit some operators, which all draws are for
            return


def changed(shape: tuple[int, ...], chance: random.Random) -> tuple[int, ...]:
    """Another extent, a dimension less, or one more."""
    kind = chance.randrange(3) if shape else 2
    if kind == 2:
        return (chance.choice(EXTENTS), *shape)
    place = chance.randrange(len(shape))
    return (*shape[:place], *([chance.choice(EXTENTS)] if kind == 0 else []), *shape[place + 1 :])


def shape_of(record: Operator, operands: list[Operand], attributes: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape by the anchor; None where it refuses."""
    shapes = [operand.shape for operand in operands]
    try:
        anchor = record.anchored(tuple(map(len, shapes)), attributes)
        assert anchor is not None
        return tuple(extent for extent in anchor.shape(shapes) if extent is not None)
    except AnchorError:
        return None


def shape_of_reference(record: Operator, operands: list[Operand], attributes: dict[str, Any]) -> Any:
    """The shape of what the reference makes of zeros; None where torch refuses them."""
    tensors = [torch.zeros(operand.shape, dtype=wide(operand.dtype)) for operand in operands]
    try:
        return tuple(record.reference(*tensors, **attributes).shape)
    except (RuntimeError, ValueError, IndexError):
        return None


def wide(dtype: DType) -> torch.dtype:
    """The dtype that references compute in."""
    return torch.float64 if dtype.kind == "float" else torch.complex128 if dtype in COMPLEX else dtype.torch


@pytest.mark.parametrize("record", ANCHORED, ids=lambda record: record.name)
def test_shapes_are_those_of_the_references(record: Operator) -> None:
    taken = 0
    for operands, attributes in cases(record):
        found = shape_of(record, operands, attributes)
        if found is None and record.name in STRICTER:
            continue
        expected = shape_of_reference(record, operands, attributes)
        if expected is None and any(0 in operand.shape for operand in operands):
            continue  # torch refuses some shapes without elements
        assert found == expected, (operands, attributes)
        taken += found is not None
    assert taken > 20


@pytest.mark.parametrize("record", ANCHORED, ids=lambda record: record.name)
def test_verifiers_know_the_shape_of_the_result(record: Operator) -> None:
    """With some extents unknown; a result of another known extent is refused."""
    chance = random.Random(record.name)
    refused = 0
    for operands, attributes in cases(record):
        try:
            dtypes = list(record.operand_dtypes(record.name, operands, attributes))
            shape, dtype = record.result_of(operands, dtypes, attributes)
        except (ShapeMismatchError, ArgumentError):
            continue
        known: list[tuple[int | None, ...]] = [
            tuple(None if extent != 1 and chance.random() < 0.3 else extent for extent in each)
            for each in (*(operand.shape for operand in operands), shape)
        ]
        assert verifies(operation(record, known, [*dtypes, dtype], attributes)), (known, attributes)
        if shape and record.name not in ("broadcast_to", "iota", "slice", "pad"):  # the result itself says its extents
            place = chance.randrange(len(shape))
            other = (*shape[:place], shape[place] + 5, *shape[place + 1 :])
            whole = [*(operand.shape for operand in operands), other]
            assert not verifies(operation(record, whole, [*dtypes, dtype], attributes)), (whole, attributes)
            refused += 1
    assert refused > 10 or record.name in ("broadcast_to", "iota", "slice", "pad")


def operation(record: Operator, shapes: list[Any], dtypes: list[DType], attributes: dict[str, Any]) -> GraphOperation:
    """The operator's operation in Graph IR over operands of these shapes; the last is the result's."""
    kinds = [tensor_type(tuple(s), ELEMENT_TYPES[d.name]) for s, d in zip(shapes, dtypes, strict=True)]
    given = {
        name: value.name if isinstance(value, DType) else value
        for name, value in attributes.items()
        if value is not None and name not in ("shape", "sizes", "before", "after")
    }
    return create(record.name, [create_ssa_value(kind) for kind in kinds[:-1]], kinds[-1], given)


def verifies(made: GraphOperation) -> bool:
    """Whether the verifier takes an operation."""
    try:
        made.verify()
    except VerifyException:
        return False
    return True


def test_extents_that_a_product_needs_to_be_equal() -> None:
    anchor = OPERATORS["gemm"].anchored((3, 2, 2), {})
    assert anchor is not None
    classes = ExtentClasses([(None, None, None), (None, None), (1, None), (None, None, None)])
    classes.apply(anchor, (0, 1, 2), 3)
    assert classes.root((0, 2)) == classes.root((1, 0)) == (0, 2)
    assert classes.root((2, 1)) == classes.root((3, 2)) == (1, 1)
    assert classes.root((2, 0)) == (2, 0), "a 1 that is repeated is equal to nothing"


def test_what_is_reduced_and_how() -> None:
    """What splits an axis over devices asks for: sums along which axes make the result."""
    product = OPERATORS["matmul"].anchored((2, 2), {})
    image = OPERATORS["conv2d"].anchored((4, 4), OPERATORS["conv2d"].attributes)
    assert product is not None
    assert image is not None
    assert product.reduced == {"k": "add"}
    assert image.reduced == {"ky": "add", "kx": "add", "c": "add"}
    assert product.points([(4, 5), (5, 6)]) == 4 * 5 * 6
