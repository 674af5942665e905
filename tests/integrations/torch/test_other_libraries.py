"""Operators that other libraries register, which have rows by their names: here as those libraries define them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tessera.torch  # noqa: F401 - makes torch know the backend


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """What transformers registers for mixtures of experts, its schema and its meaning."""
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return

    def pieces(ends: Tensor) -> list[tuple[int, int]]:
        found = ends.tolist()
        return list(zip([0, *found], found, strict=False))

    def forward(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        made = a.new_zeros(len(a), b.shape[2])
        for group, (first, end) in enumerate(pieces(offs)):
            made[first:end] = a[first:end] @ b[group]
        return made

    def backward(a: Tensor, b: Tensor, offs: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        by_a, by_b = torch.zeros_like(a), torch.zeros_like(b)
        for group, (first, end) in enumerate(pieces(offs)):
            by_a[first:end] = g[first:end] @ b[group].T
            by_b[group] = a[first:end].T @ g[first:end]
        return by_a, by_b

    name = "transformers::grouped_mm_fallback"
    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    torch.library.custom_op(name, forward, mutates_args=(), schema=schema)
    torch.library.register_fake(name, lambda a, b, offs: a.new_empty(len(a), b.shape[2]))
    schema = "(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)"
    torch.library.custom_op(f"{name}_backward", backward, mutates_args=(), schema=schema)
    torch.library.register_fake(f"{name}_backward", lambda a, b, offs, g: (torch.empty_like(a), torch.empty_like(b)))


@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 5, 9], [1, 3, 4]])
def test_mixtures_of_experts_of_transformers_are_native(ends: list[int]) -> None:
    a, b, g = torch.randn(9, 4), torch.randn(3, 4, 5), torch.randn(9, 5)
    offs = torch.tensor(ends, dtype=torch.int32)

    def experts(a: Tensor, b: Tensor, offs: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        made = torch.ops.transformers.grouped_mm_fallback(a * 2, b, offs)
        return (made + 1, *torch.ops.transformers.grouped_mm_fallback_backward(a, b, offs, g))

    compiled = torch.compile(experts, backend="tessera", options={"fallback": "error"}, fullgraph=True)
    torch.testing.assert_close(compiled(a, b, offs, g), experts(a, b, offs, g))
