"""Fits the learned cost model to the recorded tables: `python -m bench.tuning.fit`.

Writes the coefficients that come with the package, and prints for every family how much of the estimates' spread is
left on shapes that the fit had not seen. Figures on a table come from other fits (`predictions.cases`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.suites import tuning as suite
from bench.tuning.predictions import problem_of, samples
from bench.tuning.table import TABLES, Table
from tessera.tuning.model.learned import SHIPPED, Learned


def fitted(tables: Iterable[Table]) -> Learned:
    """The model of all tables, for machines of their kind and shapes that nobody measured."""
    return Learned.fitted(sample for table in tables for sample in samples(table, problem_of(table)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits what is recorded, prints what that left of the spread, and writes the coefficients; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning.fit", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="tables of kernels with so many threads (default: 1)")
    parser.add_argument("--folder", type=Path, default=TABLES, help="where tables are (default: bench/tables)")
    parser.add_argument("--output", type=Path, default=SHIPPED, help="where coefficients go (default: the package)")
    parser.add_argument("--alone", action="store_true", help="drop coefficients that these tables say nothing of")
    asked = parser.parse_args(arguments)
    tables = suite.load(asked.threads, asked.folder)
    model = fitted(tables)
    if not model.residuals:
        print(f"{len(tables)} tables in {asked.folder}: too few to fit anything", file=sys.stderr)
        return 1
    for (arch, family), found in sorted(model.residuals.items(), key=lambda item: item[0]):
        print(
            f"{arch} {family}: {found.trials} trials of {len(found.shapes)} shapes; log(measured / estimated) spreads "
            f"by {found.before:.3f}, after the fit by {found.spread:.3f} on shapes that it had not seen"
        )
    whole = model if asked.alone else model.over(Learned.shipped())
    asked.output.write_text(json.dumps(whole.to_json(), indent=1) + "\n")
    print(f"written: {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
