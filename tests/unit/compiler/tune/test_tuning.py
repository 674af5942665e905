"""What the compiler hands the tuner: subjects that exist, spaces that keep what the user asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from tessera import Tensor, autotune, numerics, op, settings
from tessera.compiler import pipeline, planning
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import kernel_launches
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.problems import tuning_problem
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.errors import ArgumentError
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ChosenSchedule
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.tuning.measure.execution import CpuBench
from tessera.tuning.measure.metrics import Roof

GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (op.matmul, (8, 8)),
        (op.matmul, (8, 8, -1)),
        (op.matmul, (8.0, 8, 8)),
        (op.matmul, (True, 8, 8)),
        (op.matmul, "abc"),
        (op.matmul, None),
        (op.matmul, [(8, 8)]),
        (op.matmul, [(8, 8), (8, -8)]),
        (op.matmul, [8, 8]),
        (op.where, (3, 4)),
        (op.matmul, (0, 8, 8)),
        (3, (8, 8)),
    ],
)
def test_shapes_that_mean_nothing_are_refused(operator: object, shapes: object, cache_dir: Path) -> None:
    with pytest.raises(ArgumentError):
        autotune(operator, shapes)
    assert not list(cache_dir.rglob("*.json"))


@pytest.mark.parametrize("level", ["L2", "DRAM"])
def test_trials_are_held_against_the_measured_bandwidth_of_where_operands_lie(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compilers.kernel_compiler()
    largest_cache = max(each.size_bytes for each in compiler.target.memory if each.name != "DRAM")
    rows = 8 if level == "L2" else largest_cache // 4096
    rates = {name: 1e12 / 2**place for place, name in enumerate(("L1", "L2", "L3", "DRAM"))}
    memory = tuple(MemoryCeiling(name, 1, rate) for name, rate in rates.items())
    measured = Ceilings(compiler.target.arch, "a CPU", "measured", (ComputeCeiling("fp32", 1, 1e11),), memory, "now")
    monkeypatch.setattr(compiler, "model", RooflineModel(measured, compiler.target))
    with numerics.policy("deterministic"):  # one worker
        work = CompilerBackend().subject(op.softmax, (rows, 4096), None).work
    assert work is not None
    assert work.roofs["warm"] == Roof(level, rates[level], "measured")
    assert work.roofs["cold"] == Roof("DRAM", rates["DRAM"], "measured")


@pytest.fixture
def drawn_schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    """Every kernel that is bound takes a random schedule of its space; the list collects them."""
    compiler, generator, drawn = compilers.kernel_compiler(), random.Random(1), list[Schedule]()

    def draw(compiler: DeviceCompiler, call: Call, problem: Problem) -> ChosenSchedule:
        space = compiler.space(compiler.subject(call), problem)
        drawn.append(space.draw(generator))
        return ChosenSchedule(drawn[-1], "tuned")

    monkeypatch.setattr(compiler, "tuned", draw)
    yield drawn
    monkeypatch.undo()
    pipeline.forget_plans()


EXPRESSIONS: dict[str, tuple[Callable[..., Tensor], tuple[torch.Tensor, ...]]] = {
    "product": (op.matmul, (normal(70, 1500), normal(1500, 90))),
    "bf16 product": (
        op.matmul,
        (normal(70, 1500, dtype=torch.bfloat16), normal(1500, 90, dtype=torch.bfloat16)),
    ),
    "vector and matrix": (op.matmul, (normal(1, 1500), normal(1500, 90))),
    "softmax": (op.softmax, (normal(3, 3000),)),
    "layer norm": (op.layer_norm, (normal(3, 3000),)),
    "sum": (op.sum, (normal(300, 300),)),
    "sum of columns": (lambda x: op.sum(x, 0), (normal(3000, 5),)),
    "fused": (lambda x, y: op.gelu(op.matmul(x, y)).sum(), (normal(70, 700), normal(700, 90))),
}


@pytest.mark.parametrize("mode", ["deterministic", "strict"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_fixed_order_gives_the_same_bits_under_every_schedule_of_its_space(
    name: str, mode: numerics.Mode, drawn_schedules: list[Schedule]
) -> None:
    expression, operands = EXPRESSIONS[name]
    results = []
    with numerics.policy(mode):
        for threads in (1, 2, 1, 2):
            pipeline.forget_plans()
            with settings.override(threads=threads):
                results.append(expression(*operands).torch().clone())
    assert len(set(drawn_schedules)) > 1
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_a_winner_with_another_order_is_not_used_under_a_fixed_one() -> None:
    compiler = compilers.kernel_compiler()
    asked: list[bool] = []

    def remembered(compiler: DeviceCompiler, call: Call, problem: Problem) -> ChosenSchedule | None:
        subject = compiler.subject(call)
        start = subject.kernels.start(problem)
        mc, nc, kc = start.integers("tile")
        other = start.replace(tile=(mc, nc, kc // 2))
        asked.append(compiler.permits(subject, problem, other))
        assert compiler.permits(subject, problem, start)
        return None

    x, y = normal(64, 1000), normal(1000, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "tuned", remembered)
        for mode in get_args(numerics.Mode):
            pipeline.forget_plans()
            with numerics.policy(mode):
                op.matmul(x, y).eval()
    pipeline.forget_plans()
    assert asked == [True, False, False]


def tile_of(tensor: Tensor) -> str:
    found = re.search(r"tile = \[([^]]*)\]", tensor.inspect("schedule"))
    assert found is not None
    return found[1].replace(" : i64", "")


def test_a_tile_of_the_users_goes_before_one_that_was_tuned(cache_dir: Path) -> None:
    a, b = normal(256, 250), normal(250, 256)
    with settings.override(cache_dir=cache_dir):
        tuned = autotune(op.matmul, (256, 256, 250)).schedule
        assert tuned["tile"] != (96, 128, 64)
        pipeline.forget_plans()
        assert tile_of(op.matmul(a, b, tile_shape=(96, 128, 64))) == "96, 128, 64"
        assert tile_of(op.matmul(a, b)) == ", ".join(map(str, tuned.integers("tile")))


def test_tuning_around_a_given_tile_is_no_winner_of_all_tiles(cache_dir: Path) -> None:
    @op.kernel
    def product(a: Tensor, b: Tensor) -> Tensor:
        return op.matmul(a, b, tile_shape=(96, 128, 64))

    with settings.override(cache_dir=cache_dir):
        config = autotune(product, [(256, 250), (250, 256)])
        assert config.schedule["tile"] == (96, 128, 64)
        assert autotune.load(op.matmul, (256, 256, 250)).source == "default"
    pipeline.forget_plans()


def test_inputs_that_are_one_view_of_a_tensor_are_operands_of_their_own(cache_dir: Path) -> None:
    product = op.matmul(normal(8, 16), normal(16, 64))
    tensor = product[0:4] - op.reshape(product, (2, 4, 64))[0] * 2.0
    structure, compiler = planning.as_planned(tensor.structure).structure, compilers.kernel_compiler()
    call = kernel_launches(launches_of(planning.program_of(structure), structure, compiler))[-1].call
    (first, _), (second, _), _ = call.arguments
    assert first == second
    problem = tuning_problem(call, compiler)
    case = problem.build(problem.space.default)
    bench = CpuBench(case.workload)
    assert bench.check(bench.load(case.launches, case.temporaries)) is None


def test_a_convolution_over_packed_weights_is_not_taken_apart() -> None:
    """Its operations one by one would read the weights that these were made of."""
    image, weights = normal(1, 16, 12, 12), op.constant(normal(16, 16, 3, 3))
    tensor = op.tanh(op.conv2d(image, weights, padding=1))
    structure, compiler = planning.as_planned(tensor.structure).structure, compilers.kernel_compiler()
    call = kernel_launches(launches_of(planning.program_of(structure), structure, compiler))[-1].call
    space = tuning_problem(call, compiler).space
    assert space.objections(space.default.replace(fusion=False)) == ("knob fusion",)
