"""A compiled graph: what runs when torch calls what it asked the backend to compile."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tessera.errors import BackendFallbackError
from tessera.integrations.torch.graphs.calls import call_of
from tessera.integrations.torch.graphs.examination import BrokenRow, why_not
from tessera.integrations.torch.graphs.execution import CallStep, Execution, ResultSlot, Slots
from tessera.integrations.torch.graphs.levels import stages
from tessera.integrations.torch.graphs.nodes import described, is_view, is_writing, line_of, tensors_of
from tessera.integrations.torch.graphs.reinplace import replaced_in, writes
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.partition import BackendWarning, Partition


@dataclass(frozen=True)
class Fallback:
    """A node that torch computes: what is called, why, and the user's line."""

    call: str
    reason: str
    where: str | None

    def __str__(self) -> str:
        return f"{self.call}: {self.reason}{f'; at {self.where}' if self.where else ''}"


class CompiledGraph:
    """A graph of ATen operators, cut into partitions that Tessera computes and nodes that torch computes.

    `fallbacks` says which those are, apart from views and numbers of sizes; `partitions` has the nodes of each.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        options: CompileOptions,
        frozen: Iterable[int] = (),
        exact_outputs: int | None = None,
    ) -> None:
        """`frozen`: numbers of inputs that are the same tensors in every call. `exact_outputs`: how many of the results
        users see, by default all. Raises BackendFallbackError (E_BACKEND_FALLBACK) where options do not allow what
        has to be.
        """
        nodes = list(module.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        result = nodes[-1]
        order = [node for node in nodes if node.op not in ("placeholder", "output")]
        self.fallbacks: list[Fallback] = []
        ours = self._ours(order, options)
        targets = writes(order, ours) if options.reinplace else {}
        found = stages(order, ours, {node: write.value for node, write in targets.items()})
        memory = {write.value: write.target for write in targets.values()}
        parts = replaced_in(targets.values())
        written = {node for each in order if is_writing(each) for node in each.all_input_nodes}
        constant = frozenset(self._placeholders[place] for place in frozen if self._placeholders[place] not in written)
        exact = _exact(result, exact_outputs)
        self.partitions = tuple(
            Partition(stage.partition, stage.outputs, constant, exact, options, memory, parts)
            if stage.outputs
            else None
            for stage in found
        )
        self.partition_count = sum(partition is not None for partition in self.partitions)
        most = options.most_partitions
        if most is not None and self.partition_count > most:
            raise BackendFallbackError(
                f"a graph of {self.partition_count} partitions, where at most {most} are allowed",
                hints=[str(fallback) for fallback in self.fallbacks],
            )
        self._boxed_call = True  # what torch looks for to hand over a list; it looks at the object itself
        self._module = module
        self._number: dict[fx.Node, int] = {node: number for number, node in enumerate(self._placeholders)}
        constants: list[tuple[int, Any]] = []
        steps = self._steps(
            [(stage.eager, partition, stage.views) for stage, partition in zip(found, self.partitions, strict=True)],
            constants,
        )
        for node, write in targets.items():
            self._number[node] = self._number[write.value]
        returned: Any = result.args[0]
        results = [ResultSlot(self._number[each]) if isinstance(each, fx.Node) else each for each in returned]
        self.execution = Execution(steps, results, len(self._placeholders), len(self._number), constants)
        self._run: Callable[[Slots], Any] = self._whole() or self.execution

    def _ours(self, order: Sequence[fx.Node], options: CompileOptions) -> set[fx.Node]:
        """The nodes that Tessera computes; the others are noted in `fallbacks`."""
        ours: set[fx.Node] = set()
        for node in order:
            try:
                reason = why_not(node)
            except BrokenRow as broken:
                if options.fallback == "error":
                    raise
                reason = f"broken: {broken}"
                warnings.warn(f"{described(node)}: {broken}; torch computes it", BackendWarning, stacklevel=2)
            if reason is None and node.target is operator.getitem and node.args[0] not in ours:
                continue
            if reason is None:
                ours.add(node)
            elif _is_fallback(node, reason):
                self._note(Fallback(described(node), str(reason), line_of(node)), options)
        return ours

    def _note(self, fallback: Fallback, options: CompileOptions) -> None:
        if options.fallback == "error":
            raise BackendFallbackError(
                f"{fallback.call}: {fallback.reason}",
                where=fallback.where,
                hints=['options={"fallback": "eager"} has torch compute it'],
            )
        self.fallbacks.append(fallback)

    def _steps(
        self,
        found: Sequence[tuple[Sequence[fx.Node], Partition | None, Sequence[fx.Node]]],
        constants: list[tuple[int, Any]],
    ) -> list[CallStep]:
        steps: list[CallStep] = []
        for eager, partition, views in found:
            steps += [step for node in eager for step in self._torch_step(node, constants)]
            if partition is not None:
                inputs = tuple(self._number[node] for node in partition.inputs)
                outputs = tuple(self._slot(node) for node in partition.outputs)
                steps.append(CallStep(partition, inputs, outputs, True, ()))
            steps += [step for node in views for step in self._torch_step(node, constants)]
        return steps

    def _slot(self, node: fx.Node) -> int:
        return self._number.setdefault(node, len(self._number))

    def _torch_step(self, node: fx.Node, constants: list[tuple[int, Any]]) -> list[CallStep]:
        if node.op == "get_attr":
            value: Any = self._module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            constants.append((self._slot(node), value))
            return []
        inputs = tuple(self._number[operand] for operand in node.all_input_nodes)
        return [CallStep(call_of(node), inputs, (self._slot(node),), False, ())]

    def __call__(self, arguments: list[Any]) -> Any:
        """The results, of the inputs in a list, which is emptied: so that inputs end when they are not needed."""
        values = list(arguments)
        arguments.clear()
        return self._run(values)

    def _whole(self) -> Callable[[Slots], Any] | None:
        """The one partition that the graph is, where inputs and results are its own, in their order; else None."""
        execution = self.execution
        if len(execution.steps) != 1 or execution.constants:
            return None
        (step,) = execution.steps
        if not isinstance(step.function, Partition) or step.inputs != tuple(range(len(self._placeholders))):
            return None
        results = [each.number if isinstance(each, ResultSlot) else None for each in execution.results]
        return step.function.run if results == list(step.outputs) else None


def _exact(result: fx.Node, count: int | None) -> frozenset[fx.Node]:
    """The nodes whose results lie as torch's own would: what users see, and what that is a view of."""
    seen = [each for each in list(result.args[0])[:count] if isinstance(each, fx.Node)]  # type: ignore[arg-type]
    found: set[fx.Node] = set()
    while seen:
        node = seen.pop()
        if node not in found:
            found.add(node)
            if is_view(node):
                seen.append(node.all_input_nodes[0])
    return frozenset(found)


def _is_fallback(node: fx.Node, reason: str | None) -> bool:
    """Whether it is worth a word that torch computes a node: not of views, parts of results, numbers of sizes, and what
    is computed and then written to an input.
    """
    if reason is None or node.op == "get_attr" or node.target in (operator.getitem, torch.ops.aten.copy_.default):
        return False
    if is_view(node):
        return reason == "no counterpart"
    return bool(tensors_of(node)) or is_writing(node)
