"""Models through the backend, beside eager torch, against the same models in float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tessera.torch  # noqa: F401 - the backend has its name
from tessera.integrations.torch.backend import compiled
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.partition import BackendWarning
from tests.integrations.torch.models import MODELS
from tests.whole import some

FALLBACKS: dict[str, list[str]] = {}
"""What torch computes of a model, in training or not, by its name: reviewed, and empty."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graphs of other tests; what is broken is an error."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        yield


def run(name: str, train: bool) -> tuple[list[CompiledGraph], list[tuple[nn.Module, Tensor]]]:
    """A model through the backend, eager and in float64: the compiled graphs, and each with its result."""
    make, inputs = MODELS[name]
    model, arguments = make().train(train), inputs()
    graphs: list[CompiledGraph] = []

    def backend(module: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
        return compiled(module, example, CompileOptions(), graphs.append)

    ours, eager, wide = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model).double()
    exact = [each.double() if each.is_floating_point() else each for each in arguments]
    with torch.set_grad_enabled(train):
        results = [
            (ours, torch.compile(ours, backend=backend, fullgraph=True)(*arguments)),
            (eager, eager(*arguments)),
            (wide, wide(*exact)),
        ]
    return graphs, results


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The length of the difference in units of what is wanted."""
    off = sum(float((a.double() - b).square().sum()) for a, b in zip(found, wanted, strict=True))
    return float((off / sum(float(each.square().sum()) for each in wanted)) ** 0.5)


# Those that the next test leaves out, as far as not all are run.
@pytest.mark.parametrize("name", some([*list(MODELS)[1:], *list(MODELS)[:1]]))
def test_a_model_is_as_exact_as_eager(name: str) -> None:
    graphs, ((_, ours), (_, eager), (_, wide)) = run(name, train=False)
    assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
    assert distance([ours], [wide]) <= 2 * distance([eager], [wide]) + 1e-7
    assert [str(each) for graph in graphs for each in graph.fallbacks] == FALLBACKS.get(name, [])
    assert [graph.partition_count for graph in graphs] == [1]


@pytest.mark.parametrize("name", some(MODELS))
def test_the_first_step_of_a_model_is_as_exact_as_eager(name: str) -> None:
    graphs, results = run(name, train=True)
    (ours, result), (eager, expected), (wide, exact) = results
    assert distance([result.detach()], [exact.detach()]) <= 2 * distance([expected.detach()], [exact.detach()]) + 1e-7
    cotangent = torch.randn_like(expected)
    for _, each in results:
        torch.autograd.backward(each, cotangent.to(each.dtype))
    found, usual, wanted = ([p.grad for p in each.parameters() if p.grad is not None] for each in (ours, eager, wide))
    assert len(found) == len(usual) == len(wanted)
    assert distance(found, wanted) <= 3 * distance(usual, wanted) + 1e-7
    assert [each.stride() for each in found] == [each.stride() for each in usual]
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert [str(each) for graph in graphs for each in graph.fallbacks] == FALLBACKS.get(name, [])


def test_a_loss_curve_of_gpt2_is_eager_s() -> None:
    make, inputs = MODELS["gpt2"]
    model, (tokens,) = make(), inputs()
    curves = []
    for backend in ("tessera", "eager"):
        copied = copy.deepcopy(model)
        step = torch.compile(copied, backend=backend)
        optimizer = torch.optim.AdamW(copied.parameters(), lr=1e-3)
        curve = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(step(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            curve.append(float(loss.detach()))
        curves.append(curve)
    assert curves[1][-1] < curves[1][0]
    assert max(abs(a - b) for a, b in zip(*curves, strict=True)) < 1e-5
