"""Steps of optimizers through the backend: one plan that writes to parameters and states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tessera.integrations.torch.backend import compiled
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.binding import BoundPartition

Parameters = Iterable[nn.Parameter]

OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=0.01, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adam of each": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_those_of_eager(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    eager = copy.deepcopy(model)
    first, second = (OPTIMIZERS[name](each.parameters()) for each in (model, eager))
    graphs: list[CompiledGraph] = []

    def backend(module: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
        return compiled(module, example, CompileOptions(fallback="error"), graphs.append)

    step = torch.compile(first.step, backend=backend)
    for _ in range(20):
        x = torch.randn(5, 8)
        for each, optimizer, update in ((model, first, step), (eager, second, second.step)):
            optimizer.zero_grad()
            torch.autograd.backward(each(x).square().sum())
            update()
    torch.testing.assert_close(list(model.parameters()), list(eager.parameters()))
    assert [graph.partition_count for graph in graphs] == [1] * len(graphs)
    assert all(len(graph.execution.steps) == 1 for graph in graphs)
    assert len(graphs) <= 2  # momentum begins with the first gradient


def test_parameters_and_moments_are_written_in_place() -> None:
    torch._dynamo.reset()
    parameter = nn.Parameter(torch.randn(40, 3))
    optimizer = torch.optim.Adam([parameter], foreach=True)
    graphs: list[CompiledGraph] = []
    step = torch.compile(
        optimizer.step, backend=lambda module, example: compiled(module, example, CompileOptions(), graphs.append)
    )
    for _ in range(3):
        parameter.grad = torch.randn(40, 3)
        step()
    (partition,) = graphs[-1].partitions
    assert partition is not None
    (bound,) = partition._bound.values()
    assert isinstance(bound, BoundPartition)
    assert bound._writing is not None
    structure = bound._structure
    assert structure is not None
    outputs = bound._writing[1]._outputs  # type: ignore[attr-defined]
    written = [len(structure.operands[number].shape) for number in bound._targets if outputs[number].structure is None]
    assert written.count(2) == 3
