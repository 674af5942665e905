"""What kernels become on GPUs that are not there, by the compiler: registers, spills, shared memory, instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp, UnitAttr

from tessera import op, settings, target
from tessera.compiler.device.gpu import gpu_kernels, gpu_sites
from tessera.dtypes import bf16
from tessera.errors import CacheIOError, CompileError, UnsupportedTargetError
from tessera.ir.tile.operations import find_kernel
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target
from tessera.typing import ArrayLike
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs
from tests.whole import examples

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

TARGETS = ("sm80", "sm90", "sm100", "gfx942")
MULTIPLIES = {"sm80": "mma.sync", "sm90": "wgmma", "sm100": "tcgen05.mma", "gfx942": "v_mfma"}


def product(tile: tuple[int, int, int], warps: int, stages: int, divisible: bool = True) -> ModuleOp:
    """A bf16 product under a schedule; `divisible` promises that 16 divides all extents and strides."""
    module = lower_contraction_gpu(specs.matmul(bf16), Schedule(tile=tile, pipeline_depth=stages, warps=warps))
    return aligned(module, 16 if divisible else 1)


def lowered(function: Callable[..., object], shape: tuple[int, ...], dtype: str, gpu: Target) -> ModuleOp:
    """The first kernel of an operator, with nothing promised but where its operands start."""
    (site, *_) = gpu_sites(function, shape, dtype, gpu)
    return aligned(site.lowered.module)


def compiled(found: StaticFacts | CompileError) -> StaticFacts:
    assert isinstance(found, StaticFacts), found
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_a_bf16_product_uses_the_matrix_units_and_does_not_spill(name: str) -> None:
    gpu = target.gpu(name)
    tile, stages = ((128, 256, 64), 3) if gpu.arch.startswith("sm") else ((128, 128, 64), 2)
    facts = compiled(static_facts([product(tile, 8, stages)], gpu)[0])
    assert facts.instructions[MULTIPLIES[name]] > 0
    assert facts.spill_bytes == 0
    assert (facts.warps, facts.stages) == (8, stages)
    assert facts.occupancy(gpu).blocks >= 1


def test_sums_that_do_not_fit_the_registers_spill() -> None:
    gpu = target.gpu("sm90")
    small, large = (
        compiled(each) for each in static_facts([product((64, 64, 32), 4, 2), product((256, 256, 64), 4, 2)], gpu)
    )
    assert small.spill_bytes == 0
    assert large.spill_bytes > 0
    assert large.registers == 255
    assert small.occupancy(gpu).fraction > large.occupancy(gpu).fraction


def test_loads_are_wide_only_where_extents_and_strides_are_promised() -> None:
    gpu = target.gpu("sm90")
    aligned, free = (
        compiled(each)
        for each in static_facts([product((128, 128, 64), 8, 3), product((128, 128, 64), 8, 3, False)], gpu)
    )
    assert "cp.async" in aligned.instructions
    assert "cp.async" not in free.instructions


def test_facts_come_from_the_cache_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = target.gpu("sm80")
    first = static_facts([product((32, 32, 32), 4, 2)], gpu)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("subprocess.run", refuse)
    assert static_facts([product((32, 32, 32), 4, 2)], gpu) == first
    assert compiled(first[0]).source.startswith(str(settings.current().triton_dir))


def test_damaged_facts_are_made_anew() -> None:
    gpu, depths = target.gpu("sm80"), (16, 32, 64, 128)
    found = [compiled(each) for each in static_facts([product((32, 32, depth), 4, 2) for depth in depths], gpu)]
    for facts, damage in zip(found, ("", "{", "[]", '{"registers": 3}'), strict=True):
        Path(facts.source).with_suffix(".json").write_text(damage)
    assert static_facts([product((32, 32, depth), 4, 2) for depth in depths], gpu) == found


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with settings.override(cache_dir=tmp_path / "file"), pytest.raises(CacheIOError, match="TESSERA_CACHE_DIR"):
        static_facts([product((32, 32, 32), 4, 2)], target.gpu("sm80"))


def test_what_triton_refuses_is_said_of_that_kernel_only() -> None:
    gpu = target.gpu("sm90")
    large, fine = static_facts([product((2048, 1024, 16), 8, 2), product((64, 64, 32), 4, 2)], gpu)
    assert isinstance(large, CompileError)
    assert "numel" in str(large)
    assert isinstance(fine, StaticFacts)


@pytest.mark.parametrize("name", TARGETS)
def test_every_family_compiles_without_spills(name: str) -> None:
    gpu = target.gpu(name)
    modules = [
        lowered(function, shape, dtype, gpu)
        for function, shape in (
            (op.softmax, (512, 1000)),
            (op.gelu, (300, 70)),
            (op.layer_norm, (64, 4096)),
            (op.sum, (64, 333)),
        )
        for dtype in ("fp32", "bf16", "fp16")[: examples(2, 3)]
    ]
    for facts in static_facts(modules, gpu):
        assert compiled(facts).spill_bytes == 0


def test_the_kernels_of_an_operator_say_what_they_become() -> None:
    gpu = target.gpu("sm90")
    (kernel,) = gpu_kernels(op.matmul, (1024, 1024, 1024), "bf16", gpu)
    facts = compiled(kernel.facts)
    assert facts.instructions["wgmma"] > 0
    assert str(kernel.schedule) in facts.text
    held = facts.occupancy(gpu)
    assert held.warps == held.blocks * facts.warps


def test_without_triton_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UnsupportedTargetError, match="Triton is not installed"):
        static_facts([product((32, 32, 32), 4, 2)], target.gpu("sm90"))


def test_the_default_of_a_product_with_a_dear_epilogue_does_not_spill() -> None:
    def linear(x: ArrayLike, w: ArrayLike, b: ArrayLike) -> object:
        return op.gelu(op.matmul(x, w) + b)

    (kernel,) = gpu_kernels(linear, [(4096, 4096), (4096, 4096), (4096,)], "bf16", target.gpu("sm90"))
    assert kernel.schedule["tile"] == (128, 256, 64)
    assert kernel.schedule["epilogue_parts"] != 1  # whole, gelu takes all registers and spills
    assert isinstance(kernel.facts, StaticFacts)
    assert kernel.facts.spill_bytes == 0


@pytest.mark.parametrize("name", ["sm90", "gfx942"])
def test_only_timed_builds_read_the_clock_and_change_nothing_that_was_asked_for(name: str) -> None:
    modules = []
    for grid in ("flat", "persistent", "fused") if name == "sm90" else ("flat", "persistent"):
        schedule = Schedule(tile=(64, 64, 64), pipeline_depth=2, warps=4, grid=grid)
        usual, timed = (lower_contraction_gpu(specs.matmul(bf16), schedule) for _ in range(2))
        find_kernel(timed).attributes["timed"] = UnitAttr()
        modules += [aligned(usual), aligned(timed)]
    facts = list(map(compiled, static_facts(modules, target.gpu(name))))
    for found, clocked in zip(facts[::2], facts[1::2], strict=True):
        assert "clock" not in found.instructions
        assert clocked.instructions["clock"] >= 2
        assert clocked.instructions[MULTIPLIES[name]] == found.instructions[MULTIPLIES[name]]
        assert (clocked.warps, clocked.stages) == (found.warps, found.stages)
