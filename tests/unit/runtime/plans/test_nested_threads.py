"""Kernels that are run where there are threads already: torch's pool serves them, and does not grow."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import pytest
import torch

from tessera import op
from tessera.backend.llvm.machine_code import openmp
from tessera.runtime.plans import native

needs_pool = pytest.mark.skipif(
    not openmp.find().available or not os.path.isdir("/proc/self/task"), reason="no libgomp, or no list of threads"
)


def running() -> int:
    """Threads of this process that are not Python's, of which some of the package may start at any time."""
    return len(os.listdir("/proc/self/task")) - threading.active_count()


@pytest.fixture
def two_threads() -> None:
    if native.driver().sequential:
        pytest.skip("shares run one after the other here")
    if torch.get_num_threads() < 2:
        pytest.skip("torch has one thread")


@needs_pool
def test_inside_a_parallel_region_shares_run_on_the_thread_that_is_there(two_threads: None) -> None:
    x, w = torch.randn(512, 512), torch.randn(512, 512)
    expected = op.matmul(x, w).torch()
    library = ctypes.CDLL(openmp.find().path)
    found: list[tuple[int, torch.Tensor]] = []

    def member(_: object) -> None:
        found.append((threading.get_native_id(), op.matmul(x, w).torch()))

    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(member)
    library.GOMP_parallel(body, None, 2, 0)
    before = running()
    found.clear()
    library.GOMP_parallel(body, None, 2, 0)
    assert len({thread for thread, _ in found}) == 2
    assert running() == before
    for _, result in found:
        assert torch.equal(result, expected)


@needs_pool
def test_threads_of_python_leave_no_pool_behind(two_threads: None) -> None:
    x, w = torch.randn(512, 512), torch.randn(512, 512)
    expected = op.matmul(x, w).torch()
    before, results = running(), []

    def work() -> None:
        results.append(op.matmul(x, w).torch())

    for _ in range(3):
        started = [threading.Thread(target=work) for _ in range(4)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    deadline = time.monotonic() + 60  # a pool ends after the thread that had it was joined
    while running() > before + torch.get_num_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running() <= before + torch.get_num_threads()
    assert len(results) == 12
    assert all(torch.equal(result, expected) for result in results)
