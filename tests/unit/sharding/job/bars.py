"""All of what `make test` checks a share of, on real ranks:

    python -m tests.unit.sharding.job.bars --ranks 2 4 8 --sequences 1000

compares every collective by both transports, of all dtypes and odd shapes, and random sequences, with emulation; and
breaks ranks: each of four, killed at every place of its program by either transport, stopped, and each mismatch. Takes
some minutes. It says at the end what of its processes and of its memory is left, which is to be nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.unit.sharding.job.nursery import Nursery, nursery
from tests.unit.sharding.job.test_faults import (
    PLACES,
    RANKS,
    check_killed,
    check_mismatch,
    check_stopped_for_good,
)
from tests.unit.sharding.job.work import MISMATCHES, TRANSPORTS

Check = Callable[[], object]


def agree(forks: Nursery, ranks: int, function: str, **arguments: Any) -> None:
    """Has ranks compare; all of them have to say the same."""
    outcome = forks.run(ranks, function, **arguments)
    assert outcome.code == 0, outcome.err
    told = [outcome.said(rank) for rank in range(ranks)]
    assert told == [told[0]] * ranks, told
    assert told[0][0]["count"] > 0, told


def checks(forks: Nursery, ranks: Sequence[int], sequences: int) -> dict[str, Check]:
    """All checks by name."""
    found: dict[str, Check] = {}
    for size in ranks:
        for transport in TRANSPORTS:
            name = f"every collective of {size} ranks by {transport}"
            found[name] = partial(agree, forks, size, "collectives", transport=transport, every=True)
        for first in range(0, sequences, 100):
            name = f"sequences {first} to {first + 99} on {size} ranks"
            found[name] = partial(agree, forks, size, "random_sequences", seed=first, count=100)
    for transport in TRANSPORTS:
        for place in PLACES:
            for victim in range(RANKS):
                name = f"rank {victim} of {RANKS} killed, {place}, by {transport}"
                found[name] = partial(check_killed, forks, place, victim, transport, 1.0)
        for kind in MISMATCHES:
            found[f"other {kind} by {transport}"] = partial(check_mismatch, forks, kind, transport)
        found[f"a stopped rank by {transport}"] = partial(check_stopped_for_good, forks, transport, 3.0)
    return found


def left(before: set[Path], pid: int) -> list[str]:
    """Shared memory and children of a process that are there and were not."""
    memory = [str(each) for each in set(Path("/dev/shm").iterdir()) - before if "tessera" in each.name]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return memory + [f"process {child}" for child in children]


def main(arguments: Sequence[str] | None = None) -> int:
    """Gives 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.sharding.job.bars", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--only", default="", help="checks whose names hold these words")
    options = parser.parse_args(arguments)
    failed, before = 0, set(Path("/dev/shm").iterdir())
    with nursery() as forks:
        for name, check in checks(forks, options.ranks, options.sequences).items():
            if options.only not in name:
                continue
            try:
                check()
            except AssertionError as error:
                failed += 1
                print(f"FAILED: {name}: {error}", flush=True)
            else:
                print(name, flush=True)
        remains = left(before, forks.process.pid)
    print(f"{failed} failed; left behind: {', '.join(remains) or 'nothing'}")
    return int(failed > 0 or bool(remains))


if __name__ == "__main__":
    sys.exit(main())
