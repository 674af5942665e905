"""What becomes of a model under the backend: graphs, partitions, and what torch computes, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

from tessera.integrations.torch.backend import compiled
from tessera.integrations.torch.graphs.graph import CompiledGraph, Fallback
from tessera.integrations.torch.options import options_of


@dataclass(frozen=True)
class AtenGraphExplanation:
    """One graph of ATen operators: how many nodes each partition has, and what torch computes."""

    partitions: tuple[int, ...]
    fallbacks: tuple[Fallback, ...]


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; `str` is the report."""

    graphs: tuple[AtenGraphExplanation, ...]
    breaks: tuple[str, ...]
    """Why Dynamo cut the model's code where it did."""

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """What torch computes, of all graphs."""
        return tuple(each for graph in self.graphs for each in graph.fallbacks)

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graphs, {len(self.breaks)} graph breaks"]
        lines += [f"  break: {reason}" for reason in self.breaks]
        for number, graph in enumerate(self.graphs):
            nodes = ", ".join(map(str, graph.partitions)) or "none"
            lines.append(f"graph {number}: partitions of {nodes} nodes; {len(graph.fallbacks)} nodes are torch's")
            lines += [f"  {fallback}" for fallback in graph.fallbacks]
        return "\n".join(lines)


def explain(
    model: Callable[..., Any], *args: Any, options: Mapping[str, object] | None = None, **kwargs: Any
) -> Explanation:
    """Compiles a model for these arguments and runs it once, and says what became of it: graphs, their partitions, what
    torch computes with reason and line of code, and where Dynamo cut the code and why.

    Graphs of gradients are not among them: they are made when a gradient is asked for.
    """
    chosen = options_of(options)
    graphs: list[CompiledGraph] = []
    known = Counter(counters["graph_break"])
    function = torch.compile(model, backend=lambda module, inputs: compiled(module, inputs, chosen, graphs.append))
    function(*args, **kwargs)
    return Explanation(
        tuple(
            AtenGraphExplanation(
                tuple(len(partition.nodes) for partition in graph.partitions if partition is not None),
                tuple(graph.fallbacks),
            )
            for graph in graphs
        ),
        tuple((Counter(counters["graph_break"]) - known).elements()),
    )
