"""A tuning to be killed, of the synthetic problem: ``python -m tests.unit.tuning.store.victim TRIALS``, with the
cache folder that TESSERA_CACHE_DIR names. Tells of its trials as `bench.probes.tune_victim` does.
"""

from __future__ import annotations

import sys
import time

from bench.probes.tune_victim import telling
from tessera import settings
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import ReplayMeasurer
from tessera.tuning.measure.trial import Trial
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.tuner import tune_on_device
from tessera.tuning.store.database import TuningDatabase
from tests.unit.tuning.support import PROVENANCE, misled_seconds, problem, synthetic_table


class Slow(ReplayMeasurer):
    """Takes its time for each trial."""

    def _trial(self, schedule: Schedule) -> Trial:
        time.sleep(0.02)
        return super()._trial(schedule)


def main(trials: int) -> None:
    """Tunes, and keeps the winner."""
    database = TuningDatabase(settings.current().cache_dir or settings.current().autotune_dir, shipped=None)
    posed = problem(predict=misled_seconds)
    limits = SearchLimits(max_trials=trials)
    entry, _ = tune_on_device(posed, PROVENANCE, Slow(synthetic_table()), limits, database, telling())
    database.put(entry)


if __name__ == "__main__":
    main(int(sys.argv[1]))
