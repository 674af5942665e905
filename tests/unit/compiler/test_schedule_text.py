"""Every kernel that the compilers lower is one that Schedule IR says: printed, parsed and lowered it is the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.backend.registry import cpu_backend
from tessera.compiler import planning
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.gpu import gpu_sites
from tessera.dtypes import fp32, int8
from tessera.ir.parsing import parse, print_module
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.scheduling.families.packing.lowering import PackingProblem
from tessera.scheduling.families.packing.lowering import space as packing_space
from tessera.scheduling.families.packing.operand import packing_spec
from tessera.scheduling.families.registry import kernel_family, lower
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ChosenSchedule
from tessera.scheduling.lowering.schedule_writer import kernel_of
from tessera.scheduling.lowering.spec import Panels, Spec
from tessera.scheduling.passes import lowered_kernel
from tessera.target import Target
from tests.baseline.programs import OPERATORS, PROGRAMS
from tests.unit.scheduling.problems import AMX
from tests.whole import some


def expect_same(launch: Launch, device: Target) -> None:
    """Compares the Tile IR of a launch with that of its text."""
    expect_same_kernel(launch.subject.spec, launch.schedule, launch.call.shaped.extents, device)


def expect_same_kernel(spec: Spec, schedule: Schedule, extents: Mapping[str, int], device: Target) -> None:
    kernel = kernel_of(spec, kernel_family(spec).name, schedule, extents)
    text = print_module(ModuleOp([kernel]))
    (read,) = parse(text).ops
    assert isinstance(read, ScheduleKernelOp)
    assert print_module(lowered_kernel(read, device)) == print_module(lower(spec, schedule, device)), text


@pytest.mark.parametrize("program", some(PROGRAMS))
def test_kernels_of_cpus(program: str) -> None:
    compiler = DeviceCompiler(AMX, cpu_backend())
    for drawn in (False, True):
        if drawn:
            compiler.forget_schedules()
            compiler.tuned = lambda compiler, call, problem: ChosenSchedule(
                compiler.space(compiler.subject(call), problem).draw(random.Random(program)), "given"
            )
        structure = planning.as_planned(PROGRAMS[program]().structure).structure
        launches = launches_of(planning.program_of(structure), structure, compiler)
        assert launches
        for launch in launches:
            expect_same(launch, AMX)


@pytest.mark.parametrize(("operator", "name"), some(product(OPERATORS, ("sm90", "gfx942")), lambda case: case[0]))
def test_kernels_of_gpus(operator: str, name: str) -> None:
    function, shapes, dtype = OPERATORS[operator]
    device = target.gpu(name)
    for site in gpu_sites(function, shapes, dtype, device):
        expect_same(site.launch, device)


@pytest.mark.parametrize("panels", [Panels(32), Panels(16, 4)])
def test_kernels_that_pack_for_all_workers(panels: Panels) -> None:
    """They are steps of products under certain schedules, which programs may not draw."""
    dtype = fp32 if panels.group == 1 else int8
    spec = packing_spec("packing", dtype, dtype, panels, {"k": (40, 70), "n": (70, 1)})
    problem = PackingProblem(70, 40, 1, panels.width, dtype, False, AMX, 2)
    expect_same_kernel(spec, packing_space(problem).default, {"k": 40, "n": 70}, AMX)
