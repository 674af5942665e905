"""`python -m tests.mesh --cases 2000`: checks as many results and as many gradients, and prints what is wrong."""

from __future__ import annotations

import argparse
import sys
import time

from tests.mesh.checking import fault_of


def main() -> int:
    """Gives 1 if a case was found wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.mesh", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many seeds, each with results and gradients")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--compiled", action="store_true", help="kernels compute, not references")
    parser.add_argument("--most", type=int, default=5, help="faults after which to stop")
    options = parser.parse_args()
    begun, faults = time.monotonic(), 0
    for seed in range(options.seed, options.seed + options.cases):
        for smooth in (False, True):
            fault = fault_of(seed, smooth, options.compiled)
            if fault is not None:
                faults += 1
                print(f"seed {seed}, {'gradients' if smooth else 'results'}: {fault}\n", flush=True)
        checked = seed - options.seed + 1
        if checked % 100 == 0 or checked == options.cases or faults >= options.most:
            print(f"{checked} seeds, {faults} faults, {time.monotonic() - begun:.0f} s", flush=True)
        if faults >= options.most:
            break
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
