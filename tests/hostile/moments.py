"""Forks at drawn moments of a program's first evaluation, made by another thread: `python -m tests.hostile.moments`.

Each is made in a process of its own, a fork of this one, which has imported Tessera, has run what it asks of torch, and
has evaluated nothing: torch itself does not survive a fork amid an operator that it runs for the first time.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path

import torch

from tessera import op, settings
from tessera.compiler import entry

LIMIT_S = 60.0
"""A child that has not ended by then says where it hangs."""
MOMENTS_S = (0.0, 0.02, 0.05, 0.2)
"""The latest moments, of which one is drawn: most of what a first evaluation does it does early."""


def _warm() -> torch.Tensor:
    x = torch.rand(7, 5)
    torch.allclose(torch.tanh(x * 2.0), x * 3.0 - 1.25)
    return x


def _moment(seed: int, x: torch.Tensor) -> None:
    """Forks in the middle of an evaluation. Ends the process: with 0 where the child computed what torch does."""
    drawn = random.Random(seed)
    delay = drawn.random() * drawn.choice(MOMENTS_S)
    folder = Path(tempfile.mkdtemp(prefix="tessera-moments-"))
    with settings.override(cache_dir=folder):
        first = threading.Thread(target=lambda: op.relu(x * 3.0 - 1.25).eval())
        first.start()
        time.sleep(delay)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            right = torch.allclose(op.tanh(x * 2.0).torch(), torch.tanh(x * 2.0))
            os._exit(0 if right else 1)
        status = os.waitpid(child, 0)[1]
        first.join()
    shutil.rmtree(folder, ignore_errors=True)
    if status:
        print(f"seed {seed}: {delay * 1e3:.1f} ms after it began: status {status}", flush=True)
    os._exit(1 if status else 0)


def main() -> None:
    """Draws moments until the count is reached."""
    parser = argparse.ArgumentParser(description="Forks at drawn moments of a program's first evaluation.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
    entry.load()
    x, failed = _warm(), 0
    assert threading.active_count() == 1
    for seed in range(given.seed, given.seed + given.count):
        trial = os.fork()
        if trial == 0:
            _moment(seed, x)
        failed += os.waitpid(trial, 0)[1] != 0
    print(f"{given.count} forks, {failed} hung or were wrong")
    raise SystemExit(failed != 0)


if __name__ == "__main__":
    main()
