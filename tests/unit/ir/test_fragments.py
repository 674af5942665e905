"""Spec 002, 6.4, lowered: the snippet's fragments come from buffers, and every backend takes the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.backend.contract import StaticFacts
from tessera.backend.triton import TritonBackend
from tessera.errors import IRError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse
from tessera.ir.tile.fragments import FunctionToKernelPass
from tessera.ir.verification import verify
from tests.unit.backend.llvm.harness import compile_module, run, targets
from tests.unit.backend.triton.promises import aligned

SNIPPET = Path(__file__).parents[2] / "ir" / "spec_002_6_4.mlir"


def kernel(text: str) -> ModuleOp:
    module = parse(text)
    FunctionToKernelPass().apply(module)
    verify(module)
    return module


def fragments() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(16, 16, generator=generator) for _ in range(3))
    return [a.bfloat16(), b.bfloat16(), c, torch.full((16, 16), float("nan"))]


def assert_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> None:
    torch.testing.assert_close(d.double(), c.double() + a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cpu", targets(), ids=lambda cpu: f"{cpu.vector_bits}bit")
def test_the_matrix_operation_runs_on_cpus(cpu: target.Target) -> None:
    operands = fragments()
    run(compile_module(kernel(SNIPPET.read_text()), cpu), operands)
    assert_product(*operands)


def test_the_interpreter_agrees() -> None:
    operands = fragments()
    run_kernel(kernel(SNIPPET.read_text()), operands)
    assert_product(*operands)


def test_the_matrix_operation_is_one_dot_in_triton() -> None:
    text = TritonBackend().emit(kernel(SNIPPET.read_text()), target.gpu("h100"), "source")
    assert isinstance(text, str)
    assert text.count("tl.dot(fragA_1, fragB_1, fragC_1)") == 1


@pytest.mark.parametrize("name", ["sm80", "sm90", "sm100", "gfx942"])
def test_matrix_units_multiply_it(name: str) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    (facts,) = TritonBackend().facts([aligned(kernel(SNIPPET.read_text()))], target.gpu(name))
    assert isinstance(facts, StaticFacts), facts
    assert facts.instructions["v_mfma" if name == "gfx942" else "mma.sync"] > 0
    assert facts.spill_bytes == 0


@pytest.mark.parametrize(
    "text",
    [
        "func.func @f(%x: f32) -> vector<4xf32> {\n %v = arith.constant dense<0.0> : vector<4xf32>\n"
        " func.return %v : vector<4xf32>\n}",
        "func.func private @f(vector<4xf32>) -> vector<4xf32>",
    ],
)
def test_what_is_no_function_of_tiles_is_refused(text: str) -> None:
    with pytest.raises(IRError, match="@f"):
        FunctionToKernelPass().apply(parse(text))
