"""A program to attach to: ``python -m bench.probes.attach`` prints what CPU time it took to begin to listen, in
microseconds, then answers each line of its standard input with the thread CPU time of a step, in nanoseconds.
"""

from __future__ import annotations

import statistics
import sys
import time

STEPS = 400
"""Steps of one reading; the median of them counts."""


def main() -> None:
    """Answers until its input ends."""
    from tessera import op, profile
    from tessera.profiling.attach import listener

    begin = time.process_time_ns()
    listener.listen()
    listened_us = (time.process_time_ns() - begin) / 1000
    a, b = op.tensor((128, 128)), op.tensor((128, 128))

    def step() -> int:
        before = time.thread_time_ns()
        with profile.region("step"):
            op.softmax(op.matmul(a, b)).eval()
        return time.thread_time_ns() - before

    for _ in range(STEPS):
        step()
    print(f"{listened_us:.1f}", flush=True)
    for _ in sys.stdin:
        print(f"{statistics.median([step() for _ in range(STEPS)]):.1f}", flush=True)


if __name__ == "__main__":
    main()
