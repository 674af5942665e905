"""Tuning problems of GPUs: identity, space and candidates, and a whole tuning on Triton's interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import autotune, op, settings, target
from tessera.backend.contract import GpuKernelObject
from tessera.backend.interpreter import InterpreterBackend
from tessera.compiler import pipeline
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.problems import tuning_problem
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import CompileError
from tessera.ir.tile.operations import find_kernel
from tessera.lazy.devices import INTERPRETER
from tessera.scheduling.families.family import GpuKernels
from tessera.system.priority import at_niceness
from tessera.target import Target
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.workload import GpuLaunch, SlotAddress

# Triton must not be imported here: imported as a compiler it could not interpret any more.
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="the extra `triton` is not installed")

H200 = target.gpu("h200")
SIZE = (96, 80, 64)


class FakeTriton(InterpreterBackend):
    """Compiles anything, at once; kernels spill under schedules whose text holds `spilling`."""

    def __init__(self, spilling: str = "never") -> None:
        self.batches: list[int] = []
        self._spilling = spilling

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        """Objects with the parameters of printed kernels and the schedule in the place of their source."""
        self.batches.append(len(modules))
        return [self._kernel(module, target) for module in modules]

    def _kernel(self, module: ModuleOp, target: Target) -> GpuKernelObject:
        (made,) = super().compile_all([module], target)
        assert isinstance(made, GpuKernelObject)
        note = find_kernel(module).note
        assert note is not None
        return replace(made, source=note.data, spill_bytes=64 * (self._spilling in note.data))


def posed(
    compile: FakeTriton, function: object = op.matmul, shapes: object = SIZE, dtype: str = "bf16"
) -> TuningProblem:
    compiler = DeviceCompiler(H200, backend=compile)
    compiler.device = INTERPRETER
    (launch,) = launches_of_operator(function, shapes, dtype, compiler)
    return tuning_problem(launch.call, compiler)


def test_the_identity_names_gpu_problem_and_triton() -> None:
    problem = posed(FakeTriton())
    identity = problem.identity
    assert (identity.operator, identity.shape, identity.arch) == ("matmul", SIZE, "sm_90 H200-SXM5-141GB")
    assert (identity.accumulation, identity.threads) == ("fp32", 1)
    assert "Triton 3.6" in problem.generator
    assert problem.predict(problem.space.default) > 0


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8_e4m3"])
def test_the_smallest_product_has_a_space(dtype: str) -> None:
    space = posed(FakeTriton(), shapes=(1, 1, 1), dtype=dtype).space
    assert not space.violations(next(iter(space.candidates())))


def test_a_batch_is_compiled_once_and_in_one_go() -> None:
    compile = FakeTriton()
    problem = posed(compile)
    schedules = [problem.space.default, *problem.space.neighbours(problem.space.default)[:5]]
    problem.prepare(schedules)
    cases = [problem.build(schedule) for schedule in schedules]
    problem.prepare(schedules)
    assert [size for size in compile.batches if size] == [6]
    assert len({case.launches for case in cases}) == 6
    assert len({id(case.workload) for case in cases}) == 1


def test_beside_a_running_program_a_candidate_is_compiled_when_it_is_built() -> None:
    compile = FakeTriton()
    problem = posed(compile)
    schedules = [problem.space.default, *problem.space.neighbours(problem.space.default)[:3]]
    with at_niceness(10):
        problem.prepare(schedules)
        assert not compile.batches
        problem.build(schedules[1])
    assert compile.batches == [1]


def test_a_candidate_is_a_launch_over_the_operands_of_the_workload() -> None:
    problem = posed(FakeTriton())
    pointers = dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "pointer")
    case = problem.build(problem.space.default.replace(**pointers, grid="flat", epilogue_parts=1))
    (launch,) = case.launches
    assert isinstance(launch, GpuLaunch)
    assert [value for value in launch.arguments if isinstance(value, SlotAddress)] == [
        SlotAddress(0),
        SlotAddress(1),
        SlotAddress(2),
    ]
    # Extents and the one stride that is not 1 of A, of B (walked along N, then along K), and of the result.
    assert [value for value in launch.arguments if not isinstance(value, SlotAddress)] == [
        96,
        64,
        64,
        80,
        64,
        80,
        96,
        80,
        80,
    ]
    assert launch.grid[0] >= 1
    assert [spec.shape for spec in case.workload.operands] == [(96, 64), (64, 80), (96, 80)]


def test_a_product_whose_k_is_split_is_two_launches_and_a_temporary() -> None:
    problem = posed(FakeTriton())
    case = problem.build(problem.space.default.replace(split_k=2))
    assert len(case.launches) == 2
    (workspace,) = case.temporaries
    assert workspace.shape[0] == 2
    assert workspace.dtype == "fp32"


def test_candidates_that_spill_are_dropped_before_they_are_measured() -> None:
    problem = posed(FakeTriton(spilling="warps"))
    with pytest.raises(CompileError, match="spills 64 bytes a thread"):
        problem.build(problem.space.default)


def test_attention_is_tuned_in_its_own_space_in_parts_too() -> None:
    problem = posed(FakeTriton(), op.flash_attention, (1, 2, 512, 32))
    assert problem.identity.operator == "flash_attention"
    assert problem.predict(problem.space.default) > 0
    whole, cut = (problem.build(problem.space.default.replace(parts=parts)) for parts in (1, 4))
    assert (len(whole.launches), len(cut.launches)) == (1, 2)


def test_what_has_no_model_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuKernels, "is_modelled", False)
    with pytest.raises(CompileError, match="not tuned there"):
        posed(FakeTriton(), op.flash_attention, (1, 2, 64, 32))


def test_rows_are_tuned_in_their_own_space() -> None:
    problem = posed(FakeTriton(), op.softmax, (512, 1000))
    assert problem.identity.operator == "softmax"
    assert problem.predict(problem.space.default) > 0
    (launch,) = problem.build(problem.space.default).launches
    assert isinstance(launch, GpuLaunch)


def test_only_choices_that_matter_are_searched() -> None:
    small, large = posed(FakeTriton()), posed(FakeTriton(), op.matmul, (4096, 4096, 4096))
    assert {schedule["split_k"] for schedule in itertools.islice(large.space.candidates(), 500)} == {1}
    for schedule in itertools.islice(small.space.candidates(), 500):
        assert max(schedule.integers("tile")[:2]) <= 128
        assert schedule["a_eviction"] == "normal"


def test_tuning_on_the_interpreter_finds_a_schedule_that_plans_then_use() -> None:
    size = (16, 16, 13)
    config = autotune(op.matmul, size, "fp32", "on_device", max_trials=1, budget_s=300, device="interpreter")
    assert config.source == "measured"
    assert [trial.outcome for trial in config.trials] == ["ok"]
    again = autotune.load(op.matmul, size, "fp32", device="interpreter")
    assert (again.source, again.schedule) == ("cache", config.schedule)
    a, b = torch.randn(16, 13), torch.randn(13, 16)
    product = op.matmul(op.tensor(a, device="interpreter"), op.tensor(b, device="interpreter"))
    structure = product.structure
    assert torch.allclose(product.torch(), a @ b, atol=1e-4)
    assert [choice.schedule for choice in pipeline.launched(structure)] == [config.schedule]


@pytest.fixture(autouse=True)
def _cache(cache_dir: object) -> None:
    assert settings.current().cache_dir == cache_dir
