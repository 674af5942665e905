"""Expressions over tensors that torch follows: one function of torch's autograd each, and so part of its graph.

The gradient is that of the operators' rules. It is built over torch's tensors in its turn, so that gradients of
gradients and `torch.func.grad` are the same thing again. Importing this module installs what evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from tessera import grad
from tessera.doors import reductions
from tessera.doors.elementwise import arithmetic
from tessera.doors.tensors import creation
from tessera.errors import DTypeError
from tessera.handle import Tensor
from tessera.lazy import evaluation
from tessera.lazy.attached import attached, set_evaluator
from tessera.lazy.leaves import sources
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.leaf import Attached, Leaf
from tessera.lazy.node import Node
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Structure
from tessera.ops import OPERATORS


@dataclass(frozen=True)
class Expression:
    """Expressions whose attached leaves are open: each has its number among the tensors that take their places."""

    parts: tuple[tuple[Structure, tuple[int | Leaf, ...]], ...]

    def over(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The expressions over other leaves."""
        return [_rebuilt(structure, own, leaves) for structure, own in self.parts]


def _rebuilt(structure: Structure, own: Sequence[int | Leaf], leaves: Sequence[Tensor]) -> Tensor:
    made: list[Any] = []
    for below, operands, leaf in structure.post_order():
        if leaf is not None:
            given = own[leaf]
            made.append(leaves[given] if isinstance(given, int) else Tensor((given.structure, (given,))))
        elif below.operator is None:
            made.append(Tensor((below, ())))
        else:
            made.append(apply(OPERATORS[below.operator.name], below.attributes, [made[place] for place in operands]))
    return cast(Tensor, made[-1])


def evaluate(nodes: Sequence[Node]) -> None:
    """Evaluates nodes over attached leaves, as `lazy.attached.evaluate` has it."""
    places: dict[Leaf, int] = {}
    parts = []
    for node in nodes:
        own = tuple(places.setdefault(leaf, len(places)) if type(leaf) is Attached else leaf for leaf in node.leaves)
        parts.append((node.structure, own))
    tensors = [cast(Attached, leaf).tensor for leaf in places]
    fake = next((each for each in tensors if isinstance(each, FakeTensor)), None)
    if fake is not None:
        if get_proxy_mode() is not None:  # a graph would have memory in the place of the operators
            raise DTypeError("operators over tensors of a graph that is traced", hints=["call tessera.torch.ops.*"])
        results = tuple(fake.new_empty(node.structure.shape, dtype=node.structure.dtype.torch) for node in nodes)
    else:
        with torch.enable_grad():  # as it was when the tensors were taken
            results = _apply(Expression(tuple(parts)), *tensors)
    for node, result in zip(nodes, results, strict=True):
        node.store(attached(result) or sources.from_torch(result.detach()))


def cotangents_of(
    function: Callable[..., Sequence[Tensor | None]],
    arguments: Sequence[Any],
    places: Iterable[int],
    cotangents: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """The cotangents of all arguments for those of a function's results: of those at `places` that are floating-point
    tensors, None of the others.
    """
    wanted = [place for place in places if arguments[place] is not None and arguments[place].is_floating_point()]
    results: list[torch.Tensor | None] = [None] * len(arguments)

    def weighted(*leaves: Any) -> Tensor:
        # The gradient of the sum of results times cotangents.
        parts = [
            reductions.sum(arithmetic.mul(part, cotangent))
            for part, cotangent in zip(function(*leaves), cotangents, strict=True)
            if part is not None and cotangent is not None
        ]
        return sum(parts[1:], parts[0]) if parts else creation.zeros(())

    if wanted:
        found = grad.grad(weighted, wanted)(*[as_node(x) if isinstance(x, torch.Tensor) else x for x in arguments])
        evaluation.evaluate(found)
        for place, part in zip(wanted, found, strict=True):
            results[place] = part.torch()
    return results


class _Evaluation(torch.autograd.Function):
    """(expression, tensors) -> the values of its parts."""

    @staticmethod
    def forward(expression: Expression, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The values."""
        results = expression.over([cast(Tensor, as_node(each)) for each in tensors])
        evaluation.evaluate(results)
        return tuple(result.torch() for result in results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keeps what the gradient reads."""
        ctx.expression = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.mark_non_differentiable(*[each for each in output if not each.is_floating_point()])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The cotangents of the tensors."""
        tensors = ctx.saved_tensors

        def results(*leaves: Tensor) -> list[Tensor | None]:
            made: list[Tensor] = ctx.expression.over(leaves)
            return [part if part.dtype.kind == "float" else None for part in made]

        return None, *cotangents_of(results, tensors, range(len(tensors)), cotangents)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], expression: Expression, *tensors: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """The values for each of a batch, one after the other."""
        made = [
            _apply(
                expression,
                *[
                    each if dim is None else each.select(dim, place)
                    for each, dim in zip(tensors, in_dims[1:], strict=True)
                ],
            )
            for place in range(info.batch_size)
        ]
        results = tuple(torch.stack(each) for each in zip(*made, strict=True))
        return results, (0,) * len(results)


_apply = cast("Callable[..., tuple[torch.Tensor, ...]]", _Evaluation.apply)

set_evaluator(evaluate)
