"""Names for the extents of a graph written by hand: `argument_dims` of the function and `dims` of its operations.

    graph.add(%a, %b) : (tensor<?x?xf32>, tensor<?xf32>)   ->   dims = ["s0", "s1"], argument_dims = [[s0, s1], [s1]]

Two dimensions that an operator needs to be equal get one name; a static 1, which may broadcast, is called "1". Names
that are there already are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ArrayAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from tessera.ir.anchors.anchor import ExtentClasses, Place
from tessera.ir.attributes import dimension_names, names_of
from tessera.ir.graph.operations import GraphOperation


def has_extent_names(function: FuncOp) -> bool:
    """Whether all values of a function have names for their extents."""
    return "argument_dims" in function.attributes and all("dims" in op.attributes for op in _operations(function))


def name_extents(function: FuncOp) -> None:
    """Gives names to the extents that have none."""
    block = function.body.block
    numbers = {value: number for number, value in enumerate(_values(function))}
    classes = ExtentClasses([_shape(value) for value in numbers])
    for operation in _operations(function):
        if (anchor := operation.anchor()) is not None:
            classes.apply(anchor, [numbers[value] for value in operation.inputs], numbers[operation.result])
    given = _given_names(function, block)
    labels: dict[Place, str] = {}
    for (value, dim), name in given.items():
        labels.setdefault(classes.root((numbers[value], dim)), name)
    taken = set(given.values())
    fresh = (name for number in range(1 << 30) if (name := f"s{number}") not in taken)

    def names(value: SSAValue) -> tuple[str, ...]:
        return tuple(given.get((value, dim)) or label(value, dim) for dim in range(len(_shape(value))))

    def label(value: SSAValue, dim: int) -> str:
        if _shape(value)[dim] == 1:
            return "1"
        root = classes.root((numbers[value], dim))
        if root not in labels:
            labels[root] = next(fresh)
        return labels[root]

    function.attributes["argument_dims"] = ArrayAttr([dimension_names(names(argument)) for argument in block.args])
    for operation in _operations(function):
        operation.attributes["dims"] = dimension_names(names(operation.result))


def _operations(function: FuncOp) -> Iterator[GraphOperation]:
    return (op for op in function.body.block.ops if isinstance(op, GraphOperation))


def _values(function: FuncOp) -> Iterator[SSAValue]:
    """All tensors, in the order of the program."""
    yield from function.body.block.args
    yield from (operation.result for operation in _operations(function))


def _shape(value: SSAValue) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return tuple(value.type.get_shape())


def _given_names(function: FuncOp, block: Block) -> dict[tuple[SSAValue, int], str]:
    """The names that are there, in the order of the program."""
    given: dict[tuple[SSAValue, int], str] = {}
    arguments = function.attributes.get("argument_dims")
    if isinstance(arguments, ArrayAttr):
        for argument, dims in zip(block.args, arguments.data, strict=True):
            given.update({(argument, dim): name for dim, name in enumerate(names_of(dims))})
    for operation in _operations(function):
        if operation.dims is not None:
            given.update({(operation.result, dim): name for dim, name in enumerate(names_of(operation.dims))})
    return given
