"""Products of bytes: exact sums, whatever the CPU has for them; quantization and the linear layer made of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera import op, target
from tessera.backend.contract import LoadedKernel
from tessera.backend.llvm import LLVMBackend
from tessera.dtypes import int8, int32
from tessera.errors import CompileError, DTypeError, ShapeMismatchError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.runtime.plans.calling import call
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.space import space
from tessera.scheduling.lowering.spec import Output, Panels
from tests.property.checking import evaluated, evaluated_together
from tests.unit.scheduling import specs
from tests.unit.scheduling.families.product.test_contraction import SMALL
from tests.unit.scheduling.families.product.test_packed import over_panels, packed
from tests.unit.scheduling.problems import AVX512, contraction_problem
from tests.whole import examples

EXTENTS = st.integers(1, 40)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Bytes, the smallest and the largest among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
    return torch.where(torch.rand(shape, generator=generator) < 0.2, torch.tensor(-128, dtype=torch.int8), values)


@settings(max_examples=examples(15, 30), deadline=None)
@given(st.integers(0, 40), st.integers(0, 300), st.integers(0, 70), st.booleans(), st.booleans(), st.booleans())
def test_sums_are_exact(m: int, k: int, n: int, turned: bool, batched: bool, marked: bool) -> None:
    batch = (2,) if batched else ()
    x, w = drawn(*batch, m, k, seed=m), drawn(*batch, *((n, k) if turned else (k, n)), seed=k)
    weights = op.constant(w) if marked else op.tensor(w)
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    result = evaluated(op.matmul(x, op.transpose(weights, order) if turned else weights))
    assert result.dtype == torch.int32
    assert torch.equal(result, x.int() @ (w.mT if turned else w).int())


def test_long_sums_wrap_around_as_int32_does() -> None:
    x, w = torch.full((2, 1 << 18), -128, dtype=torch.int8), torch.full((1 << 18, 3), -128, dtype=torch.int8)
    exact = x.long() @ w.long()
    assert int(exact.max()) > 1 << 31
    assert torch.equal(op.matmul(x, op.constant(w)).torch(), exact.int())
    deep = 1 << 16
    assert torch.equal(op.matmul(x[:, :deep], op.constant(w[:deep])).torch(), exact.int() // 4 + (1 << 30))


def quads(m: int, n: int, k: int, seed: int) -> ModuleOp:
    """A kernel for bytes that are multiplied four at a time, under a random legal schedule."""
    spec = over_panels(specs.matmul(int8), Panels(32, 4))
    *operands, result = spec.arguments
    spec = replace(
        spec, arguments=(*operands, replace(result, dtype=int32)), outputs=(Output(len(operands), spec.accumulator),)
    )
    problem = replace(contraction_problem(spec, m, n, k, 1, AVX512), b_panels=32, b_contiguous="", quads=True)
    schedule = space(problem).restricted(SMALL).draw(random.Random(seed), 10_000)
    assert schedule["pack_a"]
    module = lower_contraction(replace(spec, one_block=schedule.integers("tile")[2] >= k), schedule, False, True)
    verify(module)
    return module


def compiled(module: ModuleOp) -> LoadedKernel:
    """The kernel for this machine, whatever it multiplies bytes with."""
    backend = LLVMBackend()
    return backend.load(backend.compile(module, target.detect(), keep=False))


@settings(max_examples=examples(5, 10), deadline=None)
@given(EXTENTS, EXTENTS, EXTENTS, st.integers(0, 1 << 20))
def test_tile_ir_means_the_same_to_its_interpreter_and_to_cpus(m: int, n: int, k: int, seed: int) -> None:
    module = quads(m, n, k, seed)
    a, b = drawn(m, k, seed=1), drawn(k, n, seed=2)
    arguments = [a, packed(b, Panels(32, 4))]
    interpreted, computed = (torch.full((m, n), 99, dtype=torch.int32) for _ in range(2))
    run_kernel(module, [*arguments, interpreted], partition=random.Random(seed))
    assert torch.equal(interpreted, a.int() @ b.int())
    call(compiled(module), [*arguments, computed], workers=2)
    assert torch.equal(computed, interpreted)


@settings(max_examples=examples(13, 25), deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.float64)),
    st.sampled_from((None, 0, -1)),
    st.integers(-6, 6),
)
def test_quantized_numbers_are_half_a_scale_away(
    shape: list[int], dtype: torch.dtype, axis: int | None, power: int
) -> None:
    x = (torch.randn(shape) * 2.0**power).to(dtype)
    numbers, scale = evaluated_together(list(op.quantize(x, axis)))
    largest = x.float().abs().amax() if axis is None else x.float().abs().amax(axis)
    torch.testing.assert_close(scale, torch.where(largest == 0, 1.0, largest / 127), rtol=1e-6, atol=0)
    wide = scale if axis is None else scale.unsqueeze(axis)
    assert numbers.dtype == torch.int8
    assert int(numbers.min()) >= -127
    assert bool(((x.double() - numbers.double() * wide.double()).abs() <= 0.5001 * wide.double()).all())


def test_zeros_and_what_is_no_number() -> None:
    numbers, scale = op.quantize(torch.tensor([[0.0, 0.0], [1.0, -2.0], [float("nan"), 1.0], [float("inf"), 1.0]]), 1)
    assert numbers.torch()[:2].tolist() == [[0, 0], [64, -127]]
    assert scale.torch()[0] == 1.0
    assert not scale.torch()[2:].isfinite().any()


@settings(max_examples=examples(10, 20), deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 200),
    st.integers(1, 70),
    st.sampled_from((torch.float32, torch.bfloat16)),
    st.booleans(),
)
def test_linear_is_the_product_of_the_quantized(m: int, k: int, n: int, dtype: torch.dtype, biased: bool) -> None:
    x, w = torch.randn(2, m, k).to(dtype), torch.randn(n, k)
    weight, scales = (t.torch() for t in op.quantize(w, axis=-1))
    bias = torch.randn(n) if biased else None
    result = op.int8_linear(x, op.constant(weight), scales, bias).torch()
    numbers, scale = (t.torch() for t in op.quantize(x, axis=-1))
    exact = numbers.double() @ weight.double().T * scale.double()[..., None] * scales.double()
    exact = exact if bias is None else exact + bias.double()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, rtol=2 * eps, atol=4 * eps * float(exact.abs().max()))
    assert result.dtype == dtype


def test_the_scales_are_applied_in_the_kernel_of_the_product() -> None:
    weight = op.constant(torch.ones(64, 48, dtype=torch.int8))
    text = op.int8_linear(torch.randn(4, 48), weight, torch.ones(64), torch.zeros(64)).inspect("schedule")
    assert text.count("tessera.schedule.kernel") == 2
    assert f"panels of {2 * target.detect().vector_bits // 32} columns" in text


def test_wrong_operands_are_refused() -> None:
    weight = torch.ones(8, 4, dtype=torch.int8)
    with pytest.raises(DTypeError, match="floats are quantized"):
        op.quantize(weight)
    with pytest.raises(DTypeError, match="weights of fp32"):
        op.int8_linear(torch.ones(2, 4), torch.ones(8, 4), 1.0)
    with pytest.raises(ShapeMismatchError):
        op.int8_linear(torch.ones(2, 5), weight, 1.0)
    with pytest.raises(ShapeMismatchError, match="scales of shape"):
        op.int8_linear(torch.ones(2, 4), weight, torch.ones(4))


def test_gpus_have_no_products_of_integers_yet() -> None:
    x = op.tensor(torch.ones(20, 40, dtype=torch.int8), device="interpreter")
    with pytest.raises(CompileError, match="products of integers"):
        op.matmul(x, op.tensor(torch.ones(40, 24, dtype=torch.int8), device="interpreter")).eval()
    assert (x + 1).torch().eq(2).all()
