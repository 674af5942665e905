"""Names for the extents of a graph written by hand: `argument_dims` of the function and `dims` of its operations.

    graph.add(%a, %b) : (tensor<?x?xf32>, tensor<?xf32>)   ->   dims = ["s0", "s1"], argument_dims = [[s0, s1], [s1]]

Two dimensions that an operator needs to be equal get one name; a static 1, which may broadcast, is called "1". Names
that are there already are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from tessera.ir.attributes import dimension_names, names_of
from tessera.ir.graph import GraphOperation
from tessera.ops.record import family_of

Place = tuple[SSAValue, int]
"""A value and one of its dimensions."""


def has_extent_names(function: FuncOp) -> bool:
    """Whether all values of a function have names for their extents."""
    return "argument_dims" in function.attributes and all("dims" in op.attributes for op in _operations(function))


def name_extents(function: FuncOp) -> None:
    """Gives names to the extents that have none."""
    block = function.body.block
    classes = _Classes()
    for operation in _operations(function):
        _unify(classes, operation)
    given = _given_names(function, block)
    labels: dict[Place, str] = {}
    for place, name in given.items():
        labels.setdefault(classes.root(place), name)
    taken = set(given.values())
    fresh = (name for number in range(1 << 30) if (name := f"s{number}") not in taken)

    def names(value: SSAValue) -> tuple[str, ...]:
        return tuple(given.get((value, dim)) or label((value, dim)) for dim in range(len(_shape(value))))

    def label(place: Place) -> str:
        if _shape(place[0])[place[1]] == 1:
            return "1"
        root = classes.root(place)
        if root not in labels:
            labels[root] = next(fresh)
        return labels[root]

    function.attributes["argument_dims"] = ArrayAttr([dimension_names(names(argument)) for argument in block.args])
    for operation in _operations(function):
        operation.attributes["dims"] = dimension_names(names(operation.result))


def _operations(function: FuncOp) -> Iterator[GraphOperation]:
    return (op for op in function.body.block.ops if isinstance(op, GraphOperation))


def _shape(value: SSAValue) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return tuple(value.type.get_shape())


def _given_names(function: FuncOp, block: Block) -> dict[Place, str]:
    """The names that are there, in the order of the program."""
    given: dict[Place, str] = {}
    arguments = function.attributes.get("argument_dims")
    if isinstance(arguments, ArrayAttr):
        for argument, dims in zip(block.args, arguments.data, strict=True):
            given.update({(argument, dim): name for dim, name in enumerate(names_of(dims))})
    for operation in _operations(function):
        if operation.dims is not None:
            given.update({(operation.result, dim): name for dim, name in enumerate(names_of(operation.dims))})
    return given


class _Classes:
    """Union-find over the dimensions of values."""

    def __init__(self) -> None:
        self._parent: dict[Place, Place] = {}

    def root(self, place: Place) -> Place:
        """The dimension that stands for all that are equal to this one."""
        while (above := self._parent.get(place)) is not None:
            place = above
        return place

    def unify(self, a: Place, b: Place) -> None:
        """Says that two dimensions have the same extent, unless one is the static 1 of a broadcast."""
        if 1 in (_shape(a[0])[a[1]], _shape(b[0])[b[1]]):
            return
        first, second = self.root(a), self.root(b)
        if first != second:
            self._parent[second] = first

    def align(self, operand: SSAValue, result: SSAValue, dims: Sequence[int] | None = None) -> None:
        """Unifies an operand with a result that it broadcasts to, along `dims` of the operand (all by default)."""
        own, lead = len(_shape(operand)), len(_shape(result)) - len(_shape(operand))
        for dim in range(own) if dims is None else dims:
            self.unify((operand, dim), (result, lead + dim))


def _unify(classes: _Classes, operation: GraphOperation) -> None:
    """Unifies what an operator needs to be equal."""
    result, family = operation.result, family_of(operation.operator)
    if family == "contraction":
        _unify_product(classes, operation)
    elif family == "attention":
        _unify_attention(classes, operation)
    elif family == "convolution":
        image, weights = operation.inputs
        classes.unify((image, 0), (result, 0))
        classes.unify((weights, 0), (result, 3))
        if operation.attribute("groups") == 1:
            classes.unify((image, 3), (weights, 1))
    elif family == "window":
        _unify_window(classes, operation)
    elif family == "reduction":
        (operand,) = operation.inputs
        axes, rank = operation.integers("axes"), len(_shape(operand))
        kept = range(rank) if operation.attribute("keepdims", False) else [d for d in range(rank) if d not in axes]
        for position, dim in enumerate(kept):
            if dim not in axes:
                classes.unify((operand, dim), (result, position))
    elif operation.operator == "transpose":
        for position, dim in enumerate(operation.integers("permutation")):
            classes.unify((operation.inputs[0], dim), (result, position))
    elif operation.operator == "concat":
        axis = operation.attribute("axis")
        for operand in operation.inputs:
            classes.align(operand, result, [dim for dim in range(len(_shape(operand))) if dim != axis])
    elif operation.operator not in ("reshape", "slice", "pad"):
        for operand in operation.inputs:
            classes.align(operand, result)


def _unify_product(classes: _Classes, operation: GraphOperation) -> None:
    a, b, *addend = operation.inputs
    result = operation.result
    rank_a, rank_b, rank = len(_shape(a)), len(_shape(b)), len(_shape(result))
    flip_a, flip_b = (bool(operation.attribute(f"transpose_{side}", False)) for side in "ab")
    a_inner = rank_a - 1 if rank_a == 1 or not flip_a else rank_a - 2
    b_inner = rank_b - 1 if rank_b == 1 or flip_b else rank_b - 2
    classes.unify((a, a_inner), (b, b_inner))
    if rank_a > 1:
        rows = 2 * rank_a - 3 - a_inner
        classes.unify((a, rows), (result, rank - 1 - (rank_b > 1)))
    if rank_b > 1:
        columns = 2 * rank_b - 3 - b_inner
        classes.unify((b, columns), (result, rank - 1))
    if rank_a > 1 and rank_b > 1:
        classes.align(a, result, range(rank_a - 2))
        classes.align(b, result, range(rank_b - 2))
    for value in addend:
        classes.align(value, result)


def _unify_window(classes: _Classes, operation: GraphOperation) -> None:
    image, *taps = operation.inputs
    channel = 1 if operation.attribute("layout") == "NCHW" else 3
    classes.unify((image, 0), (operation.result, 0))
    if operation.attribute("multiplier", 1) == 1:
        classes.unify((image, channel), (operation.result, channel))
    for operand in taps:
        classes.unify((operand, 0), (operation.result, channel))


def _unify_attention(classes: _Classes, operation: GraphOperation) -> None:
    q, k, v, _, *mask = operation.inputs
    result = operation.result
    q_rank, k_rank, v_rank, rank = (len(_shape(value)) for value in (q, k, v, result))
    classes.unify((q, q_rank - 1), (k, k_rank - 1))
    classes.unify((k, k_rank - 2), (v, v_rank - 2))
    classes.unify((v, v_rank - 1), (result, rank - 1))
    classes.align(q, result, range(q_rank - 1))
    for operand, own in ((k, k_rank), (v, v_rank)):
        classes.align(operand, result, range(own - 3))
    if min(k_rank, v_rank) > 2:
        classes.unify((k, k_rank - 3), (v, v_rank - 3))
    for value in mask:
        own = len(_shape(value))
        classes.align(value, result, range(own - 1))
        if own:
            classes.unify((value, own - 1), (k, k_rank - 2))
