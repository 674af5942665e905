"""Forks of a program, while other threads of it hold its locks."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from tessera import autotune, op
from tessera.compiler import planning
from tessera.lazy.structures import interning
from tessera.system import forks


def succeeds_in_a_fork_while_held(locks: list[Any], action: Callable[[], bool]) -> bool:
    """Whether `action` gives True in a fork, though a thread that the fork does not have held `locks`."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for each in locks:
                stack.enter_context(each)
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
            child = os.fork()
        if child == 0:
            signal.alarm(180)
            os._exit(0 if action() else 1)
        return os.waitpid(child, 0)[1] == 0
    finally:
        release.set()
        holder.join(60)


def test_a_lock_that_another_thread_holds_is_free_in_a_fork() -> None:
    plain, recursive = forks.lock(), forks.recursive_lock()
    assert succeeds_in_a_fork_while_held(
        [plain, recursive], lambda: plain.acquire(timeout=60) and recursive.acquire(timeout=60)
    )


def test_a_lock_of_no_such_kind_stays_held() -> None:
    ordinary = threading.Lock()
    assert not succeeds_in_a_fork_while_held([ordinary], lambda: ordinary.acquire(timeout=0.1))


def test_a_fork_compiles_and_runs_what_is_new_to_it_while_its_parent_binds_and_tunes() -> None:
    x = torch.rand(7, 5)
    op.relu(x).torch()  # the driver is loaded

    def compute() -> bool:
        return torch.allclose(op.relu(x * 3.0 - 1.25).torch(), torch.relu(x * 3.0 - 1.25))

    assert succeeds_in_a_fork_while_held([planning.lock, interning._lock, autotune._lock], compute)
