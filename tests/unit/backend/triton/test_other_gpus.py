"""Kernels for GPUs beside those of data centers that all other tests compile for: cards for games, and CDNA 4."""

from __future__ import annotations

import pytest

from tessera import numerics, op, target
from tessera.compiler.device.gpu import gpu_sites

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

CALLS = (
    (op.matmul, (4096, 4096, 4096), "bf16"),
    (op.matmul, (512, 512, 512), "fp8_e4m3"),
    (op.softmax, (4096, 4096), "bf16"),
    (op.flash_attention, (4, 16, 4096, 128), "bf16"),
    (op.flash_attention, (2, 4, 512, 128), "fp8_e4m3"),
)


@pytest.mark.parametrize("name", [pytest.param("sm89", marks=pytest.mark.whole), "sm120", "gfx950"])
def test_kernels_of_all_families_compile_fit_a_multiprocessor_and_do_not_spill(name: str) -> None:
    gpu = target.gpu(name)
    sites = [gpu_sites(operator, extents, dtype, gpu)[0] for operator, extents, dtype in CALLS]
    with numerics.policy("fast", tf32=True):
        sites += gpu_sites(op.matmul, (256, 256, 256), "fp32", gpu)
    unit = "v_mfma" if name.startswith("gfx") else "mma.sync"
    assert gpu.gpu is not None
    for site, facts in zip(sites, static_facts([site.module for site in sites], gpu), strict=True):
        assert isinstance(facts, StaticFacts), (site.name, facts)
        assert (facts.spill_bytes, facts.shared_bytes <= gpu.gpu.max_shared_bytes_per_block) == (0, True), site.name
        assert facts.occupancy(gpu).blocks
        assert site.name.startswith("softmax") or facts.instructions[unit] > 0


def test_a_start_of_hopper_takes_more_shared_memory_than_a_card_for_games_has() -> None:
    for name in ("sm89", "sm120"):
        (site,) = gpu_sites(op.matmul, (4096, 4096, 4096), "bf16", target.gpu(name))
        launch = site.launch
        problem = launch.subject.problem(launch.call.shaped.extents, 1, None)
        space = launch.subject.kernels.space(problem)
        assert space.violations(space.default.replace(tile=(128, 256, 64), warps=8, pipeline_depth=4)) == (
            "shared-memory",
        )
