"""Cross entropy through the backend: values and gradients against float64, kernels, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

from tessera.integrations.torch.backend import compiled
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.options import options_of

CASES = [
    ((7, 13), "mean", False),
    ((7, 13), "none", True),
    ((1, 300), "sum", False),
    ((5,), "none", True),
    ((3, 11, 4), "mean", True),
    ((2, 5, 3, 2), "none", False),
]


def through(function: Any, graphs: list[CompiledGraph]) -> Any:
    chosen = options_of({"fallback": "error"})

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compiled(module, inputs, chosen, graphs.append)

    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)


def targets_of(shape: tuple[int, ...]) -> tuple[Tensor, int]:
    classes = shape[0] if len(shape) == 1 else shape[1]
    target = torch.randint(0, classes, () if len(shape) == 1 else (shape[0], *shape[2:]))
    if target.numel() > 2:
        target.view(-1)[1] = -100
    return target, classes


@pytest.mark.parametrize(("shape", "reduction", "weighted"), CASES, ids=str)
def test_cross_entropy_is_as_exact_as_eager(shape: tuple[int, ...], reduction: str, weighted: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(shape) * 50 + 1000
    target, classes = targets_of(shape)
    weight = torch.rand(classes) + 0.1 if weighted else None

    def loss(x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        return F.cross_entropy(x, target, weight, reduction=reduction)

    graphs: list[CompiledGraph] = []
    found = []
    for function, wide in ((through(loss, graphs), False), (loss, False), (loss, True)):
        x = (scores.double() if wide else scores.clone()).requires_grad_()
        factors = weight.double() if wide and weight is not None else weight
        result = function(x, target, factors)
        cotangent = torch.linspace(1, 2, result.numel(), dtype=x.dtype).reshape(result.shape)
        (gradient,) = torch.autograd.grad(result, x, cotangent)
        found.append((result.detach(), gradient))
    ours, eager, exact = found
    for mine, theirs, wanted in zip(ours, eager, exact, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        scale = float(wanted.norm())
        assert float((mine - wanted).norm()) <= 2 * float((theirs - wanted).norm()) + 1e-6 * scale
    assert [each for graph in graphs for each in graph.fallbacks] == []
    assert [graph.partition_count for graph in graphs] == [1, 1]


def test_scores_that_are_not_numbers_stay_in_their_rows() -> None:
    scores = torch.randn(4, 6)
    scores[1, 2], scores[2, 0], scores[3, 5] = torch.nan, -torch.inf, torch.inf
    target = torch.tensor([0, 1, 3, 5])
    graphs: list[CompiledGraph] = []
    results = []
    for function in (through(lambda x: F.cross_entropy(x, target, reduction="none"), graphs), None):
        x = scores.clone().requires_grad_()
        loss = F.cross_entropy(x, target, reduction="none") if function is None else function(x)
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), x)))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_scores_without_an_order_in_memory_and_ignored_classes_in_range() -> None:
    scores = torch.randn(9, 40).T[::2]
    target = torch.tensor([i % 9 for i in range(20)])
    graphs: list[CompiledGraph] = []
    compiled_loss = through(lambda x, y: F.cross_entropy(x, y, ignore_index=3, label_smoothing=0.1), graphs)
    x, y = scores.clone().requires_grad_(), scores.detach().requires_grad_()
    mine, theirs = compiled_loss(y, target), F.cross_entropy(x, target, ignore_index=3, label_smoothing=0.1)
    torch.testing.assert_close(mine, theirs)
    for each, wanted in zip(torch.autograd.grad(mine, y), torch.autograd.grad(theirs, x), strict=True):
        torch.testing.assert_close(each, wanted)


def test_all_targets_ignored() -> None:
    graphs: list[CompiledGraph] = []
    x = torch.randn(3, 5, requires_grad=True)
    target = torch.full((3,), -100)
    loss = through(F.cross_entropy, graphs)(x, target)
    assert loss.isnan()
    assert torch.equal(*(torch.autograd.grad(each, x)[0] for each in (loss, F.cross_entropy(x, target))))


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_target_out_of_range_is_refused(wrong: int) -> None:
    graphs: list[CompiledGraph] = []
    with pytest.raises(IndexError):
        through(F.cross_entropy, graphs)(torch.randn(2, 5, requires_grad=True), torch.tensor([1, wrong]))


def test_no_matrix_of_logarithms_is_kept_for_the_gradient() -> None:
    graphs: list[CompiledGraph] = []
    weight = torch.randn(6, 50, requires_grad=True)
    loss = through(lambda x, y: F.cross_entropy(x @ weight, y), graphs)
    loss(torch.randn(20, 6), torch.randint(0, 50, (20,))).backward()
    forward, backward = graphs
    assert forward.partition_count == backward.partition_count == 1
    targets = [str(node.target) for graph in graphs for part in graph.partitions if part for node in part.nodes]
    assert targets.count("aten._log_softmax.default") == 1
    assert targets.count("tessera.log_softmax_gradient.default") == 1
    assert "aten._log_softmax_backward_data.default" not in targets
