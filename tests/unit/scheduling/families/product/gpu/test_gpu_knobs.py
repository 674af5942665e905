"""Knobs of products on GPUs as Tile IR: the interpreter computes the same whatever they are, and promises are kept."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.utils.exceptions import VerifyException

from tessera import target
from tessera.backend.llvm import LLVMBackend
from tessera.dtypes import bf16, fp32
from tessera.errors import IRError, ScheduleError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.tile import operations as tile
from tessera.ir.tile.divisors import divisors_of
from tessera.ir.verification import verify
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tests.unit.scheduling import specs
from tests.whole import examples

PLAIN = Schedule(tile=(16, 64, 16), warps=4, pipeline_depth=3)
KNOBS: Mapping[str, dict[str, KnobValue]] = {
    "persistent": {"grid": "persistent", "group": 4},
    "fused": {"grid": "fused", "accumulators": 2},
    "host descriptors": dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "host_descriptor"),
    "device descriptors": dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "device_descriptor"),
    "specialized": {"warp_specialize": True},
    "specialized walk": {"warp_specialize": True, "grid": "persistent"},
    "registers": {"max_registers": 96},
    "two parts": {"epilogue_parts": 2},
    "four parts": {"epilogue_parts": 4},
    "evictions": {"a_eviction": "first", "b_eviction": "last", "out_eviction": "first"},
}


@pytest.mark.parametrize("name", KNOBS)
@settings(max_examples=examples(3, 6))
@given(st.integers(1, 70), st.integers(1, 150), st.integers(1, 50), st.integers(0, 1 << 20))
def test_knobs_do_not_change_what_is_computed(name: str, m: int, n: int, k: int, seed: int) -> None:
    a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
    out = torch.full((m, n), float("nan"))
    module = lower_contraction_gpu(specs.matmul(fp32, bias=True, activation="gelu"), PLAIN.replace(**KNOBS[name]))
    verify(module)
    run_kernel(parse(print_module(module)), [a, b, bias, out], partition=random.Random(seed))
    specs.close(out, torch.nn.functional.gelu(a.double() @ b.double() + bias.double()), k**0.5)


@pytest.mark.parametrize("parts", [2, 4])
def test_nan_and_infinity_reach_their_part_of_the_result(parts: int) -> None:
    a, b = torch.ones(5, 7), torch.ones(7, 67)
    b[3, 66], b[2, 1] = float("nan"), float("inf")
    out = torch.zeros(5, 67)
    run_kernel(lower_contraction_gpu(specs.matmul(fp32), PLAIN.replace(epilogue_parts=parts)), [a, b, out])
    assert torch.equal(out.isnan().any(0), torch.arange(67) == 66)
    assert torch.equal(out.isinf().any(0), torch.arange(67) == 1)


def test_batches_walk_too() -> None:
    a, b, out = torch.randn(3, 20, 17), torch.randn(3, 17, 33), torch.empty(3, 20, 33)
    schedule = PLAIN.replace(grid="persistent", a_indexing="host_descriptor", group=2)
    run_kernel(lower_contraction_gpu(specs.matmul(fp32, batch=("b0",)), schedule), [a, b, out])
    specs.close(out, a.double() @ b.double(), 5.0)


def test_a_promised_alignment_must_be_kept() -> None:
    module = lower_contraction_gpu(specs.matmul(bf16), PLAIN.replace(vector_bytes=16))
    (kernel,) = [op for op in module.walk() if isinstance(op, tile.KernelOp)]
    assert kernel.divisors is not None
    assert divisors_of(kernel) == ((16, 1, 8, 8, 1),) * 3
    a, b, out = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((8, 16), (16, 24), (8, 24)))
    run_kernel(module, [a, b, out])
    assert torch.equal(out, torch.full((8, 24), 16.0, dtype=torch.bfloat16))
    wide = torch.ones(8, 20, dtype=torch.bfloat16)
    for arguments in ([wide[:, 1:17], b, out], [wide[:, :16], b, out], [a[:, :15], b[:15], out]):
        with pytest.raises(IRError, match=r"no multiple of (8|16), as divisors promises"):
            run_kernel(module, arguments)


def test_k_in_parts_is_no_single_kernel() -> None:
    with pytest.raises(ScheduleError, match="two kernels"):
        lower_contraction_gpu(specs.matmul(fp32), PLAIN.replace(split_k=2))


# -- the CPU ----------------------------------------------------------------------------------------------------------


def test_the_cpu_ignores_hints_but_not_what_changes_the_steps() -> None:
    cpu = target.detect()

    def assembly(**knobs: KnobValue) -> str | bytes:
        return LLVMBackend().emit(lower_contraction_gpu(specs.matmul(fp32), PLAIN.replace(**knobs)), cpu, "source")

    hints: dict[str, KnobValue] = {"grid": "persistent", "warp_specialize": True, "max_registers": 96}
    assert assembly(**hints, a_indexing="host_descriptor", b_eviction="last", vector_bytes=16) == assembly()
    assert assembly(epilogue_parts=2) != assembly()


# -- what the verifier refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "attribute", "value", "reason"),
    [
        (tile.LoadOp, "access", "texture", "access is absent or one of"),
        (tile.LoadOp, "eviction", "never", "eviction is absent or one of"),
        (tile.StoreOp, "access", "texture", "access is absent or one of"),
        (tile.ParallelOp, "grid", "spiral", "grid is absent or one of"),
    ],
)
def test_unknown_hints_are_refused(kind: type, attribute: str, value: str, reason: str) -> None:
    module = lower_contraction_gpu(specs.matmul(fp32), PLAIN)
    op = next(op for op in module.walk() if isinstance(op, kind))
    op.attributes[attribute] = StringAttr(value)
    with pytest.raises(VerifyException, match=reason):
        op.verify_()


def test_descriptors_take_no_eviction_policy() -> None:
    module = lower_contraction_gpu(specs.matmul(fp32), PLAIN.replace(a_indexing="host_descriptor", a_eviction="last"))
    with pytest.raises(IRError, match="take no eviction policy"):
        verify(module)


def test_odd_axes_have_no_halves() -> None:
    module = lower_contraction_gpu(specs.matmul(fp32), PLAIN.replace(epilogue_parts=2))
    (split,) = [op for op in module.walk() if isinstance(op, tile.SplitOp)]
    assert [result.type.get_shape() for result in (split.lower, split.upper)] == [(16, 32), (16, 32)]
    split.attributes["axis"] = IntegerAttr(2, i64)
    with pytest.raises(VerifyException, match="has no halves"):
        split.verify_()
