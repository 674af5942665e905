"""A session that cannot begin leaves nothing on, whatever it is that fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tessera import profile
from tessera.lazy import evaluation
from tessera.lazy import node as nodes
from tessera.profiling.recording import facts, instrumentation
from tessera.profiling.ring import recorder
from tessera.profiling.ring.draining import Drain
from tessera.profiling.sampling.sampling import Sampling
from tessera.profiling.session import sessions, torch_operators
from tests.unit.profiling.support import run, two_step_plan

ACTIVITIES = ("cpu", "power", "torch")


class RefusedError(Exception):
    """What the machine says."""


def refuse(*_: Any) -> None:
    raise RefusedError


@pytest.mark.parametrize(
    ("place", "name"),
    [(recorder, "start"), (Drain, "start"), (Sampling, "begin"), (torch_operators.OperatorMode, "__enter__")],
)
def test_what_fails_half_way_leaves_nothing_on(place: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, maker = facts._kept, nodes.make
    with monkeypatch.context() as patch:
        patch.setattr(place, name, refuse)
        failed = profile.session(activities=ACTIVITIES)
        with pytest.raises(RefusedError):
            failed.__enter__()
    assert (sessions.count(), failed.active, recorder.recording()) == (0, False, False)
    assert (instrumentation.recordings, evaluation.before_run, nodes.make) == ([], None, maker)
    assert facts._kept == kept
    for thread in threading.enumerate():
        if thread.name in ("tessera-sampling", "tessera-profile-drain"):
            thread.join(60)
            assert not thread.is_alive()
    with profile.session(activities=ACTIVITIES) as session:
        run(two_step_plan())
    assert session.recorded == 2


def test_a_session_that_fails_to_begin_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with profile.session() as outer:
        with monkeypatch.context() as patch:
            patch.setattr(torch_operators.OperatorMode, "__enter__", refuse)
            with pytest.raises(RefusedError):
                profile.session(activities=ACTIVITIES).__enter__()
        run(two_step_plan())
    assert outer.recorded == 2
