"""How many workers a plan may use."""

from __future__ import annotations

import torch

from tessera import settings


def worker_count() -> int:
    """Threads that kernels of a plan which the calling thread runs now may use, at least 1.

    TESSERA_THREADS decides when it is set, else torch's own number (`torch.set_num_threads`, OMP_NUM_THREADS),
    because the threads are torch's.
    """
    return settings.current().threads or torch.get_num_threads()
