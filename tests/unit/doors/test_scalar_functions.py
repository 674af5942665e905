"""A scalar function is one row: from a file, outside of every table, `op` has it, and all that others have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tessera import extend, grad, op, target
from tessera.backend.triton import TritonBackend
from tessera.compiler.device.gpu import gpu_sites
from tessera.ops import OPERATORS, record
from tessera.ops.counting import vector_instructions
from tests.fuzz.drawing import draw
from tests.fuzz.ways import check
from tests.unit.doors.toys.softsign import SOFTSIGN


@pytest.fixture(autouse=True)
def softsign() -> Iterator[None]:
    """Registers the toy while a test runs."""
    extend.register(SOFTSIGN)
    yield
    del record._registry["softsign"]


def test_it_is_found_by_its_name() -> None:
    assert op.softsign.__doc__ == "x / (1 + |x|)."
    assert op.softsign(torch.ones(4, 3)).shape == (4, 3)
    with pytest.raises(AttributeError, match="no attribute 'philox'"):
        op.philox  # noqa: B018  (an operator without a summary is a part of others)


def test_it_runs_in_one_kernel_with_others() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 10)
    result = op.softsign(op.matmul(a, b))
    assert result.inspect("schedule").count("tessera.schedule.kernel") == 1
    torch.testing.assert_close(result.torch(), torch.nn.functional.softsign(a @ b), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(result.torch().double(), extend.reference(result), atol=1e-5, rtol=1e-4)


def test_its_gradient_is_its_references() -> None:
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.nn.functional.softsign(x).sin().sum(), x)
    operand = op.tensor(x.detach())
    (found,) = grad.vjp(op.sum(op.sin(op.softsign(operand))), [operand])
    torch.testing.assert_close(found.torch(), expected)


def test_its_cost_is_its_bodys() -> None:
    assert OPERATORS["softsign"].arity == (1, 1)
    assert vector_instructions("softsign", 1) == vector_instructions("div", 2) + 2


def test_triton_has_it() -> None:
    (site,) = gpu_sites(op.softsign, [(64, 128)], "fp32", target.gpu("sm90"))
    source = TritonBackend().emit(site.lowered.module, target.gpu("sm90"), "source")
    assert isinstance(source, str)
    assert "tl.abs" in source
    assert " / " in source or "div" in source


def test_the_fuzzer_draws_it() -> None:
    programs = (draw(seed) for seed in range(600))
    program = next(program for program in programs if "softsign" in program.operators)
    assert check(program, ways=("at once", "unfused")).judged
