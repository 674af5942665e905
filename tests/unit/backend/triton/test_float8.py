"""8-bit floats on GPUs: what Triton's interpreter computes, and which instructions multiply them where."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from tessera import op, target
from tessera.backend.triton import TritonBackend
from tessera.compiler.device.gpu import gpu_sites
from tessera.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32
from tessera.ir.tile.float8_formats import FP8_E4M3, FP8_E5M2
from tessera.lazy.policy import Mode, policy
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.product.gpu.problem import contraction_gpu_problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import ContractionSpec
from tessera.target import Target
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

ROOT = Path(__file__).parents[4]
EXTENTS = {"m": 4096, "n": 4096, "k": 4096}


def wrong_on(device: str) -> dict[str, int]:
    """What the program of this folder finds on a device."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])}
    program = [sys.executable, str(Path(__file__).with_name("float8_program.py")), device]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_interpreted_kernels_convert_and_multiply_to_the_bit() -> None:
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip(f"Triton 3.6's interpreter breaks with numpy {numpy.__version__}: it needs one below 2.4")
    wrong = wrong_on("interpreter")
    assert len(wrong) > 30
    assert {name: count for name, count in wrong.items() if count} == {}


def compiled(spec: ContractionSpec, gpu: Target) -> StaticFacts:
    problem = contraction_gpu_problem(spec, EXTENTS, gpu)
    schedule = gpu_space.default_schedule(problem)
    module = lower_contraction_gpu(spec, schedule)
    (facts,) = static_facts([aligned(module, 16, str(schedule))], gpu)
    assert isinstance(facts, StaticFacts), facts
    assert facts.spill_bytes == 0
    assert facts.shared_bytes <= gpu_space.shared_bytes(schedule, problem) * 1.05 + 1024
    return facts


@pytest.mark.parametrize("gpu", ["sm90", "sm100"])
@pytest.mark.parametrize(("a", "b"), [(fp8_e4m3, fp8_e4m3), (fp8_e4m3, fp8_e5m2)], ids=repr)
def test_matrix_units_multiply_8_bit_operands(a: DType, b: DType, gpu: str) -> None:
    facts = compiled(specs.mixed_matmul(a, b, b_axes="nk"), target.gpu(gpu))
    unit = facts.instructions["wgmma" if gpu == "sm90" else "tcgen05.mma"]
    assert facts.instructions["fp8 products"] == unit > 0


def test_the_copy_engine_brings_8_bit_tiles() -> None:
    gpu, spec = target.gpu("sm90"), specs.matmul(fp8_e4m3, b_axes="nk")
    reached = dict.fromkeys(("a_indexing", "b_indexing"), "host_descriptor")
    schedule = gpu_space.complete(Schedule(tile=(64, 64, 128), warps=4, pipeline_depth=3, **reached))
    assert gpu_space.space(contraction_gpu_problem(spec, EXTENTS, gpu)).violations(schedule) == ()
    (facts,) = static_facts([aligned(lower_contraction_gpu(spec, schedule))], gpu)
    assert isinstance(facts, StaticFacts), facts
    assert facts.instructions["fp8 products"] > 0
    assert facts.instructions["cp.async.bulk.tensor"] > 0


@pytest.mark.parametrize(("dtype", "gpu"), [(fp8_e4m3, "sm80"), (fp8_e5m2, "sm80"), (fp8_e4m3, "gfx942")], ids=str)
def test_gpus_without_these_formats_multiply_in_fp16(dtype: DType, gpu: str) -> None:
    facts = compiled(specs.matmul(dtype, b_axes="nk"), target.gpu(gpu))
    assert facts.instructions["mma.sync" if gpu == "sm80" else "v_mfma"] > 0
    assert "fp8 products" not in facts.instructions
    text = facts.text
    assert "float8" not in text
    assert "tl.dot" in text


@pytest.mark.parametrize(
    ("dtype", "gpus"), [(fp8_e4m3, ("sm90", "sm100", "sm120")), (fp8_e5m2, ())], ids=("fp8_e4m3", "fp8_e5m2")
)
def test_instructions_round_only_where_they_saturate_and_round_as_cpus_do(dtype: DType, gpus: tuple[str, ...]) -> None:
    """An RTX 4090 rounds twice, an MI355X makes fp16 saturate as well; no GPU makes fp8_e5m2 infinite."""
    for gpu in ("sm80", "sm89", "sm90", "sm100", "sm120", "gfx942", "gfx950"):
        (site,) = gpu_sites(lambda x: op.cast(x, dtype), (64,), "fp32", target.gpu(gpu))
        source = str(TritonBackend().emit(site.module, target.gpu(gpu), "source"))
        assert bool(re.search(r"\.to\(tl\.float8\w+\)", source)) == (gpu in gpus), gpu


def test_too_large_numbers_become_what_torch_makes_of_them() -> None:
    """The rule of `float8_formats.py`, at both sides of the last number that does not round to what is too large."""
    for form, kind in ((FP8_E4M3, torch.float8_e4m3fn), (FP8_E5M2, torch.float8_e5m2)):
        largest = torch.finfo(kind).max
        numbers = torch.tensor([largest, 1.01 * largest, 2 * largest, 1e30, math.inf, -math.inf, math.nan])
        made = numbers.to(kind).view(torch.uint8)
        assert (made[2:5] == form.overflow).all()
        assert made[5] == form.overflow | 0x80
        assert made[6] == 0x7F
        assert made[0] == form.special - 1 or form.overflow == made[0]
        cpu, gpu = (op.cast(op.tensor(numbers, device=device), kind).torch() for device in ("cpu", "interpreter"))
        assert torch.equal(cpu.view(torch.uint8), made)
        assert torch.equal(gpu.view(torch.uint8), made)


