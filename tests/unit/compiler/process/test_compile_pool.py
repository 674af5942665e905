"""Candidates that compile in other processes: the same code, and a compiler that breaks breaks nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.probes.broken_compiler import FAULT
from tessera import op
from tessera.backend.contract import KernelObject
from tessera.compiler.device import compilers
from tessera.compiler.process.pool import CompileJob, CompilePool
from tessera.compiler.tune.candidates import Candidates
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import CompileError
from tessera.lazy.threads import worker_count
from tessera.tuning.measure.forkserver_client import Channel

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    made = CompilePool()
    yield made
    made.close()


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilePool]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = CompilePool(workers=2, limit_s=30.0, module="bench.probes.broken_compiler")
    yield made
    made.close()


def job() -> CompileJob:
    compiler = compilers.kernel_compiler()
    (launch,) = launches_of_operator(op.softmax, (8, 128), None)
    return CompileJob(launch.subject.spec, launch.schedule, compiler.target)


def test_there_is_a_process_for_each_processor_and_no_more() -> None:
    assert CompilePool().workers == len(os.sched_getaffinity(0))
    assert CompilePool(workers=3).workers == 3


def test_the_code_is_that_of_this_process(pool: CompilePool) -> None:
    given = job()
    compiler = compilers.kernel_compiler()
    (launch,) = launches_of_operator(op.softmax, (8, 128), None)
    here = compiler.backend.compile(compiler.tile_ir(launch.subject, launch.schedule), compiler.target, keep=False)
    for made in pool.objects([given] * 3):
        assert isinstance(made, KernelObject)
        assert made.code == here.code


def test_nothing_to_compile_needs_no_process() -> None:
    assert CompilePool(module="no.such.module").objects([]) == []


@pytest.mark.parametrize(
    ("fault", "said"), [("abort", "crashed: killed by SIGABRT"), ("nonsense", "nonsense"), ("hang", "within 5 s")]
)
def test_a_compiler_that_breaks_is_the_problem_of_one_job(breaking: CompilePool, fault: str, said: str) -> None:
    right = job()
    (first,) = breaking.objects([right])
    assert isinstance(first, KernelObject)
    if fault == "hang":
        breaking._limit_s = 5.0  # a compiler that hangs is waited for so long
    broken = right._replace(schedule=right.schedule.replace(**{FAULT: fault}))
    before, failed, after = breaking.objects([right, broken, right])
    assert isinstance(before, KernelObject)
    assert isinstance(after, KernelObject)
    assert isinstance(failed, CompileError)
    assert said in failed.message


def test_ctrl_c_does_not_wait_for_a_compiler_that_hangs(breaking: CompilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    right = job()
    breaking.objects([right])
    hanging = right._replace(schedule=right.schedule.replace(**{FAULT: "hang"}))
    ask = Channel.ask

    def interrupted(channel: Channel, body: bytes, limit_s: float) -> bytes:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return ask(channel, body, limit_s)

    monkeypatch.setattr(Channel, "ask", interrupted)
    breaking._limit_s = 600.0
    with pytest.raises(KeyboardInterrupt):
        breaking.objects([hanging, hanging])
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert isinstance(breaking.objects([right])[0], KernelObject)


def test_candidates_are_compiled_together_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compilers.kernel_compiler()
    (launch,) = launches_of_operator(op.softmax, (64, 256), None)
    problem = launch.subject.problem(launch.call.shaped.extents, worker_count())
    asked: list[int] = []
    objects = CompilePool.objects

    def counted(pool: CompilePool, jobs: Sequence[CompileJob]) -> list[KernelObject | CompileError]:
        asked.append(len(jobs))
        return objects(pool, jobs)

    monkeypatch.setattr(CompilePool, "objects", counted)
    candidates = Candidates(launch.call, compiler)
    schedules = list(compiler.space(launch.subject, problem).candidates())[:3]
    candidates.prepare(schedules)
    cases = [candidates.build(schedule) for schedule in schedules]
    assert asked[0] == len(schedules)
    assert sum(asked[1:]) == 0
    assert len({case.workload.key for case in cases}) == 1
