"""Products on a CPU's matrix unit: whatever legal schedule is drawn, the kernel computes what torch does in float64 on
the interpreter, assembles for such a CPU, and does the same on the unit where this machine has one.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera import op
from tessera.backend.llvm import LLVMBackend
from tessera.dtypes import DType, bf16, int8, int32
from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.matrix.turned import turned_schedule
from tessera.scheduling.families.product.space import ContractionProblem, default_schedule, space
from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.schedule import KnobValue
from tessera.scheduling.lowering.spec import ContractionSpec, Output, Panels
from tessera.scheduling.model.machine import machine
from tessera.target import amx_refusal, detect
from tests.property.checking import evaluated
from tests.unit.backend.llvm.harness import Guarded, compile_module, run
from tests.unit.scheduling import specs
from tests.unit.scheduling.families.product.test_contraction import operand, result
from tests.unit.scheduling.families.product.test_packed import over_panels, packed
from tests.unit.scheduling.problems import AMX, AVX512, contraction_problem
from tests.whole import examples

HAS_UNIT = detect().has_amx_bf16 and detect().has_amx_int8
needs_unit = pytest.mark.skipif(not HAS_UNIT, reason=f"no matrix unit: {amx_refusal() or 'this CPU has none'}")
SEEDS = st.integers(0, 1 << 20)


def posed(spec: ContractionSpec, m: int, n: int, k: int, panels: Panels | None = None) -> ContractionProblem:
    """A product on a CPU with a matrix unit."""
    problem = contraction_problem(spec, m, n, k, 3 if spec.batch else 1, AMX, native_bf16=True)
    if panels is None:
        return problem
    return replace(problem, b_panels=panels.width, quads=panels.group == 4, b_contiguous="")


def drawn(spec: ContractionSpec, problem: ContractionProblem, seed: int, **knobs: list[KnobValue]) -> ModuleOp:
    """The kernel of a random legal schedule on the unit, of those with the given choices of `knobs`."""
    step = problem.unit_depth
    wanted: dict[str, list[KnobValue]] = {
        "unit": ["matrix"],
        "tile": [(48, 32, step), (64, 64, 1024), (32, 128, 2048)],
        "unroll": [1, 2],
        **knobs,
    }
    schedule = space(problem).restricted(wanted).draw(random.Random(seed), 10_000)
    spec = replace(spec, one_block=schedule.integers("tile")[2] >= problem.k)
    module = lower_contraction(spec, schedule, native_bf16=True, native_int8=True)
    verify(module)
    return module


def checked(module: ModuleOp, arguments: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
    """What the interpreter writes; the kernel assembles, and where it can run it writes the same and no more."""
    *inputs, out = arguments
    run_kernel(module, [*inputs, out], partition=random.Random(seed))
    if platform.machine() in ("x86_64", "AMD64"):
        assert "tdp" in LLVMBackend().emit(module, AMX, "asm")
    if HAS_UNIT:
        guarded = [*[Guarded(each, each.stride()) for each in inputs], Guarded(torch.zeros_like(out))]
        run(compile_module(module), [each.tensor for each in guarded], workers=3)
        for each in guarded:
            each.check(output=each is guarded[-1])
        tolerance = 0.0 if out.dtype == torch.int32 else 2 * torch.finfo(out.dtype).eps
        torch.testing.assert_close(guarded[-1].tensor, out, rtol=tolerance, atol=16 * tolerance)
    return out


@settings(max_examples=examples(4, 8))
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.one_of(st.integers(1, 100), st.integers(500, 1100)),
    st.sampled_from(("mk", "km")),
    st.sampled_from(("kn", "nk")),
    st.booleans(),
    SEEDS,
)
def test_any_schedule_multiplies(m: int, n: int, k: int, a_axes: str, b_axes: str, batched: bool, seed: int) -> None:
    spec = specs.matmul(bf16, a_axes=a_axes, b_axes=b_axes, batch=("b0",) if batched else (), bias=True)
    extents = {"m": m, "n": n, "k": k}
    a, b = operand(a_axes, extents, bf16, 1, batched), operand(b_axes, extents, bf16, 2, batched)
    bias, out = operand("n", extents, bf16, 3), result(m, n, bf16, batched)
    checked(drawn(spec, posed(spec, m, n, k), seed), [a, b, bias, out], seed)
    left, right = a.double() if a_axes == "mk" else a.double().mT, b.double() if b_axes == "kn" else b.double().mT
    assert_close(out, left @ right + bias.double(), k)


@settings(max_examples=examples(3, 6))
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.one_of(st.integers(1, 100), st.integers(500, 1100)),
    st.sampled_from(("mk", "km")),
    st.booleans(),
    SEEDS,
)
def test_any_schedule_leaves_weights_in_place(m: int, n: int, k: int, a_axes: str, batched: bool, seed: int) -> None:
    batch = ("b0",) if batched else ()
    spec = specs.matmul(bf16, a_axes=a_axes, b_axes="nk", batch=batch, bias=True)
    extents = {"m": m, "n": n, "k": k}
    a, b = operand(a_axes, extents, bf16, 1, batched), operand("nk", extents, bf16, 2, batched)
    bias, out = operand("n", extents, bf16, 3), result(m, n, bf16, batched)
    module = drawn(spec, posed(spec, m, n, k), seed, pack_b=[False], pack_a=[True])
    checked(module, [a, b, bias, out], seed)
    left = a.double() if a_axes == "mk" else a.double().mT
    assert_close(out, left @ b.double().mT + bias.double(), k)


@settings(max_examples=examples(3, 6))
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 1100), st.sampled_from((16, 32)), SEEDS)
def test_any_schedule_reads_panels(m: int, n: int, k: int, width: int, seed: int) -> None:
    panels = Panels(width, 2, 16)
    spec = over_panels(specs.matmul(bf16, activation="relu"), panels)
    extents = {"m": m, "n": n, "k": k}
    a, b, out = operand("mk", extents, bf16, 1), operand("kn", extents, bf16, 2), result(m, n, bf16)
    checked(drawn(spec, posed(spec, m, n, k, panels), seed), [a, packed(b, panels), out], seed)
    assert_close(out, (a.double() @ b.double()).relu(), k)


@settings(max_examples=examples(3, 6))
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 700), SEEDS)
def test_products_of_bytes_are_exact(m: int, n: int, k: int, seed: int) -> None:
    panels = Panels(32, 4, 16)
    spec = over_panels(specs.matmul(int8), panels)
    *operands, to = spec.arguments
    arguments = (*operands, replace(to, dtype=int32))
    spec = replace(spec, arguments=arguments, outputs=(Output(len(operands), spec.accumulator),))
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8) for shape in ((m, k), (k, n)))
    out = torch.full((m, n), 99, dtype=torch.int32)
    checked(drawn(spec, posed(spec, m, n, k, panels), seed), [a, packed(b, panels), out], seed)
    assert torch.equal(out, a.int() @ b.int())


@pytest.mark.parametrize(("m", "n", "k"), [(9, 40, 600), (20, 33, 515), (50, 100, 513), (100, 70, 1030)])
@pytest.mark.parametrize("b_axes", ["kn", "nk"])
def test_defaults_multiply(m: int, n: int, k: int, b_axes: str) -> None:
    spec, extents = specs.matmul(bf16, b_axes=b_axes, bias=True), {"m": m, "n": n, "k": k}
    schedule = default_schedule(posed(spec, m, n, k))
    spec = replace(spec, one_block=schedule.integers("tile")[2] >= k)
    a, b = operand("mk", extents, bf16, 1), operand(b_axes, extents, bf16, 2)
    bias, out = operand("n", extents, bf16, 3), result(m, n, bf16, False)
    checked(lower_contraction(spec, schedule, native_bf16=True), [a, b, bias, out], 0)
    assert_close(out, a.double() @ (b.double() if b_axes == "kn" else b.double().mT) + bias.double(), k)


@pytest.mark.parametrize("m", [2, 16, 17, 64, 128])
def test_few_rows_pack_pieces_of_b_that_stay_in_the_caches(m: int) -> None:
    schedule = default_schedule(posed(specs.matmul(bf16), m, 11008, 4096))
    mc, nc, kc = schedule.integers("tile")
    assert schedule["unit"] == "matrix"
    assert schedule["sums"] == "scratch"
    assert m <= mc < 2 * max(m, 16)
    assert 2 * nc * kc <= AMX.memory[1].size_bytes // 2
    assert nc >= 1024  # long pieces: few streams, which prefetchers follow


@pytest.mark.parametrize("m", [2, 8, 16, 17, 64, 128])
def test_few_rows_leave_weights_where_they_lie(m: int) -> None:
    schedule = default_schedule(posed(specs.matmul(bf16, b_axes="nk"), m, 11008, 4096))
    assert (schedule["unit"], schedule["pack_a"], schedule["pack_b"]) == ("matrix", True, False)
    assert default_schedule(posed(specs.matmul(bf16, b_axes="nk"), 512, 11008, 4096))["pack_b"] is True


def test_the_model_prefers_weights_in_place_where_rows_are_few() -> None:
    problem = posed(specs.matmul(bf16, b_axes="nk"), 16, 4096, 4096)
    in_place = default_schedule(problem)
    packed = in_place.replace(pack_b=True, tile=(16, 256, 4096))
    model = RooflineModel(None, AMX)
    assert space(problem).violations(packed) == ()
    assert model.estimate(problem, in_place).seconds < model.estimate(problem, packed).seconds


def test_one_schedule_and_many_are_turned_alike() -> None:
    problem = posed(specs.matmul(bf16, b_axes="nk"), 40, 70, 600)
    generator = random.Random(0)
    choices = space(problem).restricted({"unit": ["matrix"], "pack_b": [False], "pack_a": [True]})
    schedules = [choices.draw(generator, 10_000) for _ in range(8)]
    assert list(turned_schedule(Columns.of(schedules))) == [turned_schedule(each) for each in schedules]
    assert all(turned_schedule(each)["tile"] == (n, m, k) for each in schedules for m, n, k in [each.integers("tile")])
    assert list(choices.legal(Columns.of(schedules))) == schedules


def assert_close(found: torch.Tensor, exact: torch.Tensor, k: int) -> None:
    """Within half a unit of bf16 and what sums in fp32 lose."""
    bound = torch.finfo(torch.bfloat16).eps * exact.abs() + 16 * torch.finfo(torch.float32).eps * k
    assert bool(((found.double() - exact).abs() <= bound).all())


@settings(max_examples=200)
@given(
    st.sampled_from((1, 2, 8, 16, 17, 64, 129, 1000, 30_000)),
    st.sampled_from((1, 8, 17, 64, 65, 1000, 30_000)),
    st.sampled_from((0, 1, 8, 64, 257, 1000, 16_384, 16_385, 1_000_000)),
    st.sampled_from((bf16, int8)),
    st.sampled_from((0, 16, 32)),
    st.integers(1, 3),
)
def test_defaults_are_legal(m: int, n: int, k: int, dtype: DType, width: int, workers: int) -> None:
    panels = Panels(width, 2 if dtype is bf16 else 4, 16) if width else None
    spec = specs.matmul(dtype)
    problem = replace(posed(spec, m, n, k, panels), workers=workers)
    assert space(problem).violations(default_schedule(problem)) == ()


def test_other_cpus_have_no_such_knob() -> None:
    spec = specs.matmul(bf16)
    assert "unit" not in default_schedule(contraction_problem(spec, 512, 512, 512, target=AVX512, native_bf16=True))
    assert default_schedule(posed(spec, 512, 512, 512))["unit"] == "matrix"


def test_other_cpus_refuse_the_code() -> None:
    spec = specs.matmul(bf16)
    module = drawn(spec, posed(spec, 64, 64, 64), 0)
    with pytest.raises(CompileError, match="has no matrix unit"):
        LLVMBackend().emit(module, AVX512, "source")


def test_the_model_tells_the_unit_from_vectors() -> None:
    rates = machine(None, AMX, 1)
    assert rates.unit_flop_per_s["bf16"] > 4 * rates.flop_per_s["bf16"]
    assert rates.unit_flop_per_s["int8"] == 2 * rates.unit_flop_per_s["bf16"]
    assert not machine(None, AVX512, 1).unit_flop_per_s


@needs_unit
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("along_k", [False, True])
def test_nan_and_infinities_come_through(constant: bool, along_k: bool) -> None:
    x, w = torch.ones(40, 70).bfloat16(), torch.ones(70, 40).bfloat16()
    w = w.mT.contiguous().mT if along_k else w
    x[3, 69], w[5, 2], w[5, 3], w[6, 3] = float("nan"), float("inf"), float("inf"), float("-inf")
    product = op.matmul(x, op.constant(w) if constant else w)
    assert 'unit = "matrix"' in product.inspect("schedule")
    torch.testing.assert_close(evaluated(product), x @ w, equal_nan=True)


@needs_unit
@pytest.mark.parametrize(("m", "n", "k"), [(2, 1, 33), (17, 70, 515), (128, 33, 64), (9, 0, 64), (0, 9, 64)])
def test_weights_in_place_meet_strided_rows_and_epilogues_of_both_axes(m: int, n: int, k: int) -> None:
    x, w = torch.randn(k, 2 * m).bfloat16().mT[::2], torch.randn(n, k + 5).bfloat16()[:, 3:-2]
    residual, bias = torch.randn(m, n).bfloat16(), torch.randn(n).bfloat16()
    product = op.relu(op.matmul(x, w.T) + bias) + residual
    if (m, n) == (17, 70):  # few columns are rows of the transposed product
        assert "pack_b = false" in product.inspect("schedule")
    exact = (x.double() @ w.double().T + bias.double()).relu() + residual.double()
    found = evaluated(product).double()
    assert found.shape == exact.shape
    assert bool(((found - exact).abs() <= 2**-6 * (exact.abs() + residual.abs() + 1)).all())


@needs_unit
def test_denormals_count_as_zero_like_those_of_dot_products() -> None:
    tiny = torch.full((32, 64), 1e-39).bfloat16()
    assert not evaluated(op.matmul(tiny, torch.ones(64, 32).bfloat16())).any()