@pytest.mark.parametrize(
    ("a", "b", "gpu"), [(fp8_e4m3, bf16, "sm80"), (fp8_e4m3, bf16, "sm90"), (fp16, fp8_e5m2, "gfx942")], ids=str
)
def test_the_narrower_operand_is_converted_in_registers(a: DType, b: DType, gpu: str) -> None:
    facts = compiled(specs.mixed_matmul(a, b), target.gpu(gpu))
    assert sum(facts.instructions.get(name, 0) for name in ("mma.sync", "wgmma", "tcgen05.mma", "v_mfma")) > 0
    assert "fp8 products" not in facts.instructions
    assert "input_precision" not in facts.text  # of 16-bit operands


@pytest.mark.parametrize("gpu", ["sm80", "sm90", "sm100"])
def test_tf32_products_are_made_only_when_they_are_asked_for(gpu: str) -> None:
    schedule = gpu_space.complete(Schedule(tile=(64, 64, 32), warps=4, pipeline_depth=2))
    specifications = specs.matmul(fp32), replace(specs.matmul(fp32), math="tf32")
    modules = [lower_contraction_gpu(spec, schedule) for spec in specifications]
    exact, rounded = static_facts([aligned(module) for module in modules], target.gpu(gpu))
    assert isinstance(exact, StaticFacts), exact
    assert isinstance(rounded, StaticFacts), rounded
    assert "tf32 products" not in exact.instructions
    assert rounded.instructions["tf32 products"] > 0


def test_the_numerics_policy_permits_tf32_for_all_products_or_for_none() -> None:
    def permitted(mode: Mode, *, tf32: bool, asked: str | None, dtype: str = "fp32") -> bool:
        with policy(mode, tf32=tf32):
            kernel = op.kernel(lambda a, b: op.matmul(a, b, math=asked))
            (site,) = gpu_sites(kernel, [(256, 256), (256, 256)], dtype, target.gpu("sm90"))
            text = TritonBackend().emit(site.lowered.module, target.gpu("sm90"), "source")
        assert isinstance(text, str)
        return '"tf32"' in text

    assert permitted("fast", tf32=True, asked=None)
    assert permitted("deterministic", tf32=True, asked=None)
    assert permitted("fast", tf32=False, asked="tf32")
    assert not permitted("fast", tf32=False, asked=None)
    assert not permitted("strict", tf32=False, asked="tf32")
    assert not permitted("fast", tf32=True, asked=None, dtype="bf16")


def test_hopper_adds_up_in_fp32_after_128_products_at_most() -> None:
    spec, gpu = specs.matmul(fp8_e4m3, b_axes="nk"), target.gpu("sm90")
    for depth, wanted in ((32, 32), (64, 64), (128, 128)):
        schedule = gpu_space.complete(Schedule(tile=(128, 128, depth), warps=8, pipeline_depth=3))
        text = TritonBackend().emit(lower_contraction_gpu(spec, schedule), gpu, "source")
        assert isinstance(text, str)
        assert f"max_num_imprecise_acc={wanted})" in text


def test_a_cast_that_changes_no_number_does_not_change_what_is_multiplied() -> None:
    gpu, schedule = target.gpu("sm90"), gpu_space.complete(Schedule(tile=(64, 64, 64), warps=4, pipeline_depth=2))
    kinds = {
        "tl.dot(a_tile, b_tile, acc, max_num_imprecise_acc=64)": specs.mixed_matmul(fp8_e4m3, fp8_e5m2, common=bf16),
        "tl.dot(a_tile, b_tile.to(tl.float16), acc)": specs.mixed_matmul(fp16, fp8_e4m3, common=fp32),
        "tl.dot(a_tile, b_tile, acc)": specs.mixed_matmul(bf16, bf16, common=fp32),
        'tl.dot(a_tile.to(tl.float32), b_tile, acc, input_precision="ieee")': specs.mixed_matmul(fp8_e4m3, fp32),
        'tl.dot(a_tile.to(tl.float32), b_tile.to(tl.float32), acc, input_precision="ieee")': specs.mixed_matmul(
            fp16, bf16
        ),
    }
    for dot, spec in kinds.items():
        text = TritonBackend().emit(lower_contraction_gpu(spec, schedule), gpu, "source")
        assert isinstance(text, str)
        assert dot in text


def test_sums_that_are_formed_apart_take_registers_of_their_own() -> None:
    hopper, blackwell = (
        contraction_gpu_problem(specs.matmul(fp8_e4m3), EXTENTS, target.gpu(name)) for name in ("sm90", "sm100")
    )
    schedule = gpu_space.complete(Schedule(tile=(128, 256, 64), warps=8, pipeline_depth=3, group=8))
    assert gpu_space.space(hopper).violations(schedule) == ("sums-in-registers",)
    assert gpu_space.space(blackwell).violations(schedule) == ()


def test_an_operand_that_is_converted_stands_in_registers() -> None:
    plain = contraction_gpu_problem(specs.matmul(fp16), EXTENTS, target.gpu("sm80"))
    converted = contraction_gpu_problem(specs.matmul(fp8_e4m3), EXTENTS, target.gpu("sm80"))
    assert (plain.operand, converted.operand) == (fp16, fp16)
    schedule = gpu_space.complete(Schedule(tile=(128, 256, 64), warps=8, pipeline_depth=3, group=8))
    assert gpu_space.space(plain).violations(schedule) == ()
    assert gpu_space.space(converted).violations(schedule) == ("operands-in-registers",)
