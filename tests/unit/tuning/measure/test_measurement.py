"""Measuring in a worker process: what candidates do there is a label here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.errors import TuneFailedError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.clock import CacheFlush, ContentionMeter, time_batch
from tessera.tuning.measure.forkserver_client import Channel, WorkerDiedError
from tessera.tuning.measure.measurement import Effort, SubprocessMeasurer
from tessera.tuning.measure.protocol import CandidateCheck, Load, read_request
from tessera.tuning.measure.trial import Trial
from tessera.tuning.measure.workload import Case, KernelCall, OperandSpec, Workload
from tests.unit.tuning.measure import kernels

BRIEF = Effort(rounds=3, sample_s=2e-4, lag=10.0, limit_s=1.0)


@pytest.fixture(scope="module")
def measurer() -> Iterator[SubprocessMeasurer]:
    made = SubprocessMeasurer()
    yield made
    made.close()


def measure(measurer: SubprocessMeasurer, *cases: Case) -> list[Trial]:
    return measurer.measure([(Schedule(number=number), case) for number, case in enumerate(cases)], BRIEF)


def outcomes(trials: list[Trial]) -> list[str]:
    return [trial.outcome for trial in trials]


def test_right_candidates_are_timed_in_the_order_given(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    trials = measure(measurer, *[kernels.case(workload, kernels.scale())] * 3)
    assert [trial.schedule["number"] for trial in trials] == [0, 1, 2]
    for trial in trials:
        assert trial.outcome == "ok"
        assert trial.timing is not None
        assert 0 < trial.timing.low_s <= trial.timing.median_s <= trial.timing.high_s < 60
        assert trial.timing.taken >= 2


def test_no_cases_need_no_worker() -> None:
    assert SubprocessMeasurer().measure([], BRIEF) == []


def test_wrong_result_is_labelled_and_never_timed(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    wrong, right = measure(
        measurer, kernels.case(workload, kernels.scale("3.0")), kernels.case(workload, kernels.scale())
    )
    assert (wrong.outcome, wrong.timing) == ("wrong", None)
    assert "reference" in wrong.detail
    assert right.outcome == "ok"


def test_write_beside_the_output_is_wrong_and_repaired(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    trials = measure(measurer, kernels.case(workload, kernels.overrunning()), kernels.case(workload, kernels.scale()))
    assert outcomes(trials) == ["wrong", "ok"]
    assert "next to operand 1" in trials[0].detail


def test_candidate_that_corrupts_its_input_does_not_harm_the_next(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    backwards = Case(workload, (KernelCall(kernels.scale(), kernels.descriptors(workload, 1, 0)),))
    trials = measure(measurer, backwards, kernels.case(workload, kernels.scale()))
    assert outcomes(trials) == ["crashed", "ok"]
    assert "SIGSEGV" in trials[0].detail


def test_crash_costs_only_the_candidate(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    right = kernels.case(workload, kernels.scale())
    trials = measure(measurer, right, kernels.case(workload, kernels.crashing()), right)
    assert outcomes(trials) == ["ok", "crashed", "ok"]
    assert "SIGSEGV" in trials[1].detail


def test_crash_while_being_timed_costs_only_the_candidate(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    right = kernels.case(workload, kernels.scale())
    trials = measure(measurer, right, kernels.case(workload, kernels.crashing_at_call(3)), right)
    assert outcomes(trials) == ["ok", "crashed", "ok"]


def test_hang_is_ended_after_the_limit(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling(limit_s=1.5)
    begin = time.monotonic()
    hung = measure(measurer, kernels.case(workload, kernels.hanging()))
    assert outcomes(hung) == ["timeout"]
    assert "1.5 s" in hung[0].detail
    assert time.monotonic() - begin >= 1.5
    assert outcomes(measure(measurer, kernels.case(kernels.doubling(), kernels.scale()))) == ["ok"]


def test_memory_that_cannot_be_had_is_labelled(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    greedy = replace(kernels.case(workload, kernels.scale()), temporaries=(OperandSpec((1 << 46,), (1,), "fp32"),))
    assert outcomes(measure(measurer, greedy, kernels.case(workload, kernels.scale()))) == ["out_of_memory", "ok"]


def test_operands_that_do_not_fit_are_an_error() -> None:
    measurer = SubprocessMeasurer()
    huge = Workload((OperandSpec((1 << 46,), (1,), "fp32"),), ())
    with pytest.raises(TuneFailedError, match="operands"):
        measure(measurer, Case(huge, ()))


def test_output_of_a_candidate_does_not_disturb_the_replies(measurer: SubprocessMeasurer) -> None:
    assert outcomes(measure(measurer, kernels.case(kernels.doubling(), kernels.noisy()))) == ["ok"]


def test_workers_share_the_work(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    assert outcomes(measure(measurer, kernels.case(workload, kernels.scale(), workers=2))) == ["ok"]


def test_candidate_of_two_kernels_uses_its_temporaries(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    half, four = kernels.scale("0.5"), kernels.scale("4.0")
    temporary = workload.operands[0]
    launches = (
        KernelCall(half, kernels.descriptors(workload, 0, 2)),
        KernelCall(four, kernels.descriptors(workload, 2, 1)),
    )
    assert outcomes(measure(measurer, Case(workload, launches, (temporary,)))) == ["ok"]
    assert outcomes(measure(measurer, Case(workload, launches[::-1], (temporary,)))) == ["wrong"]


def test_scalars_stand_between_operands_and_temporaries(measurer: SubprocessMeasurer) -> None:
    plain = kernels.doubling()
    workload = Workload(plain.operands, plain.checks, scalars=(2**64 - 1, 7), time_limit_s=60.0)
    launches = (
        KernelCall(kernels.scale("1.0"), kernels.descriptors(workload, 0, 4)),
        KernelCall(kernels.scale("2.0"), kernels.descriptors(workload, 4, 1)),
    )
    assert outcomes(measure(measurer, Case(workload, launches, (plain.operands[0],)))) == ["ok"]


def test_cold_caches_give_one_call_a_sample(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling(cache="cold")
    (trial,) = measure(measurer, kernels.case(workload, kernels.scale()))
    assert trial.outcome == "ok"


def test_worker_that_died_idle_is_replaced(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    measure(measurer, kernels.case(workload, kernels.scale()))
    assert measurer.worker_pid is not None
    os.kill(measurer.worker_pid, signal.SIGKILL)
    os.waitid(os.P_PID, measurer.worker_pid, os.WEXITED | os.WNOWAIT)
    assert outcomes(measure(measurer, kernels.case(workload, kernels.scale()))) == ["ok"]


def test_worker_that_is_killed_while_it_makes_the_operands_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, killed, measurer = Channel.ask, list[int](), SubprocessMeasurer()

    def kill_the_first(channel: Channel, body: bytes, limit_s: float) -> bytes:
        if not killed:
            assert measurer.worker_pid is not None
            killed.append(measurer.worker_pid)
            os.kill(measurer.worker_pid, signal.SIGSEGV)
        return ask(channel, body, limit_s)

    monkeypatch.setattr(Channel, "ask", kill_the_first)
    assert outcomes(measure(measurer, kernels.case(kernels.doubling(), kernels.scale()))) == ["ok"]
    assert measurer.worker_pid not in (None, *killed)
    measurer.close()


_ORPHAN = """
import threading, time
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import SCREEN, SubprocessMeasurer
from tests.unit.tuning.measure import kernels
measurer = SubprocessMeasurer()
case = kernels.case(kernels.doubling(limit_s=600.0), kernels.hanging())
threading.Thread(target=lambda: measurer.measure([(Schedule(), case)], SCREEN), daemon=True).start()
while measurer.worker_pid is None:
    time.sleep(0.01)
