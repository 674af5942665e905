"""How many workers a plan may use."""

from __future__ import annotations

from functools import cache

import torch

from tessera import settings
from tessera.target.quota import quota, threads_within


def worker_count() -> int:
    """Threads that kernels of a plan which the calling thread runs now may use, at least 1.

    TESSERA_THREADS decides when it is set, else torch's own number (`torch.set_num_threads`, OMP_NUM_THREADS),
    because the threads are torch's, but no more of these than the process is granted processors.
    """
    return settings.current().threads or within_quota(torch.get_num_threads())


def within_quota(threads: int) -> int:
    """So many threads, or as many as Linux grants this process the time of processors."""
    granted = _granted()
    return threads if granted is None else min(threads, granted)


@cache
def _granted() -> int | None:
    return threads_within(quota())
