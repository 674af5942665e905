"""From a symbolic form to Graph IR: one function whose arguments are the form's leaves and whose results are its roots.

Extents get names. Two dimensions that must have the same extent (those of elementwise operands, the inner ones of a
matrix product) get the same name; each name remembers one place to read its value from when a plan is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.dtypes import DType
from tessera.ir.anchors.anchor import ExtentClasses, Place
from tessera.ir.anchors.rules import with_result
from tessera.ir.attributes import ELEMENT_TYPES, dimension_names, tensor_type, to_attribute
from tessera.ir.graph import operations as graph
from tessera.lazy.structures.symbolic import SymbolicForm, SymbolicNode
from tessera.ops import OPERATORS
from tessera.ops.pins import KNOBS, PIN, SEEN_OTHERWISE
from tessera.ops.record import family_of
from tessera.scheduling.language.schedule import Schedule


@dataclass(frozen=True)
class BuiltGraph:
    """Graph IR of a form: the module, and where the value of each extent name is found in `post_order()`."""

    module: ModuleOp
    leaves: tuple[int, ...]
    """The form's node of each function argument."""
    extents: Mapping[str, Place]
    """(node of the form, dimension) by name."""


def _extent_classes(nodes: tuple[SymbolicNode, ...]) -> ExtentClasses:
    """Which dimensions of a form's nodes have one extent, as the anchors of their operators say."""
    classes = ExtentClasses([node.shape for node in nodes])
    for index, node in enumerate(nodes):
        if node.operator is None:
            continue
        attributes = with_result(node.named_attributes, node.shape)
        anchor = OPERATORS[node.operator.name].anchored(tuple([len(nodes[i].shape) for i in node.operands]), attributes)
        if anchor is not None:
            classes.apply(anchor, node.operands, index)
    return classes


def build_graph(form: SymbolicForm) -> BuiltGraph:
    """The Graph IR of a form, unverified (the pipeline verifies in tests and on request)."""
    nodes = form.nodes
    classes = _extent_classes(nodes)
    labels: dict[Place, str] = {}

    def label(index: int, dimension: int) -> str:
        if nodes[index].shape[dimension] == 1:
            return "1"
        return labels.setdefault(classes.root((index, dimension)), f"s{len(labels)}")

    dims = [tuple(label(i, d) for d in range(len(node.shape))) for i, node in enumerate(nodes)]
    leaves = tuple(i for i, node in enumerate(nodes) if node.leaf is not None)
    block = Block(arg_types=[_type(nodes[i]) for i in leaves])
    values: dict[int, SSAValue] = dict(zip(leaves, block.args, strict=True))
    roots = nodes[-1].operands if nodes[-1].kind == "tuple" else (len(nodes) - 1,)
    for index, node in enumerate(nodes):
        if index in values or node.kind == "tuple":
            continue
        if node.operator is PIN:
            values[index] = _pinned(values[node.operands[0]], node.named_attributes[KNOBS])
            continue
        operation = _operation(index, node, values)
        operation.attributes["dims"] = dimension_names(dims[index])
        block.add_op(operation)
        values[index] = operation.result
    block.add_op(ReturnOp(*(values[root] for root in roots)))
    function = FuncOp("program", ([v.type for v in block.args], [values[r].type for r in roots]), Region(block))
    function.attributes["argument_dims"] = ArrayAttr([dimension_names(dims[i]) for i in leaves])
    return BuiltGraph(ModuleOp([function]), leaves, {name: place for place, name in labels.items()})


def _type(node: SymbolicNode) -> TensorType[Attribute]:
    return tensor_type(node.shape, element(node.dtype))


def element(dtype: DType) -> Attribute:
    """The element type of a tensor of `dtype`."""
    return ELEMENT_TYPES[dtype.name]


def _pinned(value: SSAValue, knobs: str) -> SSAValue:
    """The value of an operation that has the knobs noted on it, which come before those noted earlier."""
    operation = value.owner
    while isinstance(operation, graph.GraphOperation) and operation.operator in SEEN_OTHERWISE:
        operation = operation.inputs[0].owner
    if not isinstance(operation, graph.GraphOperation):  # a leaf, which an evaluation put in the operation's place
        return value
    earlier = operation.attribute(KNOBS, "")
    assert isinstance(earlier, str)
    merged = Schedule(Schedule.parse(earlier), **Schedule.parse(knobs))
    operation.attributes[KNOBS] = to_attribute(str(merged))
    return value


_NUMBERS: Mapping[str, Callable[[str], bool | int | float]] = {
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
}


def _operation(index: int, node: SymbolicNode, values: Mapping[int, SSAValue]) -> graph.GraphOperation:
    if node.kind == "constant":
        assert node.value is not None
        number = _NUMBERS[node.dtype.kind](node.value)
        return graph.create("constant", (), _type(node), {"value": number})
    assert node.operator is not None
    attributes = {
        name: value.name if isinstance(value, DType) else value
        for name, value in node.named_attributes.items()
        if value is not None
    }
    name, family = node.operator.name, family_of(node.operator.name)
    if family.is_call:
        name, attributes = "library", {"callee": name, **attributes}
    else:
        record = OPERATORS[name]
        axis = attributes.get("axis")
        if isinstance(axis, int) and axis < 0:  # a record's own default; Graph IR counts from the front
            attributes["axis"] = axis + len(node.shape)
        graph.declare(name, record.arity, record.anchor_rule if record.result is None else None)
    operation = graph.create(name, [values[i] for i in node.operands], _type(node), attributes)
    if family.has_run_time_geometry:
        # They are read from this node of the structure.
        operation.attributes["node"] = IntegerAttr(index, i64)
    return operation
