"""LLVM in forks of a program, one of whose threads compiles."""

from __future__ import annotations

import os
import signal
import threading
import warnings

from tessera.backend.llvm.machine_code import engine


def test_a_fork_waits_for_who_compiles_and_can_compile_itself() -> None:
    compiling, release = threading.Event(), threading.Event()

    def compile_for_a_while() -> None:
        with engine.lock:
            compiling.set()
            release.wait(0.2)

    compiler = threading.Thread(target=compile_for_a_while)
    compiler.start()
    assert compiling.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if engine.lock.acquire(timeout=10) else 1)
    compiler.join(60)
    assert os.waitpid(child, 0)[1] == 0
