"""Serving: what is compiled before it is needed, and what torch computes while it is compiled."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tessera.torch
from tessera.errors import ArgumentError, CompileError
from tessera.integrations.torch.partitions import background, binding
from tessera.integrations.torch.partitions.partition import BackendWarning
from tessera.lazy import evaluation


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    background.wait()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every partition that Tessera runs."""
    runs: list[int] = []
    inner = binding.BoundPartition.__call__

    def call(self: binding.BoundPartition, *given: Any) -> Any:
        runs.append(1)
        return inner(self, *given)

    monkeypatch.setattr(binding.BoundPartition, "__call__", call)
    return runs


def scaled(x: Tensor) -> Tensor:
    return torch.softmax(x * 3, -1)


def test_torch_computes_until_a_partition_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, may_compile = counted(monkeypatch), threading.Event()
    prepare = binding.BoundPartition.prepare
    monkeypatch.setattr(binding.BoundPartition, "prepare", lambda self: (may_compile.wait(), prepare(self))[1])
    compiled = torch.compile(scaled, backend="tessera", options={"cold": "eager"}, dynamic=True)
    x = torch.randn(5, 11)
    assert torch.equal(compiled(x), scaled(x))
    assert not runs
    may_compile.set()
    background.wait()
    torch.testing.assert_close(compiled(x), scaled(x))
    assert len(runs) == 1


def test_writes_to_arguments_are_made_meanwhile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x.mul_(2).add_(1), backend="tessera", options={"cold": "eager"})
    x = torch.ones(7)
    compiled(x)
    background.wait()
    compiled(x)
    assert torch.equal(x, torch.full((7,), 7.0))


def test_what_does_not_compile_in_the_background_is_told_in_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: binding.BoundPartition) -> None:
        raise CompileError("broken on purpose")

    monkeypatch.setattr(binding.BoundPartition, "prepare", broken)
    compiled = torch.compile(scaled, backend="tessera", options={"cold": "eager"})
    x = torch.randn(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        compiled(x)
    background.wait()
    with pytest.warns(BackendWarning, match="broken on purpose"):
        assert torch.equal(compiled(x), scaled(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        compiled(x)


def test_calls_after_a_warm_up_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(scaled, backend="tessera", options={"cold": "eager"}, dynamic=True)
    tessera.torch.warmup(compiled, torch.randn(4, 11), shapes=[[(9, 11)], [(6, 13)]])
    monkeypatch.setattr(evaluation, "evaluate", lambda nodes: pytest.fail("compiled"))
    monkeypatch.setattr(background, "start", lambda job: pytest.fail("compiled"))
    for shape in ((4, 11), (9, 11), (6, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), scaled(x))


def test_shapes_that_do_not_fit_the_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"warmup of shapes \[\(3,\)\], where the call has tensors of 2 dimensions"):
        tessera.torch.warmup(scaled, torch.randn(4, 11), shapes=[[(3,)]])
