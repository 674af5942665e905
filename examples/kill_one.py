"""A job one of whose ranks is killed: every other one says so by name, within a second.

tessera run --ranks 4 examples/kill_one.py
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from tessera import TesseraError, op

VICTIM = 2
STEPS = 1000


def main() -> None:
    """Reduces in a loop; the victim kills itself after some steps."""
    rank = int(os.environ["RANK"])
    x = torch.ones(1024)
    for step in range(STEPS):
        if step == STEPS // 10 and rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            op.all_reduce(x)
        except TesseraError as error:
            print(f"{error.code}: {error.message}")
            print(f"raised {time.monotonic() - begun:.3f} s after the call")
            sys.exit(1)


if __name__ == "__main__":
    main()