print(measurer.worker_pid, flush=True)
time.sleep(600)
"""


def test_worker_does_not_outlive_a_killed_program() -> None:
    root = Path(__file__).parents[4]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", _ORPHAN]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
    assert program.stdout is not None
    worker = int(program.stdout.readline())
    # A fork of the server computes for so long only in the candidate's loop.
    looping = _eventually(lambda: any(seconds > 0.5 for pid, seconds in _running(worker).items() if pid != worker))
    program.kill()
    program.wait()
    program.stdout.close()
    assert looping
    assert _eventually(lambda: not _running(worker))


def _eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes true within ten minutes, which a busy machine may need some of."""
    deadline = time.monotonic() + 600
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _running(session: int) -> dict[int, float]:
    """The processes of a session, a fork server's and those that it has forked, with their processor seconds."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile
        state, of, ticks = fields[0], int(fields[3]), int(fields[11])
        if of == session and state != "Z":
            found[int(status.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def test_the_server_has_one_thread(measurer: SubprocessMeasurer) -> None:
    measure(measurer, kernels.case(kernels.doubling(), kernels.scale()))
    assert len(list(Path(f"/proc/{measurer.worker_pid}/task").iterdir())) == 1


def test_batch_makes_as_many_calls_as_fit() -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        time.sleep(1e-3)

    sample = time_batch(run, 0.02, ContentionMeter())
    assert sample.calls == calls - 1, "one call more, to warm up"
    assert 1 <= sample.calls <= 20
    assert sample.seconds >= 1e-3
    assert time_batch(run, 0.02, ContentionMeter(), CacheFlush()).calls == 1


def test_long_candidate_is_not_warmed_up_again() -> None:
    calls: list[int] = []
    time_batch(lambda: calls.append(1), 0.01, ContentionMeter(), estimate_s=1.0)
    assert len(calls) == 1


def test_contention_of_the_whole_machine_is_noticed() -> None:
    meter = ContentionMeter()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(0.3)
        meter.start()
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.5:
            torch.ones(10).sum()
        assert meter.contended(0.5)
    finally:
        for process in busy:
            process.kill()
            process.wait()


SCREENING = replace(BRIEF, one_by_one=True)


def test_one_by_one_a_trial_is_complete_before_the_next_is_loaded(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    codes = [kernels.scale(), kernels.scale("3.0"), kernels.crashing(), kernels.scale(), kernels.overrunning()]
    cases = [(Schedule(number=number), kernels.case(workload, code)) for number, code in enumerate(codes)]
    done: list[Trial] = []
    trials = measurer.measure(cases, SCREENING, done.append)
    assert outcomes(trials) == ["ok", "wrong", "crashed", "ok", "wrong"]
    assert done == trials
    for trial in (trials[0], trials[3]):
        assert trial.timing is not None
        assert trial.timing.taken >= 2
        assert trial.conditions is not None
        assert (trial.conditions.cache, trial.conditions.launch) == ("warm", "call")


def test_the_first_that_runs_is_what_others_are_compared_with(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    codes = [kernels.crashing(), kernels.scale(), kernels.scale()]
    cases = [(Schedule(number=number), kernels.case(workload, code)) for number, code in enumerate(codes)]
    assert outcomes(measurer.measure(cases, SCREENING)) == ["crashed", "ok", "ok"]


def test_a_candidate_that_breaks_the_one_beside_it_is_wrong(
    measurer: SubprocessMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = kernels.doubling()
    cases = [(Schedule(number=number), kernels.case(workload, kernels.scale())) for number in range(3)]
    sample = SubprocessMeasurer._sample
    second: list[int] = []

    def beside(self: SubprocessMeasurer, candidate: Any, effort: Effort) -> CandidateCheck | None:
        # What the second one writes is not seen in its own result, but in that of the first.
        number = candidate.schedule["number"]
        second[:] = [1] if number == 1 else [] if number == 2 else second
        if number == 0 and second:
            return CandidateCheck("crashed", "by another")
        return sample(self, candidate, effort)

    monkeypatch.setattr(SubprocessMeasurer, "_sample", beside)
    first, culprit, last = measurer.measure(cases, SCREENING)
    assert (first.outcome, culprit.outcome, last.outcome) == ("ok", "wrong", "ok")
    assert "is so no more beside it: crashed, by another" in culprit.detail


def test_a_crash_where_others_ran_before_is_tried_again_alone(
    measurer: SubprocessMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = kernels.doubling()
    right = kernels.case(workload, kernels.scale())
    ask, asked = Channel.ask, list[int]()

    def die_once(channel: Channel, body: bytes, limit_s: float) -> bytes:
        request = read_request(body)
        if isinstance(request, Load):
            asked.append(request.candidate)
            if len(asked) == 2:
                raise WorkerDiedError(-signal.SIGSEGV, "what the first one wrote")
        return ask(channel, body, limit_s)

    monkeypatch.setattr(Channel, "ask", die_once)
    assert outcomes(measure(measurer, right, right)) == ["ok", "ok"]
    assert asked[1] == asked[2], "it was loaded again"


def test_a_result_that_is_wrong_later_is_found_in_finals(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    spoiling = kernels.at_call(2, "store volatile float 0.0, ptr %out\n  ret void")
    spoilt, right = measure(measurer, kernels.case(workload, spoiling), kernels.case(workload, kernels.scale()))
    assert (spoilt.outcome, right.outcome) == ("wrong", "ok")
    assert "after it was timed" in spoilt.detail


def test_a_stray_write_while_it_is_timed_is_wrong(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    stray = kernels.at_call(
        2, "%b = getelementptr float, ptr %out, i64 %n\n  store volatile float 0.0, ptr %b\n  ret void"
    )
    trials = measure(measurer, kernels.case(workload, stray), kernels.case(workload, kernels.scale()))
    assert outcomes(trials) == ["wrong", "ok"]
    assert "next to operand 1 was overwritten while it was timed" in trials[0].detail


def test_the_process_that_breaks_is_replaced_by_a_fork(measurer: SubprocessMeasurer) -> None:
    workload = kernels.doubling()
    measure(measurer, kernels.case(workload, kernels.scale()))
    server = measurer.worker_pid
    broken = [kernels.case(workload, kernels.crashing()), kernels.case(workload, kernels.scale("3.0"))]
    assert outcomes(measure(measurer, *broken, kernels.case(workload, kernels.scale()))) == ["crashed", "wrong", "ok"]
    assert measurer.worker_pid == server
