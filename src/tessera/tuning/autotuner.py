"""The `autotune` object: tunes, remembers, finds again, exports and imports (docs/autotuning.md)."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tessera import settings
from tessera.errors import ArgumentError, TuneFailedError, TuneSpaceEmptyError
from tessera.scheduling.schedule import Schedule
from tessera.tuning import exchange
from tessera.tuning.config import Config, Imported, Status
from tessera.tuning.database import Found, TuningDatabase
from tessera.tuning.entry import Entry
from tessera.tuning.identity import Identity, Provenance
from tessera.tuning.interfaces import ProgressHook, TuningBackend, TuningProblem
from tessera.tuning.measurement import Measurer, SubprocessMeasurer
from tessera.tuning.search import SearchLimits
from tessera.tuning.tuner import tune_by_model, tune_on_device

Method = Literal["model", "on_device"]


class TuningWarning(UserWarning):
    """A kernel could not be tuned at its first call; it runs with its default schedule."""


class Autotune:
    """Finds schedules and remembers them. Call it to tune; `enable(True)` tunes kernels at their first call.

    `backend` gives the compiler's `TuningBackend` when it is first needed; `changed` is called when kernels that are
    already bound should ask for their schedules again. `measurer` is a `SubprocessMeasurer` unless
    given. Methods may be called from several threads; tunings run one at a time.
    """

    def __init__(
        self,
        backend: Callable[[], TuningBackend],
        measurer: Measurer | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._backend = backend
        self._on_change = changed
        self._remembers: dict[TuningDatabase, bool] = {}
        self._measurer = measurer
        self._enabled: bool | None = None
        self._databases: dict[tuple[Path, Path | None], TuningDatabase] = {}
        self._current: tuple[settings.Settings | None, TuningDatabase | None] = None, None
        self._lock = threading.RLock()
        self._hits = self._misses = self._tuned = 0

    def _changed(self) -> None:
        self._remembers.clear()
        self._on_change()

    @property
    def enabled(self) -> bool:
        """Whether kernels are tuned at their first call; TESSERA_AUTOTUNE decides until `enable` does."""
        return settings.current().autotune if self._enabled is None else self._enabled

    @property
    def database(self) -> TuningDatabase:
        """The database of the cache folders that the settings name."""
        current = settings.current()
        known_for, known = self._current
        if known is not None and known_for is current:
            return known
        key = (current.autotune_dir, current.tune_site_dir)
        with self._lock:
            if key not in self._databases:
                site = (current.tune_site_dir,) if current.tune_site_dir is not None else ()
                self._databases[key] = TuningDatabase(current.autotune_dir, site)
            self._current = current, self._databases[key]
            return self._databases[key]

    def __call__(
        self,
        op: object,
        shapes: object,
        dtype: object = None,
        method: Method = "model",
        *,
        max_trials: int | None = None,
        budget_s: float | None = None,
        force: bool = False,
        progress: ProgressHook | None = None,
        device: object = None,
    ) -> Config:
        """Finds the best schedule of `op` for `shapes` and remembers it.

        `shapes` is a tuple of ints (the problem size: M, N, K for matmul) or a list of operand shapes; `dtype` is fp32
        and `device` the CPU unless given ("cuda:0"). "model" asks the cost model (milliseconds); "on_device" measures
        at most `max_trials` candidates within about `budget_s` seconds (TESSERA_TUNE_BUDGET unless given), calling
        `progress` after each. A measured winner that is known and not stale is returned without tuning again, unless
        `force`.

        Raises E_TUNE_SPACE_EMPTY, E_TUNE_FAILED, E_ARGUMENT, and what the operator raises for shapes that do not fit.
        """
        if method not in ("model", "on_device"):
            raise ArgumentError(f"method {method!r} is neither 'model' nor 'on_device'")
        limits = _limits(max_trials, budget_s)
        problem = self._backend().subject(op, shapes, dtype, device)
        with self._lock:
            provenance = Provenance.current(problem.generator, method)
            found = self.database.lookup(problem.identity)
            if found is not None and found.entry.origin == "measured" and not force:
                config = _from_entry(problem, found, provenance)
                if config is not None and not (config.stale and method == "on_device"):
                    self._hits += 1
                    return config
            if method == "on_device":
                config = self._measure(problem, provenance, limits, progress)
                self._changed()
                return config
            entry = tune_by_model(problem, provenance)
            self.database.put(entry)
            self._changed()
            return Config(entry.schedule, entry.identity, "model", entry.predicted_s)

    def load(self, op: object, shapes: object, dtype: object = None, *, device: object = None) -> Config:
        """The schedule remembered for `op` and `shapes`, without tuning.

        If there is none: that of the nearest shape, else the default; `source` and `note` say which, and why.
        """
        problem = self._backend().subject(op, shapes, dtype, device)
        config = self._known(problem)
        if config.source == "cache":
            return config
        miss = self.database.explain_miss(problem.identity)
        return Config(
            config.schedule,
            config.identity,
            config.source,
            config.predicted_s,
            config.measured_s,
            stale=config.stale,
            note=str(miss),
        )

    def schedule_for(self, problem: TuningProblem) -> Config:
        """What a kernel that is about to be compiled should use: remembered, nearest or default, tuned first if
        enabled.

        Never raises for a tuning that fails: that is a `TuningWarning`, and the default schedule.
        """
        config = self._known(problem)
        if not self.enabled or (config.source == "cache" and config.measured_s is not None and not config.stale):
            return config
        with self._lock:
            again = self._known(problem)  # another thread may have tuned it meanwhile
            if again.source == "cache" and again.measured_s is not None and not again.stale:
                return again
            provenance = Provenance.current(problem.generator, "on_device")
            try:
                return self._measure(problem, provenance, _limits(None, None), None)
            except (TuneFailedError, TuneSpaceEmptyError) as error:
                warnings.warn(f"{problem.identity} is not tuned: {error}", TuningWarning, stacklevel=2)
                return config

    def solve(self, problem: TuningProblem, method: Method = "on_device", max_trials: int | None = None) -> Config:
        """The best schedule of a problem's space, measured or by the model, and remembered. One that was measured
        before and lies in the space is taken as it is. Raises E_TUNE_SPACE_EMPTY and E_TUNE_FAILED.
        """
        limits = _limits(max_trials, None)
        with self._lock:
            known = self._known(problem)
            if (
                known.source == "cache"
                and known.measured_s is not None
                and not problem.space.violations(known.schedule)
            ):
                return known
            provenance = Provenance.current(problem.generator, method)
            if method == "on_device":
                config = self._measure(problem, provenance, limits, None)
            else:
                entry = tune_by_model(problem, provenance)
                self.database.put(entry)
                config = Config(entry.schedule, entry.identity, "model", entry.predicted_s)
            self._changed()
            return config

    def remembered(self, identity: Identity, permits: Callable[[Schedule], bool]) -> Schedule | None:
        """The schedule remembered for an identity, else that of the nearest shape, if `permits` says that it is legal
        here. Does not tune: on the path of binding.
        """
        found = self.database.usable(identity, permits)
        if found is not None and found.distance == 0.0:
            self._hits += 1
        else:
            self._misses += 1
        return None if found is None else found.entry.schedule

    @property
    def remembers_anything(self) -> bool:
        """Whether some layer of the database has an entry. Looked up once, and again after this process stored one: a
        process that tunes beside this one is noticed by the next process.
        """
        database = self.database
        known = self._remembers.get(database)
        if not known:
            known = self._remembers[database] = known is None and any(database.counts().values())
        return known

    def enable(self, on: bool = True) -> None:
        """Turns first-call tuning on or off for this process."""
        self._enabled = bool(on)
        self._changed()

    def save_cache(self, path: str | os.PathLike[str]) -> int:
        """Writes all winners that look-ups can find to one JSON file; their number. Raises E_CACHE_IO."""
        return exchange.export(self.database.entries(), Path(path))

    def load_cache(self, path: str | os.PathLike[str]) -> Imported:
        """Takes in an exported file: of two winners the faster measured one stays. Gives back what applied and what
        not.

        Raises E_CACHE_IO if the file cannot be read, E_CACHE_FORMAT if it is none or of another version.
        """
        imported = exchange.merge(self.database, Path(path), self._backend().archs)
        self._changed()
        return imported

    def status(self) -> Status:
        """Whether tuning is on, where the cache is, what it holds, and what went wrong with it."""
        database = self.database
        return Status(
            self.enabled,
            database.user.root,
            database.writable(),
            database.counts(),
            self._hits,
            self._misses,
            self._tuned,
            tuple(str(problem) for problem in database.problems),
        )

    def close(self) -> None:
        """Ends the measuring process, which is otherwise kept for the next tuning until the program ends."""
        with self._lock:
            if isinstance(self._measurer, SubprocessMeasurer):
                self._measurer.close()

    def _known(self, problem: TuningProblem) -> Config:
        """The remembered schedule, that of the nearest shape, or the default; only ones that are legal here."""
        found = self.database.lookup(problem.identity)
        if found is not None and (config := _from_entry(problem, found, None)) is not None:
            self._hits += 1
            return config
        self._misses += 1
        near = self.database.nearest(problem.identity)
        if near is not None and (config := _from_entry(problem, near, None)) is not None:
            return config
        return Config(problem.space.default, problem.identity, "default")

    def _measure(
        self, problem: TuningProblem, provenance: Provenance, limits: SearchLimits, progress: ProgressHook | None
    ) -> Config:
        if self._measurer is None:
            self._measurer = SubprocessMeasurer(settings.current().tune_timeout_s)
        entry, result = tune_on_device(problem, provenance, self._measurer, limits, self.database, progress)
        self.database.put(entry)
        self._tuned += 1
        note = f"best of {len(result.trials)} measured; {result.reason}"
        times = (entry.predicted_s, entry.measured_s)
        return Config(entry.schedule, entry.identity, "measured", *times, result.trials, note=note)


def _limits(max_trials: int | None, budget_s: float | None) -> SearchLimits:
    defaults = SearchLimits()
    trials = defaults.max_trials if max_trials is None else max_trials
    seconds = settings.current().tune_budget_s if budget_s is None else budget_s
    if trials < 1 or seconds <= 0:
        raise ArgumentError(f"max_trials={trials} and budget_s={seconds} must be positive")
    return SearchLimits(max_trials=trials, budget_s=seconds)


def _from_entry(problem: TuningProblem, found: Found, now: Provenance | None) -> Config | None:
    """The config of an entry; None if its schedule breaks a rule here (the space has changed since, or the shape
    differs).
    """
    entry = found.entry
    if not _legal(problem, entry):
        return None
    now = now or Provenance.current(problem.generator, entry.provenance.mode)
    exact = entry.identity == problem.identity
    where = f"{entry.origin} winner of {entry.identity} in the {found.layer} cache, {entry.provenance.date}"
    return Config(
        entry.schedule,
        problem.identity,
        "cache" if exact else "nearest",
        entry.predicted_s,
        entry.measured_s,
        stale=entry.provenance.stale_fields(now),
        note=where,
    )


def _legal(problem: TuningProblem, entry: Entry) -> bool:
    """Whether the schedule has exactly the knobs of this space and keeps its rules."""
    return set(entry.schedule) == set(problem.space.default) and not problem.space.violations(entry.schedule)
