"""What binding does for GPUs: kernels that rely on what a call gives them, split products, sizes beyond 32 bits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from tessera import op, settings, target
from tessera.backend.interpreter import InterpreterBackend
from tessera.compiler import pipeline, planning
from tessera.compiler.bind.binding import bind
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.gpu import gpu_sites
from tessera.compiler.device.sites import LARGEST
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.dtypes import fp32
from tessera.errors import CompileError, DeviceError, ScheduleError, TuneSpaceEmptyError, UnsupportedTargetError
from tessera.handle import Tensor
from tessera.ir.parsing import parse
from tessera.ir.tile.divisors import divisors_of
from tessera.ir.tile.grid import programs_of
from tessera.ir.tile.operations import find_kernel
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.lazy.structures import interning
from tessera.runtime.devices.device import driver_of, use_driver
from tessera.runtime.plans.gpu_plan import DevicePlan
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.schedule import Schedule
from tests.unit.compiler.device.test_interpreter import check, launched, normal, put
from tests.unit.runtime.devices.fake import FakeDriver, kernel

H100 = target.gpu("sm90")


def test_looking_at_launches_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr("subprocess.run", refuse)
    monkeypatch.setattr("tessera.backend.llvm.LLVMBackend.compile", refuse)
    monkeypatch.setattr("tessera.backend.llvm.LLVMBackend.stored", refuse)
    assert len(launches_of_operator(op.softmax, (301, 77), "fp32")) == 1
    assert len(gpu_sites(op.softmax, (301, 77), "fp32", H100)) == 1


def test_a_kernel_relies_on_multiples_of_16_only_where_a_call_has_them() -> None:
    (even,) = gpu_sites(op.matmul, (64, 32, 128), "bf16", H100)
    (odd,) = gpu_sites(op.matmul, (64, 33, 128), "bf16", H100)
    # The address, two extents, two strides: those that are constants of the type need no promise.
    assert even.divisors == ((16, 16, 16, 16, 1), (16, 16, 16, 1, 16), (16, 16, 16, 16, 1))
    assert odd.divisors == ((16, 16, 16, 16, 1), (16, 1, 16, 1, 1), (16, 16, 1, 1, 1))
    assert divisors_of(find_kernel(odd.module)) == odd.divisors


def test_a_view_that_starts_off_a_boundary_is_not_relied_on() -> None:
    compiler = compilers.gpu_compiler("interpreter")
    result = op.relu(op.exp(put(normal(8, 12)))[:, 1:])
    check(result)
    for choice in pipeline.launched(result.structure):
        assert compiler.planner.kernel(choice).kernels


@pytest.mark.parametrize(
    ("shape", "axes"), [((1 << 16, 1 << 16), (1 << 16, 1 << 16)), ((1 << 31, 4), None), ((3, 1 << 30), (3, 1 << 30))]
)
def test_more_elements_than_32_bits_count_are_not_merged_into_one_axis(
    shape: tuple[int, ...], axes: tuple[int, ...] | None
) -> None:
    if axes is None:
        with pytest.raises(UnsupportedTargetError, match=f"{1 << 31} elements along one axis"):
            gpu_sites(op.exp, shape, "bf16", H100)
        return
    (site,) = gpu_sites(op.exp, shape, "bf16", H100)
    assert tuple(site.launch.call.shaped.extents.values()) == axes
    assert site.programs <= LARGEST


def test_a_grid_or_a_sum_that_is_too_large_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedTargetError, match="elements along one axis"):
        gpu_sites(op.sum, (1 << 16, 1 << 16), "bf16", H100)
    with pytest.raises(UnsupportedTargetError, match="programs, where a grid has at most"):
        gpu_sites(op.softmax, (1 << 24, 1 << 20, 2), "bf16", H100)


GRID = """
"tessera.tile.kernel"() ({{
^bb0(%x: memref<?x?xf32>):
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %rows = memref.dim %x, %zero : memref<?x?xf32>
  %columns = memref.dim %x, %one : memref<?x?xf32>
  %all = {operation} %rows, %columns : index
  "tessera.tile.parallel"(%all, %columns) ({{
  ^bb1(%lo: index, %hi: index, %left: index, %right: index):
    "tessera.tile.yield"() : () -> ()
  }}) {{steps = array<i64: 4, 8>, split = 0}} : (index, index) -> ()
  "tessera.tile.yield"() : () -> ()
}}) {{sym_name = "k", outputs = array<i64: 0>}} : () -> ()
"""


@pytest.mark.parametrize(("operation", "extent"), [("arith.addi", 40), ("arith.muli", 231), ("arith.ceildivsi", 1)])
def test_grids_are_arithmetic_of_extents(operation: str, extent: int) -> None:
    programs = programs_of(parse(GRID.format(operation=operation)), H100)
    assert programs([(7, 33)]) == math.ceil(extent / 4) * math.ceil(33 / 8)


def test_a_grid_of_anything_else_is_refused() -> None:
    text = GRID.format(operation="arith.xori")
    with pytest.raises(CompileError, match=r"the grid's extent is arith\.xori"):
        programs_of(parse(text), H100)


@pytest.fixture
def split_in_four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products are split four ways."""
    choose = DeviceCompiler._from_start

    def split(compiler: DeviceCompiler, subject: Subject, problem: Problem, start: Schedule) -> Schedule:
        chosen = choose(compiler, subject, problem, start)
        return chosen.replace(split_k=4) if "pipeline_depth" in chosen else chosen

    monkeypatch.setattr(DeviceCompiler, "_from_start", split)
    pipeline.forget_plans()
    yield
    pipeline.forget_plans()


