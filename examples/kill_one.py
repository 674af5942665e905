"""A job one of whose ranks is killed: every other one says so by name, within a second.

tessera run --ranks 4 examples/kill_one.py
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from tessera.errors import JobError
from tessera.sharding import job

VICTIM = 2


def main() -> None:
    """Reduces in a loop; the victim kills itself after some steps."""
    joined = job.join()
    everyone = joined.communicator(range(joined.size))
    for step in range(1_000_000):
        if step == 100 and joined.rank == VICTIM % joined.size:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            everyone.all_reduce(torch.ones(1024), "sum")
        except JobError as error:
            print(f"{error.code}: {error.message}")
            print(f"raised {time.monotonic() - begun:.3f} s after the call")
            sys.exit(1)


if __name__ == "__main__":
    main()
