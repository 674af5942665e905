"""Algebraic rules over Graph IR, all exact in floating point.

The snippet above each rule shows it before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from tessera.dtypes import DType, dtype_of, holds
from tessera.ir.attributes import DTYPE_NAMES, Value
from tessera.ir.graph.operations import GraphOperation
from tessera.ops import OPERATORS
from tessera.ops.record import family_of
from tessera.rewrite.engine import Measure, NamedRule, Rewriter, dims_attribute

FORMS = ("transpose", "reshape", "broadcast_to", "cast")
"""Operators after which a value is the same in another form."""
_FOLDABLE = tuple("add sub mul div neg abs exp log sqrt rsqrt tanh sigmoid erf minimum maximum pow".split())


def made_by(value: SSAValue, operator: str) -> GraphOperation | None:
    """The operation that makes `value`, if it is of that operator."""
    owner = value.owner
    return owner if isinstance(owner, GraphOperation) and owner.operator == operator else None


def constant_of(value: SSAValue) -> float | int | bool | None:
    """The value of a constant; None for all else."""
    operation = made_by(value, "constant")
    number = None if operation is None else operation.attribute("value")
    return number if isinstance(number, bool | int | float) else None


def dtype(value: SSAValue) -> DType:
    """The dtype of a Graph IR value."""
    assert isinstance(value.type, TensorType)
    return dtype_of(DTYPE_NAMES[value.type.element_type])


def _same(a: SSAValue, b: SSAValue) -> bool:
    return a.type == b.type and dims_attribute(a) == dims_attribute(b)


#   matmul(transpose(x), y)  ->  matmul(x, y) {transpose_a}
def fold_transpose(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    operands = list(operation.inputs)
    flags = {
        "transpose_a": bool(operation.attribute("transpose_a", False)),
        "transpose_b": bool(operation.attribute("transpose_b", False)),
    }
    folded = False
    for index, flag in enumerate(flags):
        source = made_by(operands[index], "transpose")
        if source is None:
            continue
        permutation = source.integers("permutation")
        rank = len(permutation)
        if permutation == (*range(rank - 2), rank - 1, rank - 2):
            operands[index] = source.inputs[0]
            flags[flag] = not flags[flag]
            folded = True
    if not folded:
        return None
    kept = {name: value for name, value in operation.attributes.items() if name not in ("dims", *flags)}
    return rewriter.create(operation.operator, operands, {**kept, **flags})


#   transpose(transpose(x, p), q)  ->  transpose(x, p[q]);   transpose(x, identity)  ->  x
def merge_transposes(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    outer = operation.integers("permutation")
    if outer == tuple(range(len(outer))):
        return operation.inputs[0]
    inner = made_by(operation.inputs[0], "transpose")
    if inner is None:
        return None
    permutation = inner.integers("permutation")
    return rewriter.create(
        "transpose",
        [inner.inputs[0]],
        {"permutation": tuple(permutation[d] for d in outer), **place_in_form(operation)},
    )


#   cast(x : T, T)  ->  x;   cast(cast(x : T, wider), U)  ->  cast(x, U)
def merge_casts(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    (source,) = operation.inputs
    if source.type == operation.result.type:
        return source
    inner = made_by(source, "cast")
    if inner is None or not holds(dtype(source), dtype(inner.inputs[0])):
        return None
    return rewriter.create("cast", [inner.inputs[0]], {"dtype": dtype(operation.result).name})


#   x * 1, x / 1, x - 0, x ** 1  ->  x      (x + 0 is no identity: -0.0 + 0 is 0.0; integers have no -0)
def drop_neutral(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    a, b = operation.inputs
    integers = dtype(operation.result).kind == "int"
    right = {"mul": 1, "div": 1, "sub": 0, "pow": 1, **({"add": 0} if integers else {})}
    left = {"mul": 1, **({"add": 0} if integers else {})}
    for value, other, neutral in ((a, b, right), (b, a, left)):
        wanted = neutral.get(operation.operator)
        number = constant_of(other)
        # -0.0 equals 0, and x - -0.0 is x too, but for x = -0.0.
        plain = number is not None and (number != 0 or math.copysign(1.0, number) > 0)
        if wanted is not None and plain and number == wanted and _same(value, operation.result):
            return value
    return None


#   x ** 2  ->  x * x;   x ** -1  ->  1 / x
def expand_power(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    base, exponent = operation.inputs
    number = constant_of(exponent)
    if not _same(base, operation.result):
        return None
    if number == 2:
        return rewriter.create("mul", [base, base])
    if number == -1 and dtype(base).kind == "float":
        one = rewriter.create("constant", [], {"value": 1.0}, like=exponent)
        return rewriter.create("div", [one, base])
    return None


#   -(-x)  ->  x;   abs(abs(x))  ->  abs(x);   relu(relu(x))  ->  relu(x);   not(not(x))  ->  x
def merge_repeated(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    inner = made_by(operation.inputs[0], operation.operator)
    if inner is None:
        return None
    if operation.operator in ("abs", "relu"):
        return inner.result
    source = inner.inputs[0]
    return source if _same(source, operation.result) else None


#   where(c, x, x)  ->  x
def drop_choice(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    _, a, b = operation.inputs
    return a if a is b and _same(a, operation.result) else None


#   add(2.0, 0.5)  ->  2.5      (of one element, in the dtype of the result)
def fold_constants(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    numbers = [constant_of(value) for value in operation.inputs]
    if any(number is None for number in numbers):
        return None
    kinds = [dtype(value) for value in operation.inputs]
    if any(kind.kind != "float" for kind in kinds):
        return None
    operator = OPERATORS[operation.operator]
    attributes = {name: operation.attribute(name, default) for name, default in operator.attributes.items()}
    # As the operator would meet them: rounded to their dtypes, and then computed in float64.
    operands = [
        torch.tensor(n, dtype=kind.torch, device="cpu").double() for n, kind in zip(numbers, kinds, strict=True)
    ]
    result = operator.reference(*operands, **attributes).to(dtype(operation.result).torch)
    return rewriter.create("constant", [], {"value": float(result.item())})


#   reshape(reshape(x))  ->  reshape(x)
def merge_reshapes(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    inner = made_by(operation.inputs[0], "reshape")
    if inner is None:
        return None
    return rewriter.create("reshape", [inner.inputs[0]], place_in_form(operation))


def form_source(operation: GraphOperation) -> SSAValue | None:
    """What an operation gives in another form; None where it computes something."""
    return operation.inputs[0] if operation.operator in FORMS else None


def place_in_form(operation: GraphOperation) -> dict[str, Value]:
    """The `node` that holds a layout operator's run-time extents; a graph written by hand has none."""
    return {"node": operation.attributes["node"]} if "node" in operation.attributes else {}


