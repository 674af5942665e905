"""Ending a search by hand: q, Ctrl-C once, Ctrl-C twice; real terminals, real signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import FINAL, SCREEN, Effort
from tessera.tuning.measure.trial import Trial
from tessera.tuning.search.interruption import Interruption, SearchInterrupted
from tessera.tuning.search.search import SearchLimits, SearchResult, search
from tests.unit.tuning.support import SPACE, misled_seconds, synthetic_seconds, timing


def test_first_interrupt_asks_second_aborts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as asked:
        assert asked.reason() == ""
        signal.raise_signal(signal.SIGINT)
        assert asked.reason() == "Ctrl-C was pressed"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_users_own_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with Interruption() as asked:
            signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
        assert asked.reason() == ""
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    reasons: list[str] = []

    def work() -> None:
        with Interruption() as asked:
            reasons.append(asked.reason())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reasons == [""]


def interrupted_at(effort: Effort, calls: int) -> SearchResult:
    """A search in which Ctrl-C is pressed while a measurement of an effort, the so many-th, takes two minutes."""
    before = 0
    asked = Interruption()

    def evaluate(schedules: Sequence[Schedule], given: Effort) -> list[Trial]:
        nonlocal before
        with asked.breaking_off():
            before += given is effort
            if given is effort and before == calls:
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
                time.sleep(600.0)
            return [Trial(schedule, "ok", timing(synthetic_seconds(schedule))) for schedule in schedules]

    with asked:
        return search(SPACE, misled_seconds, evaluate, SearchLimits(max_trials=24), stop=asked.reason)


@pytest.mark.parametrize(("effort", "calls"), [(SCREEN, 2), (FINAL, 1)], ids=["screening", "finals"])
def test_ctrl_c_does_not_wait_for_what_is_being_measured(effort: Effort, calls: int) -> None:
    begin = time.monotonic()
    result = interrupted_at(effort, calls)
    assert time.monotonic() - begin < 300.0
    assert result.reason == "Ctrl-C was pressed"
    assert result.best in result.trials


def test_ctrl_c_aborts_where_nothing_was_measured() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_at(SCREEN, 1)


def test_what_begins_after_ctrl_c_is_broken_off_at_once() -> None:
    with Interruption() as asked:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SearchInterrupted), asked.breaking_off():
            pytest.fail("it ran")


PROGRAM = """
import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tessera.tuning.search.interruption import Interruption
before = termios.tcgetattr(0)
with Interruption() as asked:
    print("ready", flush=True)
    end = time.monotonic() + 300
    while not asked.reason() and time.monotonic() < end:
        time.sleep(0.01)
print(asked.reason(), termios.tcgetattr(0) == before, flush=True)
"""


@pytest.mark.parametrize(("keys", "said"), [(b"xq", "q was pressed True"), (b"\x03", "Ctrl-C was pressed True")])
def test_keys_of_a_terminal(keys: bytes, said: str) -> None:
    ours, theirs = pty.openpty()
    try:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        os.write(ours, keys)
        output, _ = program.communicate(timeout=600)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (program.returncode, output) == (0, said + "\n")


def test_search_asked_to_stop_keeps_the_best_so_far_without_finals() -> None:
    efforts: list[Effort] = []

    def evaluate(schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
        efforts.append(effort)
        return [Trial(schedule, "ok", timing(synthetic_seconds(schedule))) for schedule in schedules]

    result = search(
        SPACE,
        misled_seconds,
        evaluate,
        SearchLimits(max_trials=40),
        clock=lambda: 0.0,
        stop=lambda: "q was pressed" if len(efforts) >= 2 else "",
    )
    assert result.reason == "q was pressed"
    assert len(efforts) == 2
    assert FINAL not in efforts
    assert result.best.seconds == min(trial.seconds for trial in result.trials)


GONE = """
import fcntl, os, signal, termios, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tessera.tuning.search.interruption import Interruption
with Interruption() as asked:
    print("ready", flush=True)
    while os.isatty(0):
        time.sleep(0.01)
    reason = asked.reason()
print(repr(reason), flush=True)
"""


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", GONE], stdin=theirs, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    os.close(theirs)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    os.close(ours)
    output, _ = program.communicate(timeout=600)
    assert (program.returncode, output) == (0, "''\n")
