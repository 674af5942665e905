"""Tables of another machine: its facts are stored beside them, and their problems are posed for it anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.suites import tuning as suite
from bench.tuning import machines
from bench.tuning.predictions import problem_of
from bench.tuning.table import TABLES, read
from tessera import op
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.errors import CacheFormatError
from tessera.scheduling.language.knobs import Space
from tessera.target import Target, detect
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.store.processors import arch_of

ZEN4 = TABLES / "amd-epyc-family-25-model-17"
SOFTMAX = ZEN4 / "softmax-fp32-4096x128-1t.jsonl.gz"


def test_a_cpu_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    machines.save(detect(), tmp_path)
    assert machines.load(tmp_path) == detect()
    assert machines.load(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "cpu"}'])
def test_a_file_that_describes_no_cpu_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / machines.NAME).write_text(text)
    with pytest.raises(CacheFormatError):
        machines.load(tmp_path)


def test_recorded_tables_say_which_machine_recorded_them() -> None:
    machine = machines.load(ZEN4)
    assert machine is not None
    assert all(table.target == machine for table in suite.load(1, ZEN4.parent) if table.about.cpu == machine.name)


def test_a_problem_is_posed_for_the_machine_of_its_table() -> None:
    table = read(SOFTMAX)
    posed, machine = problem_of(table), machines.load(ZEN4)
    assert machine is not None
    assert posed.identity == table.about.identity
    assert posed.identity.arch == arch_of(machine)  # where the file has LLVM's name
    assert isinstance(posed.space, Space)
    assert set(posed.space.candidates()) == set(table.seconds)
    assert posed.space.default in table.seconds
    assert posed.work is not None  # known to who poses a problem only, and not to a table
    assert bool(posed.absent) == (detect() != machine.with_core(None))


def test_kernels_of_two_machines_are_told_apart() -> None:
    target = machines.load(ZEN4)
    assert target is not None
    there, here = CompilerBackend(DeviceCompiler(target, LLVMBackend())), CompilerBackend()
    targets = [_target(backend.subject(op.matmul, (144, 160, 112), None)) for backend in (there, here, there)]
    assert targets == [target, detect(), target]


def _target(posed: TuningProblem) -> Target:
    assert isinstance(posed.space, Space)
    found = posed.space.problem.target
    assert isinstance(found, Target)
    return found
