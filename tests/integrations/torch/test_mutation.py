"""Writes to inputs: the partition that makes a value writes it where it belongs, and nobody reads too late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

from tessera.integrations.torch.backend import compiled
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.binding import BoundPartition
from tessera.runtime.plans.plan import PlanOutput


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No graphs of other tests."""
    torch._dynamo.reset()
    torch.manual_seed(0)


def traced(
    function: Callable[..., Any], options: CompileOptions | None = None
) -> tuple[Callable[..., Any], list[CompiledGraph]]:
    """A function through the backend, and the graphs that it becomes when it is called."""
    graphs: list[CompiledGraph] = []

    def backend(module: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
        return compiled(module, example, options or CompileOptions(), graphs.append)

    return torch.compile(function, backend=backend, fullgraph=True), graphs


def in_place(graph: CompiledGraph) -> list[bool]:
    """Of each result that has a target, whether the plan itself writes there."""
    found = []
    for partition in graph.partitions:
        for bound in partition._bound.values() if partition is not None else ():
            if isinstance(bound, BoundPartition) and bound._writing is not None:
                outputs: Sequence[PlanOutput] = bound._writing[1]._outputs  # type: ignore[attr-defined]
                found += [outputs[number].structure is None for number in bound._targets]
    return found


def _adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> None:
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.sub_(m / (v.sqrt() + 1e-8))


def _exchanged(x: Tensor, y: Tensor) -> None:
    old = x + 1
    x.copy_(y * 2)
    y.copy_(old)


def _attended(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> Tensor:
    keys.index_copy_(2, place, k)
    values.index_copy_(2, place, v)
    return F.scaled_dot_product_attention(q, keys, values)


def _sliced(cache: Tensor, x: Tensor) -> Tensor:
    cache[:, 2:4] = x
    return cache.sum()


def _read_later(x: Tensor) -> Tensor:
    y = torch.logcumsumexp(torch.logcumsumexp(x + 1, -1) * 2 + x, -1)
    x.mul_(2)
    return y


def _after_a_call(x: Tensor) -> Tensor:
    y = torch.logcumsumexp(x * 2, -1)
    x.copy_(y + 1)
    return y


HEADS = tuple(torch.randn(1, 4, 1, 16) for _ in range(3))
CACHES = tuple(torch.randn(1, 4, 33, 16) for _ in range(2))

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[bool]]] = {
    "a map": (lambda x: x.mul_(2).add_(1), (torch.randn(37, 5),), [True]),
    "three maps of one kernel": (_adam, tuple(torch.rand(37, 5) for _ in range(4)), [True] * 3),
    "two tensors exchanged": (_exchanged, (torch.randn(33), torch.randn(33)), [False, True]),
    "a row that is reduced": (lambda x: x.copy_(torch.softmax(x, -1)), (torch.randn(5, 70),), [False]),
    "a product": (lambda x, w: x.copy_(x @ w), (torch.randn(9, 9), torch.randn(9, 9)), [False]),
    "the product's other operand": (lambda x, y: y.copy_(x @ x), (torch.randn(9, 9), torch.randn(9, 9)), [True]),
    "its own transpose": (lambda x: x.copy_(x.t() * 2 + x), (torch.randn(33, 33),), [False]),
    "a shifted copy": (lambda x: x.copy_(torch.cat([x[1:], x[:1]])), (torch.randn(40),), [False]),
    "channels last": (
        lambda x: x.mul_(3),
        (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
        [True],
    ),
    "every other column": (lambda x: x.mul_(3), (torch.randn(4, 6)[:, ::2],), [False]),
    "caches of attention": (_attended, (*HEADS, *CACHES, torch.tensor([3])), [True, True]),
    "a slice of a cache": (_sliced, (torch.randn(4, 7), torch.randn(4, 2)), [True]),
    "what is put at two indices": (
        lambda x, i, y: x.index_put_((i, i), y),
        (torch.randn(4, 5), torch.tensor([1, -1]), torch.randn(2)),
        [True],
    ),
    "a read after another stage": (_read_later, (torch.randn(6),), []),
    "a write after a sort": (_after_a_call, (torch.randn(6),), [True]),
    "a result that is a copy": (lambda x, y: x.copy_(y.clone()) * 2, (torch.randn(3), torch.randn(3)), []),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reinplace", [True, False])
def test_writes_are_those_of_eager(name: str, reinplace: bool) -> None:
    function, arguments, expected = CASES[name]
    compiled, graphs = traced(function, CompileOptions(reinplace=reinplace))
    mine, theirs = ([torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in arguments] for _ in "ab")
    for _ in range(3):
        versions = [each._version for each in mine]
        torch.testing.assert_close(compiled(*mine), function(*theirs))
        torch.testing.assert_close(mine, theirs)
        changed = [not torch.equal(now, before) for now, before in zip(theirs, arguments, strict=True)]
        assert all(now._version > old for now, old, is_new in zip(mine, versions, changed, strict=True) if is_new)
    (graph,) = graphs
    assert in_place(graph) == (expected if reinplace else [])


class Decoder(nn.Module):
    """Attention over caches of a fixed length, twice, with a token's own keys and values put in their places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.joint = nn.ModuleList([nn.Linear(32, 96) for _ in range(2)])
        for number in range(2):
            self.register_buffer(f"keys{number}", torch.zeros(1, 4, 24, 8))
            self.register_buffer(f"values{number}", torch.zeros(1, 4, 24, 8))

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        x = self.embedding(token)
        seen = (torch.arange(24) <= place)[None]
        for number, joint in enumerate(self.joint):
            q, k, v = joint(x).view(1, 1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
            keys, values = self.get_buffer(f"keys{number}"), self.get_buffer(f"values{number}")
            keys.index_copy_(2, place, k)
            values[:, :, place] = v
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = x + y.transpose(1, 2).reshape(1, 1, 32)
        logits: Tensor = x[:, -1] @ self.embedding.weight.t()
        return logits


def test_decoding_with_a_cache_is_one_partition_that_copies_no_cache() -> None:
    model, eager = Decoder().eval(), Decoder().eval()
    eager.load_state_dict(model.state_dict())
    step, graphs = traced(model, CompileOptions(fallback="error"))
    token = torch.tensor([[7]])
    with torch.no_grad():
        for place in range(8):
            found, expected = step(token, torch.tensor([place])), eager(token, torch.tensor([place]))
            torch.testing.assert_close(found, expected)
            token = expected.argmax(-1, keepdim=True)
    for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    (graph,) = graphs
    assert graph.partition_count == 1
    assert graph.fallbacks == []
    assert len(graph.execution.steps) == 1
    assert in_place(graph) == [True] * 4


def test_statistics_of_a_norm_in_training_are_written_by_partitions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    eager.load_state_dict(model.state_dict())
    step, graphs = traced(model)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(step(x), eager(x))
        for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
    (partition,) = graphs[0].partitions
    assert partition is not None
    assert len(partition._work.targets) == 3
    assert all(
        getattr(each.function, "function", None) is not torch.ops.aten.copy_.default
        for each in graphs[0].execution.steps
    )
