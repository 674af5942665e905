"""From a symbolic form to Graph IR: one function whose arguments are the form's leaves and whose results are its roots.

Extents get names. Two dimensions that must have the same extent (those of elementwise operands, the inner ones of a
matrix product) get the same name; each name remembers one place to read its value from when a plan is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.dtypes import DType
from tessera.ir import graph
from tessera.ir.attributes import ELEMENT_TYPES, dimension_names, tensor_type, to_attribute
from tessera.lazy.symbolic import SymbolicForm, SymbolicNode
from tessera.ops import OPERATORS
from tessera.ops.pins import KNOBS, PIN, SEEN_OTHERWISE
from tessera.scheduling.language.schedule import Schedule

Place = tuple[int, int]
"""A node of the form and one of its dimensions."""


@dataclass(frozen=True)
class Graph:
    """Graph IR of a form: the module, and where the value of each extent name is found in `post_order()`."""

    module: ModuleOp
    leaves: tuple[int, ...]
    """The form's node of each function argument."""
    extents: Mapping[str, Place]


class _Names:
    """Union-find over the dimensions of the form's nodes."""

    def __init__(self, nodes: tuple[SymbolicNode, ...]) -> None:
        self.nodes = nodes
        self.parent: dict[Place, Place] = {}
        for index, node in enumerate(nodes):
            if node.operator is not None:
                _UNIFY[OPERATORS[node.operator.name].family](self, index, node)

    def root(self, place: Place) -> Place:
        while (above := self.parent.get(place)) is not None:
            place = above
        return place

    def unify(self, a: Place, b: Place) -> None:
        """Says that two dimensions have the same extent, unless one of them is the static 1 of a broadcast."""
        if self.nodes[a[0]].shape[a[1]] == 1 or self.nodes[b[0]].shape[b[1]] == 1:
            return
        first, second = sorted((self.root(a), self.root(b)))
        if first != second:
            self.parent[second] = first

    def aligned(self, index: int, operand: int) -> None:
        """Unifies an operand with a result that it broadcasts to."""
        rank, own = len(self.nodes[index].shape), len(self.nodes[operand].shape)
        for dimension in range(own):
            self.unify((operand, dimension), (index, rank - own + dimension))


def _unify_elementwise(names: _Names, index: int, node: SymbolicNode) -> None:
    for operand in node.operands:
        names.aligned(index, operand)


def _unify_contraction(names: _Names, index: int, node: SymbolicNode) -> None:
    a, b = node.operands[:2]
    rank_a, rank_b, rank = (len(names.nodes[i].shape) for i in (a, b, index))
    if rank_a < 2 or rank_b < 2:
        names.unify((a, rank_a - 1), (b, max(rank_b - 2, 0)))
        return
    names.unify((a, rank_a - 1), (b, rank_b - 2))
    names.unify((a, rank_a - 2), (index, rank - 2))
    names.unify((b, rank_b - 1), (index, rank - 1))
    for operand, own in ((a, rank_a), (b, rank_b)):
        for dimension in range(own - 2):
            names.unify((operand, dimension), (index, rank - own + dimension))
    for operand in node.operands[2:3]:
        names.aligned(index, operand)


def _unify_attention(names: _Names, index: int, node: SymbolicNode) -> None:
    q, k, v, _, *mask = node.operands
    rank = len(names.nodes[index].shape)
    q_rank, k_rank, v_rank = (len(names.nodes[i].shape) for i in (q, k, v))
    names.unify((q, q_rank - 1), (k, k_rank - 1))
    names.unify((k, k_rank - 2), (v, v_rank - 2))
    names.unify((q, q_rank - 2), (index, rank - 2))
    names.unify((v, v_rank - 1), (index, rank - 1))
    if k_rank > 2 and v_rank > 2:
        names.unify((k, k_rank - 3), (v, v_rank - 3))
    if q_rank > 2:
        names.unify((q, q_rank - 3), (index, rank - 3))
    for operand, own in ((q, q_rank), (k, k_rank), (v, v_rank)):
        for dimension in range(own - 3):
            names.unify((operand, dimension), (index, rank - own + dimension))
    for operand in mask:
        own = len(names.nodes[operand].shape)
        for dimension in range(own - 1):
            names.unify((operand, dimension), (index, rank - own + dimension))
        if own:
            names.unify((operand, own - 1), (k, k_rank - 2))


def _unify_convolution(names: _Names, index: int, node: SymbolicNode) -> None:
    image, weights = node.operands
    names.unify((image, 0), (index, 0))
    names.unify((weights, 0), (index, 3))
    if node.named_attributes["groups"] == 1:
        names.unify((image, 3), (weights, 1))


def _unify_window(names: _Names, index: int, node: SymbolicNode) -> None:
    image, *taps = node.operands
    channel = 1 if node.named_attributes["layout"] == "NCHW" else 3
    names.unify((image, 0), (index, 0))
    if node.named_attributes.get("multiplier", 1) == 1:
        names.unify((image, channel), (index, channel))
    for operand in taps:
        names.unify((operand, 0), (index, channel))


def _unify_reduction(names: _Names, index: int, node: SymbolicNode) -> None:
    (operand,) = node.operands
    rank = len(names.nodes[operand].shape)
    attributes = node.named_attributes
    axes = {axis % rank for axis in attributes["axes"]} if rank else set()
    kept = range(rank) if attributes.get("keepdims") else [d for d in range(rank) if d not in axes]
    for position, dimension in enumerate(kept):
        if dimension not in axes:
            names.unify((operand, dimension), (index, position))


def _unify_layout(names: _Names, index: int, node: SymbolicNode) -> None:
    assert node.operator is not None
    if node.operator.name == "transpose":
        for position, dimension in enumerate(node.named_attributes["permutation"]):
            names.unify((node.operands[0], dimension), (index, position))
    elif node.operator.name == "broadcast_to":
        names.aligned(index, node.operands[0])
    elif node.operator.name in ("view_as_real", "view_as_complex"):
        (operand,) = node.operands
        for dimension in range(min(len(names.nodes[operand].shape), len(node.shape))):
            names.unify((operand, dimension), (index, dimension))


def _unify_nothing(names: _Names, index: int, node: SymbolicNode) -> None:
    """What a library gives has the extents that its record says, whatever they have to do with the operands'."""


_UNIFY: dict[str, Any] = {
    "elementwise": _unify_elementwise,
    "row": _unify_elementwise,
    "contraction": _unify_contraction,
    "attention": _unify_attention,
    "convolution": _unify_convolution,
    "reduction": _unify_reduction,
    "layout": _unify_layout,
    "library": _unify_nothing,
    "window": _unify_window,
}


def build_graph(form: SymbolicForm) -> Graph:
    """The Graph IR of a form, unverified (the pipeline verifies in tests and on request)."""
    nodes = form.nodes
    names = _Names(nodes)
    labels: dict[Place, str] = {}

    def label(index: int, dimension: int) -> str:
        if nodes[index].shape[dimension] == 1:
            return "1"
        return labels.setdefault(names.root((index, dimension)), f"s{len(labels)}")

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
    return Graph(ModuleOp([function]), leaves, {name: place for place, name in labels.items()})


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
    name, family = node.operator.name, OPERATORS[node.operator.name].family
    if family == "library":
        name, attributes = "library", {"callee": name, **attributes}
    else:
        graph.declare(name, OPERATORS[name].arity)
    operation = graph.create(name, [values[i] for i in node.operands], _type(node), attributes)
    if family in ("layout", "library"):
        # Its extents and offsets are run-time values: they are read from this node of the structure.
        operation.attributes["node"] = IntegerAttr(index, i64)
    return operation
