"""Answers that take long: 503 with their progress until they are there, made once, and pages that ask again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tessera.errors import ProfileError
from tessera.profiling.trace.table import Trace
from tessera.viewer import waiting
from tessera.viewer.app import Viewer
from tessera.viewer.pages import columns
from tessera.viewer.runs import Run, run_of
from tessera.viewer.waiting import BusyError, PendingAnswers
from tests.unit.viewer.asking import asked
from tests.unit.viewer.browsing import PATIENCE_MS, Show
from tests.unit.viewer.made import whole_run

AT_ONCE = 0.0
"""A limit that everything exceeds."""


class Held:
    """A run that cannot be read until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.reads = 0

    def read(self) -> Trace:
        self.reads += 1
        assert self.let_go.wait(60)
        return whole_run()


def joined() -> None:
    """Waits for the threads that make answers."""
    for thread in threading.enumerate():
        if thread.daemon and "_make" in thread.name:
            thread.join(60)


def test_a_server_says_how_far_columns_are_and_makes_them_once() -> None:
    held = Held()
    runs = [Run("a", held.read)]
    viewer = Viewer(lambda: runs, limit_s=AT_ONCE)
    for _ in range(3):
        status, headers, body = asked(viewer, "/api/columns?run=0")
        assert (status, headers["Retry-After"]) == (503, "0")
        assert json.loads(body)["error"]["progress"] is None  # it is being read
    held.let_go.set()
    joined()
    status, _, body = asked(viewer, "/api/columns?run=0")
    assert (status, body) == (200, columns.packed(whole_run())[0])
    assert held.reads == 1


def test_columns_tell_their_progress_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(waiting, "tell", told.append)
    columns.packed(whole_run())
    assert told == sorted(told)
    assert told[0] == 0 < told[-1] < 1
    assert len(told) > 3


def test_what_an_answer_tells_reaches_who_asks_meanwhile() -> None:
    told, let_go = threading.Event(), threading.Event()

    def made() -> str:
        waiting.tell(0.25)
        told.set()
        assert let_go.wait(60)
        return "made"

    answers = PendingAnswers(AT_ONCE)
    with pytest.raises(BusyError):
        answers.answer("key", made)
    assert told.wait(60)
    with pytest.raises(BusyError) as raised:
        answers.answer("key", made)
    assert raised.value.progress == 0.25
    let_go.set()
    joined()
    assert answers.answer("key", lambda: "another") == "made"
    waiting.tell(0.5)  # in a thread that makes no answer: nobody is told


def asked_too_early(answers: PendingAnswers, make: Callable[[], Any]) -> None:
    """Asks while the answer is being made, and waits until it is there."""
    let_go = threading.Event()

    def slowly() -> Any:
        assert let_go.wait(60)
        return make()

    with pytest.raises(BusyError):
        answers.answer("key", slowly)
    let_go.set()
    joined()


def fails() -> None:
    raise ProfileError("damaged")


def test_what_goes_wrong_meanwhile_is_told_once_and_then_tried_again() -> None:
    answers = PendingAnswers(AT_ONCE)
    asked_too_early(answers, fails)
    with pytest.raises(ProfileError, match="damaged"):
        answers.answer("key", fails)
    asked_too_early(answers, lambda: "now it is there")
    assert answers.answer("key", fails) == "now it is there"


def test_an_answer_that_nobody_asked_for_in_time_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = PendingAnswers(AT_ONCE)
    asked_too_early(answers, lambda: "old")
    monkeypatch.setattr(waiting, "_KEPT_S", 0.0)
    asked_too_early(answers, lambda: "new")
    monkeypatch.undo()
    assert answers.answer("key", lambda: "another") == "new"


def test_without_a_limit_the_thread_that_asks_makes_the_answer() -> None:
    assert PendingAnswers(float("inf")).answer("key", threading.get_ident) == threading.get_ident()


def test_a_page_tells_the_progress_and_shows_the_answer_when_it_is_there(show: Show) -> None:
    shown = show(whole_run())
    left: list[float | None] = [None, 0.3]

    def busy(route: Any) -> None:
        if not left:
            route.continue_()
            return
        error: dict[str, Any] = {"code": "E_PROFILE", "message": "busy", "hints": [], "progress": left[0]}
        headers = {"Retry-After": "1"}
        route.fulfill(status=503, headers=headers, json={"error": error})
        left.pop(0)

    shown.page.route("**/api/columns?*", busy)
    shown.page.evaluate("location.hash = 'page=timeline'")
    main = shown.page.locator("main")
    main.filter(has_text="the server still computes this").wait_for(timeout=PATIENCE_MS)
    main.filter(has_text="30 %").wait_for(timeout=PATIENCE_MS)
    shown.await_page("timeline")
    assert sum(shown.page.evaluate("window.tessera.counts()")["lanes"]) == 400


def test_files_are_waited_for() -> None:
    run = run_of(whole_run(), "run")
    viewer = Viewer(lambda: [run], limit_s=AT_ONCE)
    assert asked(viewer, "/api/chrome?run=0")[0] == 200
    assert asked(viewer, "/api/csv?run=0&table=kernels")[0] == 200
