"""The `autotune` object: tunes, remembers, finds again, exports and imports (docs/autotuning.md)."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera import settings
from tessera.errors import ArgumentError, DeviceError, TuneFailedError, TuneSpaceEmptyError
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sizes import size_class
from tessera.scheduling.language.sources import ChosenSchedule
from tessera.system import forks
from tessera.tuning import terminal
from tessera.tuning.config import Config, Imported, Status, chosen_by
from tessera.tuning.explanation import ScheduleExplanation, explanation
from tessera.tuning.interfaces import ProgressHook, TuningBackend, TuningProblem
from tessera.tuning.measure.conditions import Cache, LaunchMode
from tessera.tuning.measure.measurement import Measurer, SubprocessMeasurer
from tessera.tuning.model.transfer import Unseen
from tessera.tuning.online.mode import Share, TuningMode, is_looking
from tessera.tuning.online.ticket import TuningWarning
from tessera.tuning.online.warmup import Warmup
from tessera.tuning.options import Method, TuningOptions, options
from tessera.tuning.recall import is_legal, recalled
from tessera.tuning.search import ranks
from tessera.tuning.search.strategy import StrategyFor, StrategyName
from tessera.tuning.search.tuner import tune_by_model, tune_on_device
from tessera.tuning.store import exchange
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Identity, Provenance
from tessera.tuning.store.process_databases import Databases

if TYPE_CHECKING:
    from polars import DataFrame


class Autotune:
    """Finds schedules and remembers them. Call it to tune; `enable(True)` tunes kernels while a program uses them.

    `backend` gives the compiler's `TuningBackend` when it is first needed (`compiled_by` sets it); what `when_changed`
    was given is called when kernels that are already bound should ask for their schedules again. `measurer` is a
    `SubprocessMeasurer` unless given. Methods may be called from several threads; tunings run one at a time.
    """

    def __init__(
        self,
        backend: Callable[[], TuningBackend] | None = None,
        measurer: Measurer | None = None,
    ) -> None:
        self._made_by = backend
        self._on_change: Callable[[], None] = lambda: None
        self._remembers: dict[TuningDatabase, bool] = {}
        self._unseen = Unseen()
        self._measurer = measurer
        self._mode = TuningMode(measurer)
        self._databases = Databases()
        self._lock = forks.recursive_lock()
        self._hits = self._misses = self._tuned = 0

    def compiled_by(self, backend: Callable[[], TuningBackend]) -> None:
        """Sets what gives the compiler's `TuningBackend`."""
        self._made_by = backend

    def when_changed(self, told: Callable[[], None]) -> None:
        """Sets what is called when kernels that are already bound should ask for their schedules again."""
        self._on_change = told

    def _backend(self) -> TuningBackend:
        assert self._made_by is not None, "no compiler was set"
        return self._made_by()

    def _changed(self) -> None:
        self._remembers.clear()
        self._unseen.clear()
        self._on_change()

    @property
    def enabled(self) -> bool:
        """Whether kernels are tuned while they are used; TESSERA_AUTOTUNE decides until `enable` does."""
        return self._mode.enabled

    @property
    def warmup(self) -> Warmup | None:
        """What tunes kernels between the calls of a program; None unless that is enabled."""
        return self._mode.warmup

    @property
    def database(self) -> TuningDatabase:
        """The database of the cache folders that the settings name."""
        return self._databases.current

    def __call__(
        self,
        op: object,
        shapes: object,
        dtype: object = None,
        method: Method = "model",
        *,
        max_trials: int | None = None,
        budget_s: float | None = None,
        target: object = None,
        cost_model: Any = None,
        strategy: StrategyName | StrategyFor = "guided",
        cache: Cache | None = None,
        launch: LaunchMode | None = None,
        force: bool = False,
        progress: ProgressHook | None = None,
        device: object = None,
    ) -> Config:
        """Finds the best schedule of `op` for `shapes` and remembers it.

        `shapes` is a tuple of ints (the problem size: M, N, K for matmul) or a list of operand shapes; `dtype` is fp32
        unless given. `target` is what the schedule is for: a device of this machine ("cpu", "cuda:0"; torch's default
        device unless given), or by name or architecture a GPU that need not be there ("H200", "sm90"); `device` is
        another word for it. "model" asks the cost model (milliseconds); "on_device" measures at most `max_trials`
        candidates within about `budget_s` seconds (TESSERA_TUNE_BUDGET unless given), calling `progress` after each. A
        measured winner that is known and not stale is returned without tuning again, unless `force`.

        `cost_model` predicts: "roofline", "hardware" (which it is unless given), "learned", or a function from a
        schedule to seconds. `strategy` proposes what is measured: "guided", "ranking", "random", "optuna", or a class
        of yours (`tessera.tuning.search.strategy`). `cache` says whether calls that are timed find their operands in
        the caches ("warm", unless given) or in memory ("cold"), `launch` whether kernels of a GPU are launched as a
        captured graph ("graph", unless given) or one by one ("stream").

        Raises E_TUNE_SPACE_EMPTY, E_TUNE_FAILED, E_ARGUMENT, E_DEVICE where candidates were to be measured for a GPU
        that is not there, and what the operator raises for shapes that do not fit.
        """
        how = options(method, max_trials, budget_s, cost_model, strategy, cache, launch)
        problem = self._backend().subject(op, shapes, dtype, _one_of(target, device))
        return self.solve(problem, how, force=force, progress=progress)

    def solve(
        self,
        problem: TuningProblem,
        how: TuningOptions | None = None,
        *,
        kept_in: str | None = None,
        permits: Callable[[Schedule], bool] = lambda schedule: True,
        force: bool = False,
        progress: ProgressHook | None = None,
    ) -> Config:
        """The best schedule of a problem's space, measured or by the model, and remembered: in the cache of the name
        `kept_in`, else in the user's. One that was measured before, and that `permits` finds right, is taken as it is.

        Raises E_TUNE_SPACE_EMPTY, E_TUNE_FAILED and E_DEVICE as `__call__` does.
        """
        how = how or options()
        problem = how.posed(problem)
        with self._lock:
            database = self.database if kept_in is None else self._databases.named(kept_in)
            provenance = Provenance.current(problem.generator, how.method)
            # One answer for all ranks: what lies in their caches, and their clocks, may differ.
            config = ranks.decided(None if force else self._measured(problem, provenance, how, database, permits))
            if config is not None:
                self._hits += 1
                return config
            if how.method == "on_device":
                config = self._measure(problem, provenance, how, progress, database)
            else:
                entry = ranks.decided(tune_by_model(problem, provenance))
                self._keep(entry, database)
                config = Config(entry.schedule, entry.identity, "model", entry.predicted_s)
        # Not under the lock: who binds a kernel, and waits for it to tune a first call, holds that of the plans.
        self._changed()
        return config

    def _measured(
        self,
        problem: TuningProblem,
        provenance: Provenance,
        how: TuningOptions,
        database: TuningDatabase,
        permits: Callable[[Schedule], bool],
    ) -> Config | None:
        """A winner that was measured before and serves here, of `database` before those of all other caches."""
        for place in dict.fromkeys((database, self.database)):
            found = place.lookup(problem.identity)
            if found is not None and how.suits(found.entry) and permits(found.entry.schedule):
                config = recalled(problem, found, provenance)
                if config is not None and not (config.stale and how.method == "on_device"):
                    return config
        return None

    def load(
        self, op: object, shapes: object, dtype: object = None, *, target: object = None, device: object = None
    ) -> Config:
        """The schedule remembered for `op` and `shapes`, without tuning.

        If there is none: that of the nearest shape, else the default; `source` and `note` say which, and why.
        """
        problem = self._backend().subject(op, shapes, dtype, _one_of(target, device))
        config = self._known(problem)
        if config.source == "cache":
            return config
        found = self.database.lookup(problem.identity)
        if found is None:
            return replace(config, note=str(self.database.explain_miss(problem.identity)))
        broken = ", ".join(problem.space.objections(found.entry.schedule))
        return replace(config, note=f"what is remembered for {problem.identity} is not legal here: {broken}")

    def explain(
        self, op: object, shapes: object, dtype: object = None, *, target: object = None, device: object = None
    ) -> ScheduleExplanation:
        """Prints why the schedule of `op` for `shapes` is what it is, and gives the same as an object: the winner and
        the runner-up with their times, the gap with its interval, what binds, and what each rule rejected.

        Tunes nothing: where nothing is remembered, it explains the schedule that runs without tuning.
        """
        problem = self._backend().subject(op, shapes, dtype, _one_of(target, device))
        found = explanation(problem, self._known(problem), self.database.trials(problem.identity))
        print(found)
        return found

    def schedule_for(self, problem: TuningProblem) -> Config:
        """What a kernel that is about to be compiled should use: remembered, nearest or default. If tuning is enabled
        it is tuned first, or, where that has a share of the time between calls, from the next calls on; not in what is
        `mode.looking`.

        Never raises for a tuning that fails: that is a `TuningWarning`, and the default schedule.
        """
        config = self._known(problem)
        if not self.enabled:
            return config
        warmup = self.warmup
        if warmup is not None:
            return warmup.choose(problem, self.database, config)
        if config.is_fresh or is_looking():
            return config
        with self._lock:
            again = self._known(problem)  # another thread may have tuned it meanwhile
            if again.is_fresh:
                return again
            provenance = Provenance.current(problem.generator, "on_device")
            try:
                return self._measure(problem, provenance, options(), None, self.database)
            except (TuneFailedError, TuneSpaceEmptyError) as error:
                warnings.warn(f"{problem.identity} is not tuned: {error}", TuningWarning, stacklevel=2)
                return config

    def remembered(
        self,
        identity: Identity,
        permits: Callable[[Schedule], bool],
        problem: Callable[[], TuningProblem],
        sizes: tuple[int, ...] | None = None,
    ) -> ChosenSchedule | None:
        """The schedule remembered for an identity, else what measured shapes nearby and the model say of its bucket,
        for which `problem` is posed; if `permits` says that it is legal here. Does not tune: on the path of binding.

        `sizes` is the identity's shape where extents may be symbolic, which are compared with what is remembered.
        """
        is_known = sizes is None or sizes is identity.shape or self._is_known(identity, sizes)
        found = self.database.lookup(identity) if is_known else None
        if found is not None and permits(found.entry.schedule):
            self._hits += 1
            source = chosen_by("cache", found.layer, found.entry.origin == "measured")
            return ChosenSchedule(found.entry.schedule, source)
        self._misses += 1
        unseen = self._unseen.decision(self.database, identity, permits, problem)
        return None if unseen is None else ChosenSchedule(unseen.schedule, "nearest")

    def _is_known(self, identity: Identity, sizes: tuple[int, ...]) -> bool:
        """Whether the shape, whose extents may be symbolic, has a winner; they are found to be of its buckets."""
        bucket = [size_class(extent) for extent in sizes]
        likely = (shape for shape in self.database.shapes(identity) if [size_class(each) for each in shape] == bucket)
        return any(all(map(operator.eq, sizes, shape)) for shape in likely)

    @property
    def remembers_anything(self) -> bool:
        """Whether some layer of the database has an entry. Looked up once, and again after this process stored one: a
        process that tunes beside this one is noticed by the next process.
        """
        database = self.database
        known = self._remembers.get(database)
        if not known:
            known = self._remembers[database] = known is None and database.has_entries()
        return known

    def enable(self, on: bool = True, *, share: Share = None) -> None:
        """Turns the tuning of kernels that the program uses on or off for this process.

        Tuning goes on in slices between calls, in at most `share` of the time that the program takes for itself:
        TESSERA_TUNE_SHARE, a tenth, unless given. With "first_call" a kernel is tuned at its first call, which waits.

        Raises ArgumentError (E_ARGUMENT) for a share that is no number from above 0 to 1.
        """
        self._mode.turn(on, share)
        self._changed()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Tunes the kernels that were called and are not tuned yet, now and without heeding the share; returns when all
        are done, or with False after `timeout_s` seconds.
        """
        return self._mode.wait(timeout_s)

    def save_cache(self, path: str | os.PathLike[str]) -> int:
        """Writes all winners that look-ups can find to one JSON file; their number. Raises E_CACHE_IO."""
        return exchange.export(self.database.entries(), Path(path))

    def load_cache(self, path: str | os.PathLike[str]) -> Imported:
        """Takes in an exported file, or a folder of winners: of two the faster measured one stays. Gives back what
        applied and what not, by reason: another processor, another format, a schedule that is illegal here.

        Raises E_CACHE_IO if the file cannot be read, E_CACHE_FORMAT if it is none or of another version.
        """
        backend = self._backend()
        imported = exchange.merge(self.database, Path(path), backend.archs, backend.objection)
        self._changed()
        return imported

    def dataset(self) -> DataFrame:
        """Every trial that was ever logged as a polars table, one row each: `len` is their number. Columns as
        `tuning.dataset.dataset` lists them.
        """
        from tessera.tuning.store.dataset import dataset  # polars is loaded when it is needed

        return dataset(self.database)

    def status(self) -> Status:
        """Whether tuning is on, where the cache is, what it holds, and what went wrong with it."""
        database = self.database
        warming, warming_s = self._mode.progress()
        return Status(
            self.enabled,
            database.user.root,
            database.writable(),
            database.counts(),
            self._hits,
            self._misses,
            self._tuned + sum(kernel.state == "done" for kernel in warming),
            tuple(str(problem) for problem in database.problems),
            self._mode.share,
            warming,
            warming_s,
        )

    def close(self) -> None:
        """Ends the measuring process, which is otherwise kept for the next tuning until the program ends."""
        with self._lock:
            if isinstance(self._measurer, SubprocessMeasurer):
                self._measurer.close()

    def _known(self, problem: TuningProblem) -> Config:
        """The remembered schedule, that of the nearest shape, or the default; only ones that are legal here."""
        found = self.database.lookup(problem.identity)
        if found is not None and (config := recalled(problem, found)) is not None:
            self._hits += 1
            return config
        self._misses += 1
        permits = partial(is_legal, problem)
        near = self._unseen.decision(self.database, problem.identity, permits, lambda: problem)
        if near is not None:
            return Config(near.schedule, problem.identity, "nearest", near.expected_s, note=near.note)
        return Config(problem.space.default, problem.identity, "default")

    def _measure(
        self,
        problem: TuningProblem,
        provenance: Provenance,
        how: TuningOptions,
        progress: ProgressHook | None,
        database: TuningDatabase,
    ) -> Config:
        if problem.absent:
            raise DeviceError(
                f"nothing can be measured for {problem.identity.arch}: {problem.absent}",
                hints=["method='model' asks the cost model, which needs no device"],
            )
        if self._measurer is None:
            self._measurer = SubprocessMeasurer(settings.current().tune_timeout_s)
        with terminal.shown(progress, ranks.is_writer()) as hook:
            entry, result = tune_on_device(
                problem, provenance, self._measurer, how.limits, database, hook, how.strategy, how.conditions
            )
        self._keep(entry, database)
        self._tuned += 1
        note = f"best of {len(result.trials)} measured; {result.note}"
        times = (entry.predicted_s, entry.measured_s)
        return Config(entry.schedule, entry.identity, "measured", *times, result.trials, note=note)

    def _keep(self, entry: Entry, database: TuningDatabase) -> None:
        """Records a winner. What a named cache cannot write, the database of look-ups keeps, in memory if need be."""
        if not ranks.is_writer():
            return
        written, found_in = database.put(entry), self.database
        if database is not found_in:
            for layer in found_in.layers:
                layer.forget(entry.identity)  # times of folders are too coarse to show each change
            if not written:
                found_in.put(entry)


def _one_of(target: object, device: object) -> object:
    """What the user named in one of two ways."""
    if target is not None and device is not None:
        raise ArgumentError(f"target={target!r} and device={device!r} say the same", hints=["give one of them"])
    return device if target is None else target
