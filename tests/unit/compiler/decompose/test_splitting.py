"""`fusion` is a knob that means something: a fused kernel can run as its parts, with the same result."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tessera import op
from tessera.compiler import pipeline
from tessera.compiler.bind.arrays import Call
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.handle import Tensor
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.sources import ChosenSchedule


@pytest.fixture
def unfused() -> Iterator[None]:
    """Every kernel's default schedule, but with `fusion=False`."""
    compiler = compilers.kernel_compiler()
    before = compiler.tuned

    def tuned(compiler: DeviceCompiler, call: Call, problem: Problem) -> ChosenSchedule:
        schedule = compiler.default_schedule(compiler.subject(call), problem).replace(fusion=False)
        return ChosenSchedule(schedule, "given")

    compiler.tuned = tuned
    pipeline.forget_plans()
    yield
    compiler.tuned = before
    pipeline.forget_plans()


def launches(tensor: Tensor) -> list[str]:
    structure = tensor.structure
    pipeline.plan(structure)
    return [kernel.subject.item.name.rsplit("_", 1)[0] for kernel in pipeline.launched(structure)]


def test_fused_by_default() -> None:
    a, b, bias = torch.randn(5, 7), torch.randn(7, 9), torch.randn(9)
    assert launches(op.gelu(op.matmul(a, b) + bias)) == ["matmul_add_gelu"]


@pytest.mark.usefixtures("unfused")
def test_an_unfused_product_runs_as_its_operations() -> None:
    a, b, bias = torch.randn(37, 19), torch.randn(19, 70), torch.randn(70)
    result = op.gelu(op.matmul(op.tensor(a) * 2.5, b) + bias)
    assert launches(result) == ["mul", "matmul", "add", "gelu"]
    expected = torch.nn.functional.gelu((a * 2.5).double() @ b.double() + bias.double())
    torch.testing.assert_close(result.torch().double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("unfused")
def test_an_unfused_row_kernel_keeps_its_reductions() -> None:
    x = torch.randn(6, 33)
    shifted = op.tensor(x) - op.max(x, -1, keepdims=True)
    weights = op.exp(shifted)
    result = weights / op.sum(weights, -1, keepdims=True)
    assert len(launches(result)) == 5
    torch.testing.assert_close(result.torch(), torch.softmax(x, -1), rtol=1e-5, atol=1e-6)
