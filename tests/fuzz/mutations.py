"""Whether the net holds: ten places broken on purpose, one at a time, each of which the fuzzer must find.

`python -m tests.fuzz.mutations` copies the sources, breaks one place of the copy, and checks the programs that
`make test` checks (`SHARE` of them) until one is found wrong. CONTRIBUTING.md has what came out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.running import SHARE, Checker, Outcome

SOURCES = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Mutation:
    """One place of a file under `src/tessera`, and what stands there instead."""

    name: str
    file: str
    before: str
    after: str

    def apply(self, sources: Path) -> None:
        """Breaks a copy of the sources. Raises LookupError where the place is not found once."""
        path = sources / "tessera" / self.file
        text = path.read_text()
        if text.count(self.before) != 1:
            raise LookupError(f"{self.name}: {self.file} has {text.count(self.before)} places {self.before!r}")
        path.write_text(text.replace(self.before, self.after))


MUTATIONS = (
    Mutation(
        "a layout: the prologue of a convolution knows an image by its rows alone",
        "scheduling/families/convolution/binding.py",
        'return "image" if not _IMAGE.isdisjoint(alignment)',
        'return "image" if _ROWS in alignment',
    ),
    Mutation(
        "a mask: the last vector of keys of attention is not masked",
        "scheduling/families/attention/panel.py",
        "return softmax.hide(scores, builder.mask(row, width, self.shape, 0))",
        "return scores",
    ),
    Mutation(
        "a guard: programs are taken without asking whether their extents are met",
        "compiler/graph/programs.py",
        "while not meets(program, extents):",
        "while False:",
    ),
    Mutation(
        "a liveness interval: temporaries end one step early",
        "runtime/memory/liveness.py",
        "steps = range(lifetime.first, lifetime.last + 1)",
        "steps = range(lifetime.first, max(lifetime.first + 1, lifetime.last))",
    ),
    Mutation(
        "an alias: an input that was written to is not noticed",
        "lazy/evaluation.py",
        "leaf.owner._version != leaf.version and type(leaf.owner)",
        "leaf.owner._version < leaf.version and type(leaf.owner)",
    ),
    Mutation(
        "a promotion: integers stay wide between operators of a kernel",
        "scheduling/binding/regions.py",
        'if dtype.kind == "int" else value',
        'if dtype.kind == "complex" else value',
    ),
    Mutation(
        "a rounding: halves are rounded up",
        "ops/elementwise/arithmetic.py",
        'return e.round(x) if x.dtype.kind == "float" else x',
        'return e.floor(e.add(x, e.constant(0.5, x))) if x.dtype.kind == "float" else x',
    ),
    Mutation(
        "a padding: a convolution padded only after the image reads it in place",
        "scheduling/families/convolution/binding.py",
        "after and not before",
        "False",
    ),
    Mutation(
        "an order of sums: variances as the mean of squares less the square of the mean",
        "ops/rows/records.py",
        "variance = _mean_body(e, e.mul(centred, centred))",
        "variance = e.sub(_mean_body(e, e.mul(x, x)), e.mul(_mean_body(e, x), _mean_body(e, x)))",
    ),
    Mutation(
        "a stale plan: buffers of other strides are taken for the same",
        "lazy/structures/interning.py",
        'key = ("buffer", shape, canonical, dtype, device, frozen)',
        'key = ("buffer", shape, dtype, device, frozen)',
    ),
)


def found(mutation: Mutation) -> tuple[int, bool, Outcome] | None:
    """(programs checked, whether it was one of gradients, what was found) with one place broken; None for nothing."""
    with tempfile.TemporaryDirectory(prefix="tessera-broken-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
        mutation.apply(copy)
        with Checker(copy) as checker:
            for number in range(SHARE):
                for gradients in (False, True):
                    outcome = checker.seed(number, gradients)
                    if outcome.is_finding:
                        return 2 * number + 1 + gradients, gradients, outcome
    return None


def main() -> int:
    """Prints what found each mutation. Gives 1 if some mutation was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutations", description=__doc__)
    parser.add_argument("--only", help="mutations whose names hold this word")
    options = parser.parse_args()
    missed = 0
    for mutation in MUTATIONS:
        if options.only and options.only not in mutation.name:
            continue
        begun = time.monotonic()
        result = found(mutation)
        missed += result is None
        told = "NOT FOUND" if result is None else f"program {result[0]}, {result[2].verdict}: {result[2].text[:90]!r}"
        print(f"{mutation.name}: {told} ({time.monotonic() - begun:.0f} s)", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
