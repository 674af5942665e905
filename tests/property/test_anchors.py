"""What derives from an operator's anchor is what its record's own rules say, on drawn shapes and attributes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from tessera.dtypes import DType, fp32
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.ir.anchor import AnchorError
from tessera.ir.attributes import ELEMENT_TYPES, tensor_type
from tessera.ir.graph import GraphOperation, create
from tessera.ops import OPERATORS, Operator

EXTENTS = (0, 1, 1, 2, 3, 4, 6, 9)
HAND = frozenset(("philox", "reshape", "pin"))


@dataclass(frozen=True)
class Typed:
    """An operand: shape and dtype."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False


def anchored() -> list[Operator]:
    """Records whose anchors say all about their shapes."""
    return [record for record in OPERATORS.values() if record.family != "library" and record.name not in HAND]


def drawn(record: Operator, seed: int) -> tuple[list[Typed], dict[str, Any]] | None:
    """Operands and attributes; in every other draw, of other shapes than the operator wants."""
    chance = random.Random(seed)
    rank = chance.choice((0, 1, 2, 2, 3, 4, 4))
    value = Typed(tuple(chance.choice(EXTENTS) for _ in range(rank)), fp32)
    application = record.apply_to(value, chance)
    if application is None:
        return None
    operands = [Typed(each.shape, each.dtype) for each in application.operands]
    if operands and seed % 2 and (record.family != "layout" or record.name == "concat"):
        place = chance.randrange(len(operands))
        shape = list(operands[place].shape)
        kind = chance.randrange(3)
        if kind == 0 and shape:
            shape[chance.randrange(len(shape))] = chance.choice(EXTENTS)
        elif kind == 1 and len(shape) > 1 and record.family not in ("reduction", "layout", "row"):
            shape.pop(0)
        elif record.family not in ("reduction", "layout", "row"):
            shape.insert(0, chance.choice(EXTENTS))
        operands[place] = Typed(tuple(shape), operands[place].dtype)
    return operands, {**record.attributes, **application.attributes}


def cases(record: Operator) -> Iterator[tuple[list[Typed], dict[str, Any], tuple[int, ...] | None]]:
    """Operands, attributes, and the shape that the record's rule gives; None where it refuses."""
    for seed in range(400):
        case = drawn(record, seed)
        if case is None:
            continue
        operands, attributes = case
        try:
            shape, _ = record.result_of(operands, [operand.dtype for operand in operands], attributes)
        except ShapeMismatchError:
            yield operands, attributes, None
        except ArgumentError:
            continue
        else:
            yield operands, attributes, tuple(shape)


@pytest.mark.parametrize("record", anchored(), ids=lambda record: record.name)
def test_shapes(record: Operator) -> None:
    taken = 0
    for operands, attributes, shape in cases(record):
        shapes = [operand.shape for operand in operands]
        try:
            anchor = record.anchored(tuple(map(len, shapes)), attributes)
            found = None if anchor is None else anchor.shape(shapes)
        except AnchorError:
            found = None
        assert found == shape, (operands, attributes)
        taken += found is not None
    assert taken > 20


@pytest.mark.parametrize("record", anchored(), ids=lambda record: record.name)
def test_verifiers(record: Operator) -> None:
    """With some extents unknown: what an anchor takes, the verifier takes; of results that are right, both do."""
    chance = random.Random(record.name)
    for operands, attributes, shape in cases(record):
        if shape is None:
            continue
        shapes: list[list[int | None]] = [list(each) for each in (*(operand.shape for operand in operands), shape)]
        changed = chance.random() < 0.5
        if changed:
            some: list[int | None] = chance.choice([each for each in shapes if each] or [[0]])
            some[chance.randrange(len(some))] = chance.choice(EXTENTS)
        shapes = [[None if e != 1 and chance.random() < 0.3 else e for e in each] for each in shapes]
        dtypes = list(record.operand_dtypes(record.name, operands, attributes))
        _, result = record.result_of(operands, dtypes, attributes)
        given = {k: v.name if isinstance(v, DType) else v for k, v in attributes.items() if v is not None}
        kinds = [
            tensor_type(tuple(each), ELEMENT_TYPES[dtype.name])
            for each, dtype in zip(shapes, [*dtypes, result], strict=True)
        ]
        written = {name: value for name, value in given.items() if name != "shape"}
        operation = create(record.name, [create_ssa_value(kind) for kind in kinds[:-1]], kinds[-1], written)
        is_taken = accepted(record, shapes, given | ({"shape": tuple(shapes[-1])} if "shape" in given else {}))
        assert verifies(operation) >= is_taken if changed else verifies(operation) and is_taken, (shapes, given)


def verifies(operation: GraphOperation) -> bool:
    """Whether the verifier takes an operation."""
    try:
        operation.verify()
    except VerifyException:
        return False
    return True


def accepted(record: Operator, shapes: Sequence[Sequence[int | None]], attributes: dict[str, Any]) -> bool:
    """Whether operands and result, the last one, fit the anchor."""
    try:
        anchor = record.anchored(tuple(map(len, shapes[:-1])), attributes)
        assert anchor is not None
        return anchor.may_be(anchor.shape(shapes[:-1]), shapes[-1])
    except AnchorError:
        return False
