"""Steps that are split, beside programs that want the cores: they run on the calling thread while that is faster."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

import pytest

from tessera.backend.llvm.machine_code import openmp
from tessera.backend.llvm.native import crowd_ir
from tessera.runtime.plans import native
from tests.unit.runtime.plans.kernels import words
from tests.unit.runtime.plans.test_plan import seen_by, witness

pytestmark = pytest.mark.skipif(not openmp.find().available, reason="no libgomp")

NEVER, LONG_NS = 2**62, 2**50
STEP_AT, WORK = 2, 6


@pytest.fixture
def crowd() -> Iterator[ctypes.Array[ctypes.c_int64]]:
    """The driver's words, as if one thread fitted in, and put back after the test. It does not look itself."""
    driver = native.driver()
    if driver.sequential or not driver.uses_openmp:
        pytest.skip("shares run one after the other here")
    seen = driver.crowd()
    before = list(seen)
    seen[crowd_ir.NEXT_LOOK], seen[crowd_ir.FITTING], seen[crowd_ir.WAITED] = NEVER, 1, 0
    yield seen
    seen[:] = before


def test_a_small_step_runs_alone_once_teams_were_waited_for(crowd: ctypes.Array[ctypes.c_int64]) -> None:
    plan = witness(2)
    assert [row[:2] for row in seen_by(plan, 2)] == [[0, 2], [1, 2]]
    (frame,) = plan.frames.idle
    step = words(frame.address, STEP_AT + 1)[STEP_AT]
    assert 0 < words(step, WORK + 1)[WORK] < LONG_NS
    assert crowd[crowd_ir.WAITED] > 0, "the first run is a team's, and timed"
    crowd[crowd_ir.WAITED] = LONG_NS
    assert [row[:2] for row in seen_by(plan, 2)] == [[0, 2], [1, 2]]
    assert crowd[crowd_ir.WAITED] == LONG_NS, "no team was waited for"


def test_a_step_whose_team_spares_more_than_it_is_waited_for_runs_as_a_team(
    crowd: ctypes.Array[ctypes.c_int64],
) -> None:
    plan = witness(2)
    seen_by(plan, 2)
    (frame,) = plan.frames.idle
    work = ctypes.c_int64.from_address(words(frame.address, STEP_AT + 1)[STEP_AT] + 8 * WORK)
    work.value = LONG_NS
    crowd[crowd_ir.WAITED] = LONG_NS // 4
    assert [row[:2] for row in seen_by(plan, 2)] == [[0, 2], [1, 2]]
    assert crowd[crowd_ir.WAITED] < LONG_NS // 4, "it is the mean of what was and what is"
    assert work.value < LONG_NS


def test_where_threads_fit_in_nothing_is_timed(crowd: ctypes.Array[ctypes.c_int64]) -> None:
    crowd[crowd_ir.FITTING] = 2
    plan = witness(2)
    seen_by(plan, 2)
    (frame,) = plan.frames.idle
    assert words(words(frame.address, STEP_AT + 1)[STEP_AT], WORK + 1)[WORK] == 0
    assert crowd[crowd_ir.WAITED] == 0


def test_a_step_that_gets_more_to_do_becomes_a_teams_again(crowd: ctypes.Array[ctypes.c_int64]) -> None:
    """As lengths grow that data say: what once was little is not believed for ever."""
    plan = witness(2)
    seen_by(plan, 2)
    (frame,) = plan.frames.idle
    work = ctypes.c_int64.from_address(words(frame.address, STEP_AT + 1)[STEP_AT] + 8 * WORK)
    work.value = 1
    crowd[crowd_ir.WAITED] = LONG_NS
    for _ in range(3):
        seen_by(plan, 2)
    assert 1 < work.value < LONG_NS
    assert crowd[crowd_ir.WAITED] == LONG_NS, "they all ran alone"
    work.value = LONG_NS // 4
    seen_by(plan, 2)
    assert work.value < LONG_NS // 4, "what is less is believed at once"


@pytest.mark.skipif(not os.path.exists("/proc/uptime"), reason="not Linux")
def test_a_look_says_how_many_threads_fit_in_and_old_waits_fade(crowd: ctypes.Array[ctypes.c_int64]) -> None:
    look = native.driver().look
    crowd[crowd_ir.WAITED], crowd[crowd_ir.PROCESSORS] = 1600, 2**20
    crowd[4] = 0
    look(1)
    assert crowd[crowd_ir.NEXT_LOOK] == 1 + crowd_ir.LOOK_NS
    assert crowd[crowd_ir.WAITED] == 1500
    assert crowd[crowd_ir.FITTING] == 1, "the first look has nothing to compare with"
    time.sleep(0.03)
    crowd[crowd_ir.FITTING] = 0
    look(2)
    # Of a million processors those that are there were idle or our own at most; hundredths of a second are coarse.
    assert 1 <= crowd[crowd_ir.FITTING] <= 2 * (os.cpu_count() or 1)


@pytest.mark.skipif(not os.path.exists("/proc/loadavg"), reason="not Linux")
def test_after_a_rest_it_counts_what_wants_to_run_now(crowd: ctypes.Array[ctypes.c_int64]) -> None:
    """As a process finds the machine that takes turns with others, which had all of it meanwhile."""
    look, processors = native.driver().look, 2**20
    crowd[crowd_ir.PROCESSORS], crowd[4] = processors, 0
    look(1)
    told = []
    for passed in (crowd_ir.LOOK_NS // 2, 3 * crowd_ir.STALE_NS):
        crowd[4] -= passed  # as if that were gone since, in which no processor was idle, nor this process's
        time.sleep(0.002)
        look(2)
        told.append(crowd[crowd_ir.FITTING])
    assert told[0] <= 2 * (os.cpu_count() or 1), "what is not long ago counts"
    assert told[1] > processors - 10_000, "after a rest it is what runs at this moment"


def test_without_processors_to_compare_with_nothing_is_looked_at(crowd: ctypes.Array[ctypes.c_int64]) -> None:
    crowd[crowd_ir.PROCESSORS], crowd[crowd_ir.WAITED] = 0, 1600
    native.driver().look(5)
    assert crowd[crowd_ir.NEXT_LOOK] == 5 + crowd_ir.LOOK_NS
    assert (crowd[crowd_ir.FITTING], crowd[crowd_ir.WAITED]) == (1, 1600)