def product(dtype: torch.dtype) -> Tensor:
    return op.matmul(put(normal(19, 64, dtype=dtype)), put(normal(64, 23, dtype=dtype)))


@pytest.mark.usefixtures("split_in_four")
def test_a_split_product_is_parts_and_their_sum_in_a_fixed_order() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        assert launched(product(dtype)) == ["matmul_0", "sum_cast"]
        check(product(dtype))
        assert torch.equal(product(dtype).torch(), product(dtype).torch())


@pytest.mark.usefixtures("split_in_four")
def test_what_follows_a_split_product_computes_with_unrounded_sums() -> None:
    a, b, bias = (put(normal(*shape, dtype=torch.bfloat16)) for shape in ((19, 64), (23, 64), (23,)))
    fused = op.gelu(op.matmul(op.relu(a), b.T) * 0.25 + bias)
    assert [name.rsplit("_", 1)[0] for name in launched(fused)][1] == "sum_mul_add"
    check(fused)


@pytest.mark.usefixtures("split_in_four")
@pytest.mark.parametrize(("a", "b"), [((3, 19, 64), (64, 23)), ((2, 1, 1, 64), (3, 64, 5)), ((64,), (64, 5))])
def test_batched_and_broadcast_products_are_split(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(op.matmul(put(normal(*a)), put(normal(*b))), 2e-5)


@pytest.mark.usefixtures("split_in_four")
def test_a_split_product_on_its_own_and_its_parts_apart() -> None:
    a, b = put(normal(8, 64)), put(normal(64, 8))
    check((op.matmul(a, b) + 1.5).pin(fusion=False), 2e-5)


def test_a_pin_that_a_kernel_does_not_have_is_refused() -> None:
    with pytest.raises(ScheduleError, match="pack_a"):
        op.matmul(put(normal(8, 8)), put(normal(8, 8))).pin(pack_a=True).eval()
    with pytest.raises(ScheduleError, match="keep"):
        op.exp(put(normal(8, 8))).pin(keep=4).eval()


def test_a_pinned_tile_is_what_runs() -> None:
    pinned = op.matmul(put(normal(40, 40)), put(normal(40, 40))).pin(tile=(32, 32, 16))
    pipeline.plan(pinned.structure)
    (choice,) = pipeline.launched(pinned.structure)
    assert choice.schedule["tile"] == (32, 32, 16)
    check(pinned, 2e-5)


def test_shapes_of_one_bucket_share_kernels() -> None:
    with settings.override(shape_buckets=True):
        schedules = set()
        for rows in (33, 40, 64):
            result = op.softmax(put(normal(rows, 40)))
            check(result, 1e-5)
            schedules |= {choice.schedule for choice in pipeline.launched(op.softmax(put(normal(rows, 40))).structure)}
        assert len(schedules) == 1


def test_a_bucket_does_not_make_schedules_legal() -> None:
    with settings.override(shape_buckets=True):
        for depth in (250, 256):
            a, b = put(normal(16, depth, dtype=torch.float16)), put(normal(depth, 16, dtype=torch.float16))
            split = op.matmul(a, b).pin(split_k=4, tile=(16, 16, 32))
            if depth % 4:
                with pytest.raises(TuneSpaceEmptyError, match="split_k"):
                    split.eval()
            else:
                check(split)


@pytest.mark.usefixtures("split_in_four")
def test_parts_that_are_not_equal_are_refused() -> None:
    with pytest.raises(ScheduleError, match="K of 63 is not cut into 4 equal parts"):
        op.matmul(put(normal(8, 63)), put(normal(63, 8))).eval()


def test_a_kernel_for_another_gpu_is_not_loaded() -> None:
    before = use_driver("interpreter", None)
    try:
        with settings.override(interpreter_target="sm80"):
            ampere = driver_of("interpreter")
    finally:
        use_driver("interpreter", before)
    with pytest.raises(UnsupportedTargetError, match="a kernel for sm_90, not sm_80"):
        ampere.load(kernel("made_elsewhere"))


def test_a_compiler_without_a_device_makes_no_plans() -> None:
    x = op.exp(op.tensor(torch.ones(4)))
    program = planning.program_of(x.structure)
    with pytest.raises(UnsupportedTargetError, match="launched nowhere"):
        bind(program, x.structure.post_order(), DeviceCompiler(H100))


def test_plans_of_a_cuda_device_are_device_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way for "cuda:0" on a device that records; machine code is not compiled here."""
    driver = FakeDriver()
    before = use_driver("cuda:0", driver)
    monkeypatch.setattr(compilers, "backend_of", lambda device: InterpreterBackend())
    try:
        x = leaf_node(Leaf(interning.buffer((48, 64), (64, 1), fp32, "cuda:0"), 1 << 20, object()))
        result = op.softmax(x) * 2.5
        plan = pipeline.plan(result.structure)
        assert isinstance(plan, DevicePlan)
        (leaf,) = plan.run(result.leaves)
        assert leaf.device == "cuda:0"
        assert result.structure.device == "cuda:0"
        (_, _, grid, arguments, stream) = driver.log[-1]
        assert grid == (48, 1, 1)
        assert 1 << 20 in arguments
        assert 2.5 in arguments
        assert leaf.address in arguments
        assert stream == driver.current_stream
        with pytest.raises(DeviceError, match="numpy has no arrays on cuda:0"):
            leaf_node(leaf).numpy()
        with pytest.raises(DeviceError, match="cuda:0 and cpu"):
            x + torch.ones(48, 64)
    finally:
        use_driver("cuda:0", before)
        pipeline.forget_plans()


def of_product(result: Tensor) -> Schedule:
    """The schedule of the product that an expression launches."""
    pipeline.plan(result.structure)
    return next(c.schedule for c in pipeline.launched(result.structure) if c.subject.item.family == "contraction")


def test_descriptors_are_legal_only_where_operands_lie_on_boundaries() -> None:
    wide, narrow = normal(32, 64, dtype=torch.bfloat16), normal(32, 65, dtype=torch.bfloat16)[:, :64]
    b = normal(64, 48, dtype=torch.bfloat16)
    fine = op.matmul(put(wide), put(b)).pin(a_indexing="host_descriptor", tile=(32, 32, 32))
    assert of_product(fine)["a_indexing"] == "host_descriptor"
    check(fine)
    for values in (narrow, normal(33, 64, dtype=torch.bfloat16).view(-1)[1 : 1 + 32 * 64].view(32, 64)):
        pinned = op.matmul(put(values), put(b)).pin(a_indexing="host_descriptor", tile=(32, 32, 32))
        with pytest.raises(TuneSpaceEmptyError, match="a_indexing"):
            pinned.eval()


def test_wide_loads_are_not_promised_of_operands_that_start_anywhere() -> None:
    a, b = normal(33, 64, dtype=torch.float16), put(normal(64, 48, dtype=torch.float16))
    aligned, shifted = put(a[:32]), put(a.view(-1)[1 : 1 + 32 * 64].view(32, 64))
    first = op.matmul(aligned, b)
    assert op.matmul(shifted, b).structure is first.structure
    check(first)
    check(op.matmul(shifted, b))
    check(op.matmul(aligned, b))


def test_a_pinned_split_is_checked_and_launched() -> None:
    a, b = put(normal(16, 256, dtype=torch.float16)), put(normal(256, 16, dtype=torch.float16))
    split = op.matmul(a, b).pin(split_k=4, tile=(16, 16, 32))
    assert launched(split)[-1] == "sum_cast"
    check(split)
    with pytest.raises(TuneSpaceEmptyError, match="split_k"):
        op.matmul(a[:, :250], b[:250]).pin(split_k=4, tile=(16, 16, 32)).eval()
