"""Attention on a CPU's matrix unit: the kernel computes what the reference does in float64 on the interpreter,
assembles for such a CPU, and does the same on the unit where this machine has one.
"""

from __future__ import annotations

import math
import platform
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera import op
from tessera.backend.llvm import LLVMBackend
from tessera.dtypes import DType, bf16, bool_, fp32
from tessera.errors import CompileError
from tessera.ir.verification import verify
from tessera.scheduling.families.attention.lowering import lower_attention
from tessera.scheduling.families.attention.space import default_schedule, space
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionSpec
from tessera.scheduling.model.machine import machine
from tests.property.checking import evaluated
from tests.unit.backend.llvm.harness import Guarded, compile_module
from tests.unit.backend.llvm.harness import run as run_natively
from tests.unit.scheduling import specs
from tests.unit.scheduling.families.attention.test_attention import operands, problem, reference, run
from tests.unit.scheduling.families.product.test_matrix_unit import HAS_UNIT, needs_unit
from tests.unit.scheduling.problems import AMX, AVX512
from tests.whole import examples

BOUND = 2e-2
"""Weights are rounded to bf16, and so are results: 2^-9 of each, of values of a few."""


def lowered(spec: AttentionSpec, columns: int = 32, parallel: str = "queries") -> ModuleOp:
    """The kernel with blocks of 64 queries and 64 keys."""
    schedule = Schedule(
        tile=(64, 64),
        micro=(32, columns),
        unit="matrix",
        lanes="queries",
        head=(64, 64),
        parallel=parallel,
        fusion=True,
    )
    module = lower_attention(spec, schedule, 64, native_bf16=True)
    verify(module)
    return module


def checked(module: ModuleOp, tensors: list[torch.Tensor], expected: torch.Tensor) -> None:
    """Both oracles are near the reference; the kernel touches no more than its operands and its result."""
    torch.testing.assert_close(run(module, tensors, 0.3, 1).double(), expected, atol=BOUND, rtol=BOUND)
    if platform.machine() in ("x86_64", "AMD64"):
        assert "tdpbf16ps" in LLVMBackend().emit(module, AMX, "asm")
    if not HAS_UNIT:
        return
    inputs = [Guarded(each, each.stride()) for each in tensors]
    out = Guarded(torch.full(expected.shape, math.nan, dtype=torch.bfloat16))
    q, k, v, *mask = [each.tensor for each in inputs]
    run_natively(compile_module(module), [q, k, v, 0.3, *mask, out.tensor], workers=3)
    for each in inputs:
        each.check(output=False)
    out.check(output=True)
    torch.testing.assert_close(out.tensor.double(), expected, atol=BOUND, rtol=BOUND)


@settings(max_examples=examples(3, 6))
@given(
    st.integers(1, 70),
    st.integers(1, 140),
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from((16, 32)),
    st.booleans(),
    st.sampled_from((None, bool_, bf16, fp32)),
)
def test_any_sizes_give_the_weighted_mean(
    queries: int, keys: int, head: int, value_head: int, columns: int, causal: bool, mask: DType | None
) -> None:
    module = lowered(specs.attention(bf16, causal=causal, mask=mask), columns)
    tensors = operands(queries, keys, head, value_head, bf16, mask)
    checked(module, tensors, reference(tensors, 0.3, causal))


def test_heads_that_share_keys() -> None:
    q, k, v = operands(35, 41, 40, 33, bf16, None)
    grouped = torch.stack([q, 2 * q, q - 1], dim=1)
    module = lowered(specs.attention(bf16, batch=("b0", "b1"), shared=True), parallel="heads")
    checked(module, [grouped, k, v], reference([grouped, k[:, None], v[:, None]], 0.3, False))


def test_defaults_are_legal_and_estimated() -> None:
    family, rates = kernel_family(problem()), machine(None, AMX, 1)
    for queries, keys, head, unit in (
        (512, 512, 64, "matrix"),
        (9, 5000, 128, "matrix"),
        (700, 3, 300, "matrix"),
        (512, 512, 5, "matrix"),
        (8, 512, 64, "vector"),
        (1, 512, 16, "vector"),
        (1, 5000, 128, "vector"),
    ):
        sizes = {"queries": queries, "keys": keys, "head": head, "value_head": head}
        posed = problem(target=AMX, operand=bf16, native_bf16=True, **sizes)
        chosen = default_schedule(posed)
        assert chosen["unit"] == unit
        assert all(space(posed).violations(start) == () for start in space(posed).starts)
        assert space(posed).violations(chosen) == ()
        if unit == "matrix" and keys > 3:
            by_vectors = next(start for start in space(posed).starts if start["unit"] == "vector")
            assert family.work(posed, chosen, rates).compute_s < family.work(posed, by_vectors, rates).compute_s


def test_what_the_unit_cannot_take_breaks_its_rule() -> None:
    posed = space(problem(target=AMX, operand=bf16, native_bf16=True))
    start = posed.default
    assert posed.violations(start.replace(micro=(16, 32))) == ("matrix-unit",)
    assert posed.violations(start.replace(micro=(32, 32), unit="vector")) == ("vector-registers",)
    small = space(problem(target=AMX, operand=bf16, native_bf16=True, head=16))
    assert small.violations(start.replace(head=(16, 64))) == ("matrix-unit",)
    assert small.default["head"] == (32, 64)
    assert space(replace(small.problem, queries=1)).default["head"] == (16, 64)


def test_other_cpus_and_dtypes_have_no_such_knob() -> None:
    paired = problem(target=AVX512, operand=bf16, native_bf16=True)
    for posed in (paired, replace(paired, target=AMX, operand=fp32)):
        assert "unit" not in default_schedule(posed)
        assert "unit" not in {knob.name for knob in space(posed).knobs}


def test_other_cpus_refuse_the_code() -> None:
    with pytest.raises(CompileError, match="has no matrix unit"):
        LLVMBackend().emit(lowered(specs.attention(bf16)), AVX512, "source")


@needs_unit
def test_nan_infinities_and_hidden_rows() -> None:
    q, k, v = (torch.randn(1, 2, 70, 64, generator=torch.Generator().manual_seed(at)).bfloat16() for at in range(3))
    q[0, 0, 3, 5], v[0, 1, 69, 7], v[0, 1, 40, 8] = math.nan, math.inf, math.nan
    result = op.flash_attention(q, k, v)
    assert 'unit = "matrix"' in result.inspect("schedule")
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    found = evaluated(result).float()
    assert found[0, 0, 3].isnan().all()
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    torch.testing.assert_close(found[finite], expected[finite], atol=BOUND, rtol=BOUND)
    mask = torch.rand(70, 70, generator=torch.Generator().manual_seed(9)) > 0.3
    mask[11] = False
    hidden = evaluated(op.flash_attention(k, k, q.nan_to_num(), mask=mask))
    assert not hidden[:, :, 11].any()
    assert hidden.isfinite().all()


@needs_unit
def test_workers_agree_bit_for_bit() -> None:
    module, tensors = lowered(specs.attention(bf16, causal=True)), operands(150, 170, 64, 64, bf16, None)
    kernel, results = compile_module(module), []
    for workers in random.Random(0).sample((1, 2, 3, 5), 4):
        out = torch.full((2, 150, 64), math.nan, dtype=torch.bfloat16)
        run_natively(kernel, [*tensors, 0.3, out], workers=workers)
        results.append(out)
    assert all(torch.equal(results[0], each) for each in results[1:])