#   mul(x, broadcast_to(y))  ->  mul(x, y)      (where x alone has the extents of the result)
def drop_broadcast(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    wanted = dims_attribute(operation.result)
    operands = list(operation.inputs)
    for index, operand in enumerate(operands):
        source = made_by(operand, "broadcast_to")
        others = operands[:index] + operands[index + 1 :]
        if source is not None and any(dims_attribute(other) == wanted for other in others):
            operands[index] = source.inputs[0]
    if operands == list(operation.inputs):
        return None
    kept = {name: operation.attributes[name] for name in operation.attributes if name != "dims"}
    return rewriter.create(operation.operator, operands, kept)


def forms_above(value: SSAValue, through: Callable[[GraphOperation], SSAValue | None] = form_source) -> list[str]:
    """The operators, of those that `through` goes, from a value up to the first that it does not."""
    names: list[str] = []
    while isinstance(value.owner, GraphOperation) and (source := through(value.owner)) is not None:
        names.append(value.owner.operator)
        value = source
    return names


def _computing(operation: GraphOperation) -> int:
    if operation.operator in ("constant", "cast") or family_of(operation.operator).is_move:
        return 0
    return 2 if operation.operator == "pow" else 1


def _broadcasts_read(operation: GraphOperation) -> int:
    if not family_of(operation.operator).is_map:
        return 0
    return sum(forms_above(operand).count("broadcast_to") for operand in operation.inputs)


def _forms(operation: GraphOperation) -> int:
    return (operation.operator in FORMS) + sum(len(forms_above(operand)) for operand in operation.inputs)


COMPUTING = Measure("operators that compute, powers twice", _computing)
BROADCASTS_READ = Measure("broadcasts above the operands of maps", _broadcasts_read)
FORMS_READ = Measure("changes of form, and those above operands", _forms)

RULES = (
    NamedRule("fold-transpose-into-matmul", ("matmul", "gemm"), fold_transpose, FORMS_READ),
    NamedRule("merge-transposes", ("transpose",), merge_transposes, FORMS_READ),
    NamedRule("merge-reshapes", ("reshape",), merge_reshapes, FORMS_READ),
    NamedRule("drop-broadcast", (), drop_broadcast, BROADCASTS_READ, family="elementwise"),
    NamedRule("merge-casts", ("cast",), merge_casts, FORMS_READ),
    NamedRule("fold-constants", _FOLDABLE, fold_constants, COMPUTING),
    NamedRule("drop-neutral-element", ("add", "sub", "mul", "div", "pow"), drop_neutral, COMPUTING),
    NamedRule("expand-power", ("pow",), expand_power, COMPUTING),
    NamedRule("merge-repeated", ("neg", "abs", "relu", "logical_not"), merge_repeated, COMPUTING),
    NamedRule("drop-equal-choice", ("where",), drop_choice, COMPUTING),
)
"""All rules, in the order in which they are tried on an operation."""
