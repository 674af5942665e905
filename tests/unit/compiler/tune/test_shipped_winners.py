"""Winners that ship are found by cores of the same facts, whatever these are called, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from bench.tuning import machines
from bench.tuning.table import TABLES
from tessera import op
from tessera.backend.registry import cpu_backend
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.target import MemoryLevel, Target
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.model.learned import Learned
from tessera.tuning.store.database import SHIPPED, TuningDatabase

RECORDED = machines.load(TABLES / "amd-epyc-family-25-model-17")
assert RECORDED is not None
ZEN4 = RECORDED
CORE = ZEN4.core
assert CORE is not None

SMALL = tuple(
    replace(level, size_bytes=16 << 20, shared_by=1) if level.name == "L3" else level for level in ZEN4.memory
)
LARGER = (MemoryLevel("L1", 48 << 10, 64, 1), *ZEN4.memory[1:])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def posed(machine: Target) -> TuningProblem:
    """A problem that winners ship for, posed for a machine that need not be this one."""
    return CompilerBackend(DeviceCompiler(machine, cpu_backend())).subject(op.matmul, (512, 512, 512), "fp32")


@pytest.mark.parametrize(
    "machine",
    [
        replace(ZEN4, arch="x86-64-v4", name="Virtual CPU @ 2.0GHz", cores=1, processors=1, memory=SMALL),
        ZEN4.with_core(replace(CORE, cycle_s=9e-10, wake_s=0.03, loads_per_cycle=1, in_doubt=True)),
        ZEN4.with_core(None),
    ],
    ids=["another cloud", "busy", "nothing measured"],
)
def test_the_same_core_finds_what_ships(machine: Target) -> None:
    problem = posed(machine)
    found = TuningDatabase(SHIPPED.parent / "nothing", (), SHIPPED).lookup(problem.identity)
    assert found is not None
    assert (found.layer, found.entry.identity) == ("shipped", problem.identity)
    assert problem.space.objections(found.entry.schedule) == ()
    assert Learned.shipped().residual(problem) is not None


@pytest.mark.parametrize(
    "machine",
    [replace(ZEN4, memory=LARGER), ZEN4.with_core(replace(CORE, fma_per_cycle=2))],
    ids=["a larger L1", "twice the multiply-adds"],
)
def test_another_core_of_the_same_name_does_not(machine: Target) -> None:
    problem = posed(machine)
    assert TuningDatabase(SHIPPED.parent / "nothing", (), SHIPPED).lookup(problem.identity) is None
    assert Learned.shipped().residual(problem) is None
