"""Random lazy expressions, their Graph IR, and what a module of Graph IR computes by the operators' references."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation

from tessera.compiler.graph.building import BuiltGraph, build_graph
from tessera.dtypes import dtype_of
from tessera.ir.attributes import DTYPE_NAMES
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule import operations as schedule_ir
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structures.structure import Occurrence
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.ops import OPERATORS
from tessera.ops.algebra import call, literal
from tessera.rewrite.engine import dims_of
from tessera.scheduling.binding.regions import attributes_of

UNARY = "neg abs exp tanh sigmoid relu gelu silu erf".split()
BINARY = "add sub mul maximum minimum".split()
REDUCTIONS = "sum mean max min argmax".split()
SIZES = (2, 3, 5)


@dataclass(frozen=True)
class Case:
    """Several lazy results, and the Graph IR of their joint evaluation."""

    nodes: Sequence[Node]
    graph: BuiltGraph
    order: Sequence[Occurrence]
    arguments: Sequence[torch.Tensor]

    @property
    def module(self) -> ModuleOp:
        """The Graph IR."""
        return self.graph.module

    @property
    def function(self) -> FuncOp:
        """Its one function."""
        (function,) = self.module.ops
        assert isinstance(function, FuncOp)
        return function


def case_of(*nodes: Node) -> Case:
    """The case of these results."""
    structure, leaves = nodes[0].state if len(nodes) == 1 else joined(nodes)
    graph = build_graph(symbolic_form(structure))
    order = structure.post_order()
    arguments = []
    for index in graph.leaves:
        leaf = order[index].leaf
        assert leaf is not None
        arguments.append(to_torch(leaves[leaf]))
    return Case(nodes, graph, order, arguments)


# -- drawing ----------------------------------------------------------------------------------------------------------


def tensor(*shape: int, seed: int = 0) -> Any:
    """A leaf with standard normal values."""
    generator = torch.Generator().manual_seed(seed)
    return leaf_node(from_torch(torch.randn(shape, generator=generator)))


def draw_case(draw: random.Random, operations: int) -> Case:
    """A random graph: leaves, `operations` operators over what is there, and one to three results."""
    pool: list[Any] = [tensor(*_shape(draw), seed=draw.randrange(1000)) for _ in range(draw.randrange(1, 4))]
    for _ in range(operations):
        pool.append(_MOVES[draw.choice(list(_MOVES))](draw, pool))
    made = pool[-operations:]
    roots = [made[-1], *(draw.choice(made) for _ in range(draw.randrange(3)))]
    return case_of(*dict.fromkeys(roots))


def _shape(draw: random.Random) -> tuple[int, ...]:
    return tuple(draw.choice((*SIZES, 3, 3, 1)) for _ in range(draw.choice((1, 2, 2, 2, 3))))


def _floats(pool: Sequence[Any], least_rank: int = 0) -> list[Any]:
    return [x for x in pool if x.dtype.name == "fp32" and len(x.shape) >= least_rank] or [tensor(3, 3)]


def _pick(draw: random.Random, candidates: Sequence[Any]) -> Any:
    """Mostly what was made lately, so that the graph is deep and little of it is dead."""
    return draw.choice(candidates[-3:] if draw.random() < 0.7 else candidates)


def _unary(draw: random.Random, pool: Sequence[Any]) -> Any:
    return call(draw.choice(UNARY), _pick(draw, _floats(pool)))


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(1 in (x, y) or x == y for x, y in zip(reversed(a), reversed(b), strict=False))


def _partner(draw: random.Random, pool: Sequence[Any], x: Any) -> Any:
    return _pick(draw, [y for y in _floats(pool) if _broadcasts(x.shape, y.shape)] or [x])


def _binary(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool))
    y = literal(draw.choice((0.5, 1.0, 2.0, 0.0)), x.dtype) if draw.random() < 0.3 else _partner(draw, pool, x)
    return call(draw.choice(BINARY), *((x, y) if draw.random() < 0.5 else (y, x)))


def _where(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool))
    y = _partner(draw, pool, x)
    return call("where", call(draw.choice(("lt", "ge", "eq")), x, y), y, x)


def _reduce(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool, 1))
    rank, name = len(x.shape), draw.choice(REDUCTIONS)
    count = draw.choice((1, rank)) if name == "argmax" else draw.randrange(1, rank + 1)
    axes = tuple(sorted(draw.sample(range(rank), count)))
    result = call(name, x, axes=axes, keepdims=draw.random() < 0.5)
    return call("cast", result, dtype=x.dtype) if name == "argmax" else result


def _row(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool, 1))
    name = draw.choice(("softmax", "log_softmax", "layer_norm", "rms_norm"))
    if name.endswith("softmax"):
        return call(name, x, axis=draw.randrange(len(x.shape)))
    return call(name, x, eps=1e-3)


def _cast(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool))
    return call("cast", call("cast", x, dtype=dtype_of(draw.choice(("fp64", "fp32")))), dtype=x.dtype)


def _matmul(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool, 2))
    others = [y for y in _floats(pool, 2) if y.shape[-2] == x.shape[-1] and _broadcasts(x.shape[:-2], y.shape[:-2])]
    y = draw.choice(others) if others else _swapped(x)
    # Sums of products of sums grow: keep them near 1.
    return call("mul", call("matmul", x, y), literal(0.25, x.dtype))


def _swapped(x: Any) -> Any:
    rank = len(x.shape)
    return call("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def _layout(draw: random.Random, pool: Sequence[Any]) -> Any:
    x = _pick(draw, _floats(pool, 1))
    rank = len(x.shape)
    match draw.choice(("transpose", "reshape", "slice", "concat", "broadcast")):
        case "transpose":
            return call("transpose", x, permutation=tuple(draw.sample(range(rank), rank)))
        case "reshape":
            return call("reshape", x, shape=tuple(reversed(x.shape)))
        case "slice":
            sizes = (max(x.shape[0] - 1, 1), *x.shape[1:])
            starts = (x.shape[0] - sizes[0], *(0 for _ in x.shape[1:]))
            return call("slice", x, starts=starts, sizes=sizes, steps=(1,) * rank)
        case "concat":
            return call("concat", x, x, axis=draw.randrange(rank))
        case _:
            return call("broadcast_to", x, shape=(2, *x.shape)) if rank < 3 else call("neg", x)


_MOVES = {
    "unary": _unary,
    "binary": _binary,
    "more binary": _binary,
    "where": _where,
    "reduce": _reduce,
    "row": _row,
    "cast": _cast,
    "matmul": _matmul,
    "layout": _layout,
}


# -- meaning ----------------------------------------------------------------------------------------------------------


def evaluate(case: Case) -> list[torch.Tensor]:
    """What the case's module computes now, whatever passes have run; floats in float64."""
    sizes = {name: case.order[node].structure.shape[dim] for name, (node, dim) in case.graph.extents.items()}
    block = case.function.body.block
    values = dict(zip(block.args, map(_wide, case.arguments), strict=True))
    return _run(case, block, values, {**sizes, "1": 1})


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _run(case: Case, block: Block, values: dict[Any, torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor]:
    for op in block.ops:
        if isinstance(op, (ReturnOp, schedule_ir.ScheduleYieldOp)):
            return [values[operand] for operand in op.operands]
        if isinstance(op, schedule_ir.ScheduleKernelOp):
            inside = dict(zip(op.body.block.args, (values[operand] for operand in op.inputs), strict=True))
            values.update(zip(op.results, _run(case, op.body.block, inside, sizes), strict=True))
        else:
            assert isinstance(op, GraphOperation)
            values[op.result] = _value(case, op, [values[operand] for operand in op.inputs], sizes)
    raise AssertionError("a block without a terminator")


def _value(case: Case, op: GraphOperation, operands: list[torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    if op.operator == "constant":
        dtype = dtype_of(DTYPE_NAMES[op.result.type.element_type])
        return _wide(torch.tensor(op.attribute("value"), dtype=dtype.torch))
    attributes: dict[str, Any] = attributes_of(op)
    if op.operator in ("reshape", "broadcast_to"):
        attributes["shape"] = tuple(sizes[name] for name in dims_of(op.result))
    if op.operator == "slice":
        attributes = case.order[op.attributes["node"].value.data].structure.named_attributes  # type: ignore[attr-defined]
    if op.operator in ("matmul", "gemm"):
        # Flags of the IR that the record does not have: rewriting sets them.
        for index, flag in enumerate(("transpose_a", "transpose_b")):
            if op.attribute(flag, False):
                operands[index] = operands[index].mT
    return _wide(OPERATORS[op.operator].reference(*operands, **attributes))


def graph_operations(operation: Operation) -> list[GraphOperation]:
    """All graph operations below an operation."""
    return [op for op in operation.walk() if isinstance(op, GraphOperation)]


def kernels(module: ModuleOp) -> list[schedule_ir.ScheduleKernelOp]:
    """The kernels of a module in which `fuse-kernels` has run, in order."""
    return [op for op in module.walk() if isinstance(op, schedule_ir.ScheduleKernelOp)]


def names_in(kernel: schedule_ir.ScheduleKernelOp) -> list[str]:
    """The operators inside a kernel, in order."""
    return [op.operator for op in graph_operations(kernel)]
