"""A tuning to be killed: ``python -m bench.probes.tune_victim TRIALS``, with the cache folder that TESSERA_CACHE_DIR
names.

Prints a JSON line for every trial: its number, its schedule, and the seconds since the tuning began.
"""

from __future__ import annotations

import json
import sys
import time

from tessera import autotune, op
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.tuning.interfaces import Progress, ProgressHook
from tessera.tuning.measure.measurement import SubprocessMeasurer
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.tuner import tune_on_device
from tessera.tuning.store.identity import Provenance

SHAPE = (192, 192, 192)


def telling() -> ProgressHook:
    """Prints a line for every trial."""
    begin = time.monotonic()

    def tell(step: Progress) -> None:
        if step.trial is None:
            return
        seconds = time.monotonic() - begin
        print(json.dumps({"done": step.done, "schedule": str(step.trial.schedule), "seconds": seconds}), flush=True)

    return tell


def main(trials: int) -> None:
    """Tunes a product on this CPU, by its cost model's ranking: as many trials as are asked for."""
    problem = CompilerBackend().subject(op.matmul, SHAPE, None)
    provenance = Provenance.current(problem.generator, "on_device")
    limits = SearchLimits(max_trials=trials, budget_s=600.0)
    database, measurer = autotune.database, SubprocessMeasurer()
    entry, _ = tune_on_device(problem, provenance, measurer, limits, database, telling(), strategy="ranking")
    database.put(entry)
    measurer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
