"""Families are the folders of `tessera.scheduling.families`: one more is found, with its knobs, and no other file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tessera.scheduling.families
from tessera import op, target
from tessera.backend.registry import cpu_backend
from tessera.compiler.bind.launches import Choice
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import CompileError, ScheduleError, UnsupportedTargetError
from tessera.ir.parsing import parse
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.runtime.plans.calling import call
from tessera.scheduling.families import registry
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.families.family import Family
from tessera.scheduling.families.ordering import keeping_order
from tessera.scheduling.families.registry import families, family_of_region, gpu_model, kernel_family, kernels_on
from tessera.scheduling.lowering.schedule_writer import kernel_of
from tessera.scheduling.passes import lowered_kernel

CACHED = (registry.families, registry._by_class, registry._models)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """The family of the folder `toys`, as if it stood beside the others."""
    path = [*tessera.scheduling.families.__path__, str(Path(__file__).parent / "toys")]
    monkeypatch.setattr(tessera.scheduling.families, "__path__", path)
    for each in CACHED:
        each.cache_clear()
    yield next(family for family in families() if family.name == "toy")
    monkeypatch.undo()
    for each in CACHED:
        each.cache_clear()


def problem(family: Family, m: int, n: int, workers: int = 1) -> Any:
    return family.pose(family.spec(), target.detect())({"m": m, "n": n}, workers)


def test_every_folder_has_a_family_with_classes_of_its_own() -> None:
    assert [each.name for each in families()] == [
        "attention",
        "attention-gradient",
        "convolution",
        "packing",
        "paged-attention",
        "contraction",
        "map-reduce",
        "rows-and-columns",
        "window",
    ]
    classes = [each for family in families() for each in (family.spec, family.problem)]
    assert len(set(classes)) == len(classes)
    assert all(kernel_family(object.__new__(each)) is not None for each in classes)


def test_a_family_is_one_folder(toy: Family) -> None:
    assert kernel_family(toy.spec()) is toy
    backend, x = cpu_backend(), torch.randn(13, 37)
    space = toy.space(problem(toy, 13, 37))
    schedules = list(space.candidates())
    assert {schedule["ahead"] for schedule in schedules} == {0, 4}  # 16 rows do not follow
    for schedule in schedules:
        kernel = backend.compile(toy.lower(toy.spec(), schedule, target.detect()), target.detect())
        found = torch.full((13, 37), torch.nan)
        call(backend.load(kernel), [x, found])
        torch.testing.assert_close(found, x.cumsum(0))


def test_its_kernels_are_written_and_lowered_as_schedule_ir(toy: Family) -> None:
    spec, machine = toy.spec(), target.detect()
    (read,) = parse(str(kernel_of(spec, toy.name, toy.start(problem(toy, 13, 37)), {"m": 13, "n": 37}))).ops
    assert isinstance(read, ScheduleKernelOp)
    assert str(lowered_kernel(read, machine)) == str(toy.lower(spec, toy.start(problem(toy, 13, 37)), machine))


def test_its_knobs_are_checked_estimated_and_kept_in_order_by_their_declaration_alone(toy: Family) -> None:
    posed = problem(toy, 13, 37)
    space = toy.space(posed)
    with pytest.raises(ScheduleError, match="ahead"):
        space.check(space.default.replace(ahead=1000))
    assert space.violations(space.default.replace(ahead=16)) == ("ahead-within-matrix",)
    model = RooflineModel(None, target.detect())
    assert model.estimate(posed, space.default).seconds > 0
    assert [each.seconds for each in model.estimates(posed, list(space.candidates()))]
    assert keeping_order(space).size == space.size


def test_the_compiler_runs_its_kernels_under_every_value_of_its_knob(toy: Family) -> None:
    compiler, shape = DeviceCompiler(target.detect(), cpu_backend()), (13, 37)
    (launch,) = launches_of_operator(op.exp, shape, "fp32")
    subject = launch.subject.step(launch.call.item, toy.spec())
    posed = subject.problem({"m": 13, "n": 37}, 1)
    space, x = compiler.space(subject, posed), torch.randn(shape)
    assert compiler.default_schedule(subject, posed) in list(space.candidates())
    for schedule in space.candidates():
        assert compiler.permits(subject, posed, schedule)
        found = torch.full(shape, torch.nan)
        call(compiler.planner.kernel(Choice(subject, schedule, 1, "given")).code.loaded, [x, found])
        torch.testing.assert_close(found, x.cumsum(0))
    assert not compiler.permits(subject, posed, space.default.replace(ahead=16))


def test_kernels_that_no_family_computes_are_refused_by_name() -> None:
    with pytest.raises(CompileError, match="no family computes kernels of 'tree'") as caught:
        family_of_region("tree")
    assert (
        "there are attention, attention_gradient, column, contraction, convolution, paged_attention, row, "
        "rows_and_columns, window" in str(caught.value)
    )


def test_a_family_without_kernels_for_gpus_says_so(toy: Family) -> None:
    with pytest.raises(UnsupportedTargetError, match="running sums have no kernel for GPUs yet"):
        kernels_on(toy.spec(), target.gpu("sm90"))
    with pytest.raises(KeyError):
        gpu_model(problem(toy, 3, 5))
