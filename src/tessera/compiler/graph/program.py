"""Programs: what is left of a fused module for binding, as plain Python (no IR is walked when shapes change)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, SSAValue

from tessera.compiler.graph.memo import Memo
from tessera.dtypes import DType, dtype_of
from tessera.ir.anchors.anchor import Place
from tessera.ir.attributes import DTYPE_NAMES, integers_of, names_of
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule import operations as schedule_ir
from tessera.ops.families import FAMILIES, OperatorFamily
from tessera.ops.record import OPERATORS, Movement, family_of
from tessera.rewrite.engine import Firing, dims_of
from tessera.rewrite.fusion.alignment import Alignment, align_region, dimension_of
from tessera.rewrite.guards import Guard, guards_of
from tessera.rewrite.rules.idioms import IDIOMS
from tessera.system.caching import cached_property


@dataclass(frozen=True)
class ValueInfo:
    """A tensor of the program: dtype and the names of its extents ("1" where static)."""

    dtype: DType
    dims: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class KernelItem:
    """One kernel of a program.

    `inputs`, `outputs` are value numbers. `domain` names the iteration extents; a contraction's ends in m, n, k, of
    which k is not a dimension of the result, an attention's in queries, size of a value, keys, size of a key and heads
    of K and V, of which the first two are dimensions of the result, a convolution's in the image's rows, columns and
    channels, the window's rows and columns, and the channels of a group, a window's in the rows and columns of the
    image, those of the window, and the image's channels. `loads` are the arrays that the kernel reads, as
    (index into `inputs`, alignment over the domain); an input that is read under two alignments is two arrays.
    `stores` are the alignments of the outputs. `memo` holds what has been made of the kernel.
    """

    operation: schedule_ir.ScheduleKernelOp
    name: str
    family: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    domain: tuple[str, ...]
    reduced: tuple[int, int] | None
    loads: tuple[tuple[int, Alignment], ...]
    stores: tuple[Alignment, ...]
    is_step: bool = False
    """Whether it is what a step of another kernel is reported as: a specification says what the step computes."""
    memo: Memo = field(default_factory=Memo)


@dataclass(frozen=True, eq=False)
class LayoutItem:
    """A view or a copy: what becomes of the elements, its inputs and output, and the structure's node that holds its
    extents.

    `permutation` is a transpose's, `axis` a concatenation's.
    """

    movement: Movement
    inputs: tuple[int, ...]
    output: int
    node: int
    permutation: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True, eq=False)
class LibraryItem:
    """A call of a library: the operators whose results it gives, with the number of each value, its inputs, and the
    structure's node that holds extents and attributes. Results of one call that nothing reads have no value.
    """

    outputs: Mapping[str, int]
    inputs: tuple[int, ...]
    node: int


Item: TypeAlias = KernelItem | LayoutItem | LibraryItem


@dataclass(frozen=True, eq=False)
class Program:
    """A fused function.

    `values[i]` for `i < len(leaves)` are arguments; `leaves[i]` is the form's node of argument i.
    """

    module: ModuleOp
    leaves: tuple[int, ...]
    extents: Mapping[str, Place]
    values: tuple[ValueInfo, ...]
    items: tuple[Item, ...]
    roots: tuple[int, ...]
    log: tuple[Firing, ...]
    """The rewrites that fired, in order."""
    guards: tuple[Guard, ...] = ()
    """What extents have to be for the rewrites to be right: names on either side, whose products are equal."""

    @cached_property
    def recognized(self) -> bool:
        """Whether an idiom stands in place of what was written."""
        return any(firing.rule in IDIOMS for firing in self.log)


def read_program(
    module: ModuleOp, leaves: tuple[int, ...], extents: Mapping[str, Place], log: Sequence[Firing] = ()
) -> Program:
    """The program of a module in which `fuse-kernels` has run."""
    (function,) = (op for op in module.ops if isinstance(op, FuncOp))
    numbers: dict[SSAValue, int] = {}
    values: list[ValueInfo] = []
    items: list[Item] = []
    calls: dict[object, int] = {}

    def number(value: SSAValue, dims: tuple[str, ...]) -> int:
        assert isinstance(value.type, TensorType)
        numbers[value] = len(values)
        values.append(ValueInfo(dtype_of(DTYPE_NAMES[value.type.element_type]), dims))
        return numbers[value]

    for argument in function.body.block.args:
        number(argument, dims_of(argument))
    roots: tuple[int, ...] = ()
    for operation in function.body.block.ops:
        if isinstance(operation, ReturnOp):
            roots = tuple(numbers[value] for value in operation.operands)
        elif isinstance(operation, schedule_ir.ScheduleKernelOp):
            items.append(_kernel_item(operation, numbers, number))
        elif isinstance(operation, GraphOperation) and operation.operator == "library":
            inputs = tuple(numbers[value] for value in operation.inputs)
            output = number(operation.result, dims_of(operation.result))
            _add_call(operation, inputs, output, items, calls)
        elif isinstance(operation, GraphOperation):
            inputs = tuple(numbers[value] for value in operation.inputs)
            items.append(_layout_item(operation, inputs, number(operation.result, dims_of(operation.result))))
    guards = tuple(guards_of(function))
    return Program(module, leaves, extents, tuple(values), tuple(items), roots, tuple(log), guards)


def _add_call(
    operation: GraphOperation, inputs: tuple[int, ...], output: int, items: list[Item], calls: dict[object, int]
) -> None:
    """Adds the call of a library, or its result to an earlier call that gives several. `calls` are those by what they
    compute.
    """
    callee, node = operation.attribute("callee"), operation.attribute("node")
    assert isinstance(callee, str) and isinstance(node, int)
    joint = OPERATORS[callee].joint
    others = {name: value for name, value in operation.attributes.items() if name not in ("callee", "node", "dims")}
    place = calls.setdefault((joint or node, inputs, frozenset(others.items())), len(items))
    if place == len(items):
        items.append(LibraryItem({callee: output}, inputs, node))
    else:
        known = items[place]
        assert isinstance(known, LibraryItem)
        items[place] = LibraryItem({**known.outputs, callee: output}, inputs, known.node)


def _layout_item(operation: GraphOperation, inputs: tuple[int, ...], output: int) -> LayoutItem:
    node, axis = operation.attribute("node"), operation.attribute("axis", 0)
    assert isinstance(node, int) and isinstance(axis, int)
    movement = OPERATORS[operation.operator].movement
    assert movement is not None, f"the record of {operation.operator} does not say what it makes of elements"
    permutation = operation.integers("permutation") if movement == "permuted" else ()
    return LayoutItem(movement, inputs, output, node, permutation, axis)


def _kernel_item(
    operation: schedule_ir.ScheduleKernelOp,
    numbers: dict[SSAValue, int],
    number: Callable[[SSAValue, tuple[str, ...]], int],
) -> KernelItem:
    result_dims = _dims_lists(operation.attributes["result_dims"])
    domain = names_of(operation.attributes["domain"])
    body = operation.body.block
    alignments = align_region(operation)
    loads = dict.fromkeys(
        (argument.index, alignment) for argument in body.args for alignment in alignments.uses.get(argument, ())
    )
    last = body.last_op
    assert last is not None
    argument_dims = named_dims(operation, "argument_dims")
    for family in FAMILIES.values():
        if family.beyond and (op := _first(operation, family)) is not None:
            domain = (*domain, *_dims_beyond(op, argument_dims))
    return KernelItem(
        operation,
        operation.sym_name.data,
        operation.family.data,
        tuple(numbers[value] for value in operation.inputs),
        tuple(number(value, dims) for value, dims in zip(operation.outputs, result_dims, strict=True)),
        domain,
        _reduced_range(operation),
        tuple(loads),
        tuple(alignments.results[value] for value in last.operands),
    )


def _reduced_range(operation: schedule_ir.ScheduleKernelOp) -> tuple[int, int] | None:
    reduced = operation.attributes.get("reduced")
    if reduced is None:
        return None
    first, last = integers_of(reduced)
    return first, last


def named_dims(operation: schedule_ir.ScheduleKernelOp, attribute: str) -> list[tuple[str, ...]]:
    """The names of extents in a kernel's `argument_dims` or `result_dims`."""
    return _dims_lists(operation.attributes[attribute])


def _dims_lists(attribute: Attribute) -> list[tuple[str, ...]]:
    assert isinstance(attribute, ArrayAttr)
    return [names_of(dims) for dims in attribute.data]


def _operand_dims(value: SSAValue, argument_dims: list[tuple[str, ...]]) -> tuple[str, ...]:
    if isinstance(value, BlockArgument):
        return argument_dims[value.index]
    return dims_of(value)


def _first(operation: schedule_ir.ScheduleKernelOp, family: OperatorFamily) -> GraphOperation | None:
    """The first operation of a kernel's region whose operator is of a family."""
    for op in operation.body.block.ops:
        if isinstance(op, GraphOperation) and family_of(op.operator) is family:
            return op
    return None


def _dims_beyond(op: GraphOperation, argument_dims: list[tuple[str, ...]]) -> Iterator[str]:
    """The names of the extents that a kernel's domain has behind its result's for an operation; "1" where no operand
    has such a dimension.
    """
    anchor = op.anchor()
    for operand, axis in family_of(op.operator).beyond:
        assert anchor is not None
        dimension = dimension_of(anchor, operand, axis)
        yield "1" if dimension is None else _operand_dims(op.inputs[operand], argument_dims)[dimension]
