"""Whether the net holds: each rule of sharding broken on purpose, one at a time, each of which drawn cases must find.

`python -m tests.mesh.mutations` copies the sources, breaks one place of the copy, and checks the cases of
`tests/property/test_mesh.py` there until one is found wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.mutations import SOURCES, Mutation
from tests.property.test_mesh import SHARE

ROOT = Path(__file__).parents[2]

MUTATIONS = (
    Mutation(
        "an axis that the body reduces by itself is split",
        "sharding/partitioning/rules.py",
        'if by == "row" or not reduces}',
        "if not reduces}",
    ),
    Mutation(
        "a result of parts is taken for the result, whatever the body does afterwards",
        "sharding/partitioning/bodies.py",
        "return made is not None and made.reduced",
        "return made is not None",
    ),
    Mutation(
        "a sum stays pending through what is not linear",
        "sharding/partitioning/bodies.py",
        'return made is not None and made.kind == "linear"',
        "return made is not None",
    ),
    Mutation(
        "a product of two pending sums stays pending",
        "sharding/partitioning/bodies.py",
        'if value.kind == "linear" and (factor.kind == "given" or _scales_exactly(factor)):',
        'if value.kind == "linear":',
    ),
    Mutation(
        "a maximum over devices is a sum",
        "sharding/partitioning/rules.py",
        "(axis, rule.reduced[by]) for axis, by in split_by.items()",
        "(axis, ADD) for axis, by in split_by.items()",
    ),
    Mutation(
        "a part of nothing has a maximum",
        "sharding/partitioning/rules.py",
        "if nonempty and first == end:",
        "if False:",
    ),
    Mutation(
        "a reshape keeps what is split though its parts are none of the result",
        "sharding/partitioning/rules.py",
        "if start != stop and (start, stop) != (first * rest, end * rest):",
        "if False:",
    ),
    Mutation(
        "the minor axis of a dimension is split as if it were the major one",
        "sharding/partitioning/rules.py",
        "whole |= set(index.axes) - {axis}",
        "whole |= set()",
    ),
    Mutation(
        "what a window or a cut steps along is split",
        "sharding/partitioning/rules.py",
        "same = len(index.axes) == 1 and index.steps == (1,) and not index.before and not index.after",
        "same = True",
    ),
    Mutation(
        "what a scan or a transform reads whole is split",
        "ir/anchors/along.py",
        "None if dimension in whole or",
        "None if",
    ),
    Mutation(
        "dimensions that hold several operands one behind the other are split",
        "sharding/partitioning/rules.py",
        "    if index.joined:\n        return None\n",
        "",
    ),
    Mutation(
        "places do not matter to causal attention",
        "sharding/partitioning/rules.py",
        "whole = set(anchor.placed)",
        "whole = set()",
    ),
    Mutation(
        "two axes split a dimension in the order of their names, not of the layout",
        "lazy/layouts.py",
        "split(extent, tuple((coordinates[axis], self.mesh.size(axis)) for axis in axes))",
        "split(extent, tuple((coordinates[axis], self.mesh.size(axis)) for axis in sorted(axes)))",
    ),
    Mutation(
        "sums are scattered along the last dimension",
        "sharding/exchange/groups.py",
        "return by.reduce_scatter(x, step.dim,",
        "return by.reduce_scatter(x, -1,",
    ),
    Mutation(
        "an exchange takes one extent for all ranks",
        "sharding/exchange/groups.py",
        "along = [laid.local_shape(shape, each)[step.dim] for each in coordinates]",
        "along = [laid.local_shape(shape, coordinates[0])[step.dim] for each in coordinates]",
    ),
    Mutation(
        "a shard has the result's global shape among its attributes",
        "sharding/partitioning/rules.py",
        "return tuple([shape if name in repeated else value for name, value in named])",
        "return attributes",
    ),
    Mutation(
        "a gradient lies as it comes",
        "doors/cotangents.py",
        "return part.reshard(layout)",
        "return part",
    ),
)

_CHECK = """
import sys
from tests.mesh.checking import fault_of
for seed in range({share}):
    for smooth in (False, True):
        try:
            fault = fault_of(seed, smooth)
        except Exception as error:
            fault = f"{{type(error).__name__}}: {{error}}"
        if fault:
            print(seed, "gradients" if smooth else "results", fault.splitlines()[0][:90])
            sys.exit(1)
"""


def found(mutation: Mutation) -> str | None:
    """What found one broken place; None where nothing did."""
    with tempfile.TemporaryDirectory(prefix="tessera-broken-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
        mutation.apply(copy)
        environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
        done = subprocess.run(
            [sys.executable, "-c", _CHECK.format(share=SHARE)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
        )
    return None if done.returncode == 0 else (done.stdout or done.stderr).strip().splitlines()[-1]


def main() -> int:
    """Prints what found each mutation. Gives 1 if some mutation was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.mesh.mutations", description=__doc__)
    parser.add_argument("--only", help="mutations whose names hold this word")
    options = parser.parse_args()
    missed = 0
    for mutation in MUTATIONS:
        if options.only and options.only not in mutation.name:
            continue
        begun = time.monotonic()
        result = found(mutation)
        missed += result is None
        print(f"{mutation.name}: {result or 'NOT FOUND'} ({time.monotonic() - begun:.0f} s)", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
