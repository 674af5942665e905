"""The knob `backend`: which of a GPU's backends makes a kernel, in plans, tunings and on the command line."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import pytest

from tessera import op, target
from tessera.backend import registry
from tessera.backend.contract import GpuKernelObject
from tessera.backend.cuda_tile import CudaTileBackend
from tessera.backend.gpu_objects import LaunchFacts
from tessera.compiler import pipeline
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.gpu import gpu_kernels, gpu_sites
from tessera.dtypes import bf16
from tessera.errors import CompileError, ScheduleError, UnsupportedTargetError
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import contiguous_strides
from tessera.runtime.devices.device import use_driver
from tessera.runtime.plans.gpu_plan import DevicePlan
from tessera.scheduling.families.backends import BACKEND, backends_for, deciding
from tessera.scheduling.families.registry import families
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target
from tests.unit.runtime.cuda.fake import FakeCuda, driver

ROWS, COLUMNS = 48, 80


class Emitting(CudaTileBackend):
    """Programs of CUDA Tile IR, with no machine code."""

    def version(self) -> str:
        return "tileiras that is not there"

    def compile_all(
        self, modules: Sequence[object], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        from tessera.backend.cuda_tile.emission.kernel import emit
        from tessera.backend.cuda_tile.program.text import text_of

        made = [emit(module, target) for module in modules]  # type: ignore[arg-type]
        facts, image = LaunchFacts(is_tile=True), b"no machine code"
        return [
            GpuKernelObject(
                *(image, each.program.name, text_of(each.program), target.arch, 384, 200_000, each.parameters, facts),
                *("tileiras", 168, 0),
            )
            for each in made
        ]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend "cuda_tile", as if its compiler were there."""
    monkeypatch.setitem(registry._found, ("cuda", "cuda_tile"), Emitting())


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    """A fake CUDA library of a driver r580, as the device cuda:0."""
    fake = FakeCuda(version=13_000)
    before = use_driver("cuda:0", driver(fake))
    yield fake
    use_driver("cuda:0", before)
    pipeline.forget_plans()


def tensor(address: int, *shape: int) -> Tensor:
    strides = contiguous_strides(shape)
    made: Tensor = leaf_node(Leaf(interning.buffer(shape, strides, bf16, "cuda:0"), address, object()))
    return made


def test_a_pinned_backend_makes_the_kernel_which_is_launched_with_one_thread_and_in_a_graph(cuda: FakeCuda) -> None:
    result = op.softmax(tensor(1 << 20, ROWS, COLUMNS)).pin(backend="cuda_tile")
    plan = pipeline.plan(result.structure)
    assert isinstance(plan, DevicePlan)
    (step,) = plan.steps
    assert step.kernel.kernel.source.startswith("// CUDA Tile IR")
    cuda.sizes = [{"i32": 4}.get(each.kind, 8) for each in step.kernel.kernel.parameters]
    (found,) = plan.run(result.leaves)
    plan.run(result.leaves)
    (launched,), (node,) = cuda.launched, cuda.nodes.values()
    for each in (launched, node):
        assert (each.grid, each.block, each.shared) == (step.grid, (1, 1, 1), 0)
        passed = [int.from_bytes(data, "little") for data in each.parameters]
        assert {1 << 20, ROWS, COLUMNS} <= set(passed)
    assert struct.pack("<Q", found.address) in launched.parameters


def test_without_a_pin_kernels_are_tritons() -> None:
    for family in families():
        if family.gpu is not None:
            rules = {rule.name for rule in family.gpu.rules}
            assert "backend" in rules, family.name
    compiler = DeviceCompiler(target.gpu("sm90"))
    shapes: dict[Callable[..., Tensor], object] = {
        op.matmul: (64, 64, 64),
        op.softmax: (64, 64),
        op.flash_attention: [(1, 1, 64, 64)] * 3,
    }
    for operator, extents in shapes.items():
        (site,) = gpu_sites(operator, extents, "bf16", compiler.target)
        launch = site.launch
        space = launch.subject.kernels.space(compiler.problem(launch.call))
        assert space.by_name[BACKEND].choices == ("triton", "cuda_tile")
        assert (launch.schedule, launch.schedule[BACKEND]) == (space.default, "triton")


def test_a_gpu_of_amd_has_one_backend() -> None:
    assert backends_for(target.gpu("mi300x")) == ("triton",)
    with pytest.raises(ScheduleError) as caught:
        gpu_kernels(op.softmax, (64, 64), "bf16", target.gpu("mi300x"), Schedule(backend="cuda_tile"))
    assert any("rule backend" in hint for hint in caught.value.hints)


def test_tunings_look_at_the_backends_that_the_driver_launches() -> None:
    gpu = target.gpu("h200")
    for version, names in ((13_000, ("triton", "cuda_tile")), (12_080, ("triton",))):
        assert DeviceCompiler(gpu, driver=driver(FakeCuda(version=version))).planner.backends == names
    assert DeviceCompiler(gpu).planner.backends == ("triton", "cuda_tile")
    assert DeviceCompiler(target.gpu("mi300x")).planner.backends == ("triton",)


def test_a_tuned_schedule_of_a_backend_that_is_not_here_is_not_taken() -> None:
    gpu = target.gpu("h200")
    (site,) = gpu_sites(op.softmax, (64, 64), "bf16", gpu)
    subject, tuned = site.launch.subject, site.launch.schedule.replace(backend="cuda_tile")
    for version, is_taken in ((13_000, True), (12_080, False)):
        compiler = DeviceCompiler(gpu, driver=driver(FakeCuda(version=version)))
        assert compiler.permits(subject, compiler.problem(site.launch.call), tuned) is is_taken
        assert compiler.permits(subject, compiler.problem(site.launch.call), site.launch.schedule)


def test_an_old_driver_launches_no_kernel_of_tiles() -> None:
    before = use_driver("cuda:0", driver(FakeCuda()))
    try:
        with pytest.raises(UnsupportedTargetError, match="cannot launch"):
            pipeline.plan(op.softmax(tensor(1 << 20, ROWS, COLUMNS)).pin(backend="cuda_tile").structure)
    finally:
        use_driver("cuda:0", before)
        pipeline.forget_plans()


def test_what_decides_a_kernel_of_tiles_are_no_warps_and_stages() -> None:
    first = Schedule(tile=(128, 128, 64), warps=4, pipeline_depth=3, backend="cuda_tile")
    assert deciding(first) == deciding(first.replace(warps=8, pipeline_depth=2))
    assert deciding(first) != deciding(first.replace(tile=(64, 128, 64)))
    usual = first.replace(backend="triton")
    assert deciding(usual) != deciding(usual.replace(warps=8))


def test_pins_that_the_default_schedule_forbids_are_completed() -> None:
    """By the model, or by what is legal nearby where a family has none. What nothing completes is refused."""
    gpu, square = target.gpu("h100"), (4096, 4096, 4096)
    (site,) = gpu_sites(op.matmul, square, "bf16", gpu, Schedule(warps=1))
    assert (site.launch.schedule["warps"], site.launch.schedule["tile"]) == (1, (32, 128, 64))
    (site,) = gpu_sites(op.flash_attention, [(1, 8, 4096, 128)] * 3, "bf16", gpu, Schedule(tile=(64, 64)))
    assert (site.launch.schedule["tile"], site.launch.schedule["warps"]) == ((64, 64), 4)
    with pytest.raises(ScheduleError, match="not legal here"):
        gpu_sites(op.matmul, square, "bf16", gpu, Schedule(tile=(256, 256, 128)))
