"""Properties that are computed once, also in forks that are made while another thread computes them."""

from __future__ import annotations

import os
import signal
import threading
import warnings

from tessera.system.caching import cached_property
from tests.docs.snippets import ROOT


class Squares:
    """Something with a property that takes a while where it is told to."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.computed = 0
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    @cached_property
    def area(self) -> int:
        """The area."""
        self.computed += 1
        self.begun.set()
        assert self.goes_on.wait(60)
        return self.side**2


def test_it_is_computed_once_and_can_be_given_or_forgotten() -> None:
    square = Squares(3)
    assert (square.area, square.area, square.computed) == (9, 9, 1)
    square.area = 5
    assert square.area == 5
    del square.__dict__["area"]
    assert (square.area, square.computed) == (9, 2)
    assert isinstance(Squares.area, cached_property)
    assert Squares.area.__doc__ == "The area."


def test_threads_that_compute_at_once_get_the_same_object() -> None:
    class Once:
        meeting = threading.Barrier(2)

        @cached_property
        def value(self) -> object:
            self.meeting.wait(60)
            return object()

    once, seen = Once(), []
    threads = [threading.Thread(target=lambda: seen.append(once.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen[0] is seen[1]


def test_a_fork_computes_though_another_thread_was_about_to() -> None:
    slow = Squares(2)
    slow.goes_on.clear()
    thread = threading.Thread(target=lambda: slow.area)
    thread.start()
    assert slow.begun.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if Squares(5).area == 25 else 1)
    status = os.waitpid(child, 0)[1]
    slow.goes_on.set()
    thread.join(60)
    assert status == 0


def test_nobody_takes_pythons_which_locks_in_python_3_11() -> None:
    told = [path for path in (ROOT / "src").rglob("*.py") if "functools.cached_property" in path.read_text()]
    told += [
        path for path in (ROOT / "src").rglob("*.py") if "from functools import cached_property" in path.read_text()
    ]
    assert [path.name for path in told] == ["caching.py"]
