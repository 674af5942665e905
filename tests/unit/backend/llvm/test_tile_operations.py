"""Every operation of Tile IR on the LLVM backend: the result is the interpreter's, and no memory around it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse
from tessera.target import Target
from tests.unit.backend.llvm.harness import Guarded, compile_module, run, targets

KERNELS = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "ir" / "kernels").glob("*.mlir")}
TARGETS = pytest.mark.parametrize("target", targets(), ids=lambda target: f"{target.vector_bits}bit")


def compare(text: str, arguments: list[torch.Tensor | int | float], target: Target, tolerance: float = 0.0) -> None:
    """Runs a kernel on the interpreter and on the backend, which must write the same outputs and nothing else."""
    module = parse(text)
    compiled = compile_module(module, target)
    guarded = [Guarded(a, a.stride()) if isinstance(a, torch.Tensor) else a for a in arguments]
    run(compiled, [g.tensor if isinstance(g, Guarded) else g for g in guarded], workers=3)
    for number, operand in enumerate(guarded):
        if isinstance(operand, Guarded):
            operand.check(number in compiled.outputs)
    expected = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    run_kernel(module, expected)
    for number in compiled.outputs:
        operand, wanted = guarded[number], expected[number]
        assert isinstance(operand, Guarded)
        assert isinstance(wanted, torch.Tensor)
        torch.testing.assert_close(operand.tensor, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"))


@TARGETS
@pytest.mark.parametrize(("m", "n", "k"), [(13, 37, 19), (1, 1, 1), (24, 64, 8), (5, 40, 0)])
def test_staged_matmul(target: Target, m: int, n: int, k: int) -> None:
    compare(KERNELS["matmul_staged"], [torch.randn(m, k), torch.randn(k, n), poisoned(m, n)], target, 1e-5)


@TARGETS
def test_pairs_of_bf16(target: Target) -> None:
    a, b = torch.randn(9, 22).bfloat16(), torch.randn(22, 35).bfloat16()
    compare(KERNELS["matmul_vnni"], [a, b, poisoned(9, 35)], target, 1e-4)


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(3, 100), (1, 1), (7, 64), (2, 1000)])
def test_softmax(target: Target, rows: int, columns: int) -> None:
    compare(KERNELS["softmax"], [torch.randn(rows, columns) * 5, poisoned(rows, columns)], target, 1e-6)


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(5, 9), (4, 8), (1, 17), (12, 3)])
def test_transposed_load(target: Target, rows: int, columns: int) -> None:
    x, bias = torch.randn(columns, rows), torch.randn(columns).expand(1, columns)
    compare(KERNELS["add_transposed"], [x, bias, 1.5, poisoned(rows, columns)], target, 1e-6)


@TARGETS
def test_halves_and_tiles_side_by_side(target: Target) -> None:
    compare(KERNELS["halves"], [torch.randn(4, 16), torch.randn(4, 16), poisoned(4, 16)], target)


def test_what_begins_inside_a_register_has_no_code() -> None:
    narrow = parse(KERNELS["halves"].replace("x16x", "x3x").replace("x32x", "x6x"))
    with pytest.raises(CompileError, match=r"tessera\.tile\.join of tiles of 3 columns"):
        compile_module(narrow)
