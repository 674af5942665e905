"""`python -m tests.fuzz --minutes N --seed S`: checks programs, then makes what fails small and prints it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.program import Program
from tests.fuzz.running import Checker, Outcome, Tally
from tests.fuzz.shrinking import shrink, snippet


def main() -> int:
    """Checks programs, and of every third seed gradients too, until time is over. Gives 1 if there were findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument(
        "--seed", type=int, default=0, help="the first seed; the programs of one seed are the same anywhere"
    )
    parser.add_argument("--programs", type=int, help="how many seeds, whatever the time")
    parser.add_argument("--gradients", choices=("too", "only", "not"), default="too")
    parser.add_argument("--shrink", action="store_true", help="makes the program of --seed small, and prints it")
    options = parser.parse_args()
    kinds = {"too": (False, True), "only": (True,), "not": (False,)}[options.gradients]
    begun, seed = time.monotonic(), options.seed
    tallies = {gradients: Tally() for gradients in kinds}
    with Checker() as checker:
        while _goes_on(options, begun, seed):
            for gradients in kinds:
                outcome = checker.seed(seed, gradients)
                tallies[gradients].add(seed, outcome)
                if outcome.is_finding:
                    _print(checker, seed, gradients, outcome, options.shrink)
            seed += 1
    for gradients, tally in tallies.items():
        print(f"{'gradients' if gradients else 'results'}: {tally}")
    print(f"seeds {options.seed} to {seed - 1} in {(time.monotonic() - begun) / 60:.1f} minutes")
    return int(any(tally.findings for tally in tallies.values()))


def _goes_on(options: argparse.Namespace, begun: float, seed: int) -> bool:
    if options.shrink:
        return bool(seed == options.seed)
    if options.programs is not None:
        return bool(seed < options.seed + options.programs)
    return bool(time.monotonic() - begun < 60 * options.minutes)


def _print(checker: Checker, seed: int, gradients: bool, outcome: Outcome, small: bool) -> None:
    again = f"python -m tests.fuzz --shrink --seed {seed} --gradients {'only' if gradients else 'not'}"
    print(f"seed {seed}, {'gradients' if gradients else 'results'}: {outcome.verdict}: {outcome.text}\n{again}")
    if small:
        program = outcome.program or _drawn(seed, gradients)
        least = shrink(program, lambda each: checker.program(each, seed, gradients, outcome.way).resembles(outcome))
        print(f"\n{snippet(least)}\n\n{checker.program(least, seed, gradients).text}")
    sys.stdout.flush()


def _drawn(seed: int, gradients: bool) -> Program:
    from tests.fuzz.drawing import draw, draw_smooth

    return draw_smooth(seed) if gradients else draw(seed)


if __name__ == "__main__":
    sys.exit(main())
