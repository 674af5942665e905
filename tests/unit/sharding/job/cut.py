"""Ranks of two hosts whose cable is cut: run by `bench.shaped_link`. Each tells what it raises, and after how long."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from bench.shaped_link import CABLE
from tessera.errors import TesseraError
from tessera.sharding.job import join


def main() -> None:
    """Exchanges until nothing comes any more."""
    job = join()
    group = job.communicator(range(job.size))
    x = torch.ones(1024)
    began = time.monotonic()
    try:
        for number in range(1_000_000):
            if number == 20 and job.rank == 0:
                subprocess.run(["ip", "link", "set", CABLE[0], "down"], check=True)
            began = time.monotonic()
            group.all_reduce(x, "sum")
    except TesseraError as error:
        print(f"{job.rank} {error.code} {time.monotonic() - began:.3f} {error.message}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
