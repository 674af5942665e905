"""Tuning by the ranks of one job together: they split the candidates, and agree on one winner.

Rank 0 searches. What it wants measured it sends to all ranks; each measures a part, in comparison with the first of the
candidates, which all of them measure, and all get all trials. The candidates of the final are measured by every rank.
Nobody waits for another rank longer than a limit: rank 0 goes on alone when it has lost one, the others raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median_low
from typing import Any, Final, TypeVar

import torch.distributed as dist

from tessera.errors import TesseraError, TuneFailedError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import Effort
from tessera.tuning.measure.trial import Trial
from tessera.tuning.search.search import Evaluate, SearchResult

T = TypeVar("T")

LIMIT_S: Final = 300.0
"""Seconds that a rank waits for the others: a part of a batch in which every candidate hangs takes some minutes."""


class LostRankError(Exception):
    """Another rank is gone, or did not answer in time."""


@dataclass(frozen=True)
class _Wanted:
    """What rank 0 asks all ranks to measure, of which kernel."""

    subject: str
    schedules: tuple[Schedule, ...]
    effort: Effort


class Team:
    """The ranks of a process group that has a CPU backend (gloo). All of them must call the same methods in turn."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._lost = False

    @property
    def leads(self) -> bool:
        """Whether this is the rank that searches, and that writes what all agree on."""
        return self.rank == 0

    def decided(self, value: T) -> T:
        """The value of rank 0, for all. Raises TuneFailedError where rank 0 cannot be reached."""
        try:
            first: T = self._exchange(value)[0]
        except LostRankError as error:
            if self.leads:
                return value
            raise TuneFailedError(f"rank {self.rank} has lost rank 0: {error}") from error
        return first

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks. Raises TuneFailedError where one cannot be reached."""
        try:
            return self._exchange(value)
        except LostRankError as error:
            raise TuneFailedError(f"rank {self.rank} has lost another: {error}") from error

    def search(self, subject: str, lead: Callable[[Evaluate], SearchResult], evaluate: Evaluate) -> SearchResult:
        """The result of `lead`, which rank 0 calls with an `evaluate` that all ranks share, on every rank; they must
        speak of the same `subject`. Raises what that raises, on every rank, and TuneFailedError on one that has lost
        rank 0 or tunes something else.
        """
        if not self.leads:
            return self._follow(subject, evaluate)
        try:
            result = lead(self._sharing(subject, evaluate))
        except TesseraError as error:
            self._tell(error.message)
            raise
        self._tell(result)
        return result

    def _sharing(self, subject: str, evaluate: Evaluate) -> Evaluate:
        def shared(schedules: Sequence[Schedule], effort: Effort) -> Sequence[Trial]:
            if self._lost:
                return evaluate(schedules, effort)
            try:
                self._exchange(_Wanted(subject, tuple(schedules), effort))
                parts = self._exchange(self._measured(schedules, effort, evaluate))
            except LostRankError:
                return evaluate(schedules, effort)
            for rank, part in enumerate(parts):
                if isinstance(part, str):
                    raise TuneFailedError(f"rank {rank} cannot measure: {part}")
            return merged(schedules, parts)

        return shared

    def _follow(self, subject: str, evaluate: Evaluate) -> SearchResult:
        """Measures what rank 0 wants measured, until it has found the winner."""
        while True:
            wanted: object = self.decided(None)
            if isinstance(wanted, SearchResult):
                return wanted
            if not isinstance(wanted, _Wanted):
                raise TuneFailedError(f"rank 0 has found no winner: {wanted}")
            if wanted.subject != subject:
                raise TuneFailedError(f"rank 0 tunes {wanted.subject}, rank {self.rank} {subject}")
            self.decided(self._measured(wanted.schedules, wanted.effort, evaluate))

    def _measured(self, schedules: Sequence[Schedule], effort: Effort, evaluate: Evaluate) -> Sequence[Trial] | str:
        """The trials of this rank's part, or why it has none, which all have to hear: they would wait for it."""
        try:
            return evaluate(self._part(schedules, effort), effort)
        except TesseraError as error:
            return error.message

    def _part(self, schedules: Sequence[Schedule], effort: Effort) -> Sequence[Schedule]:
        """What this rank measures: the first, which makes ranks comparable, and every `size`th of the others."""
        return schedules if not effort.one_by_one else [*schedules[:1], *schedules[1:][self.rank :: self.size]]

    def _tell(self, value: object) -> None:
        if not self._lost:
            self.decided(value)

    def _exchange(self, value: Any) -> list[Any]:
        """What each rank gives here, by rank. Raises LostRankError, for good."""
        if self._lost:
            raise LostRankError("it was lost before")
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:  # gloo: a connection was closed, or nobody wrote in time
            self._lost = True
            raise LostRankError(str(error).splitlines()[0]) from error
        return values


def merged(schedules: Sequence[Schedule], parts: Sequence[Sequence[Trial]]) -> list[Trial]:
    """A trial for each schedule, from the parts that ranks have measured; of several, the one in the middle.

    Every part begins with the first schedule: its times say how fast the rank's processor is next to that of the first
    rank, and the times of the part are scaled so. What failed on one rank has failed.
    """
    reference = parts[0][0]
    found: dict[Schedule, list[Trial]] = {}
    for part in parts:
        own = part[0]
        factor = reference.seconds / own.seconds if reference.timing is not None and own.timing is not None else 1.0
        for trial in part:
            timing = trial.timing.scaled(factor) if trial.timing is not None else None
            found.setdefault(trial.schedule, []).append(replace(trial, timing=timing))
    return [_middle(found[schedule]) for schedule in schedules]


def _middle(trials: Sequence[Trial]) -> Trial:
    failed = [trial for trial in trials if trial.timing is None]
    if failed:
        return failed[0]
    middle = median_low(trial.seconds for trial in trials)
    return next(trial for trial in trials if trial.seconds == middle)


_current: ContextVar[Team | None] = ContextVar("tessera_tuning_team", default=None)


def current_team() -> Team | None:
    """The team that tunes together here; None where a process tunes for itself."""
    return _current.get()


def decided(value: T) -> T:
    """What the team that tunes together has decided: the value of its first rank, or of a process that is alone."""
    current = _current.get()
    return value if current is None else current.decided(value)


def gathered(value: T) -> list[T]:
    """The values of all ranks of the team that tunes together, or that of a process that is alone."""
    current = _current.get()
    return [value] if current is None else current.gathered(value)


def is_writer() -> bool:
    """Whether this process stores what was found: one of a team does."""
    current = _current.get()
    return current is None or current.leads


@contextmanager
def without_team() -> Iterator[None]:
    """Has what is tuned inside tuned by this process for itself, whatever team it belongs to."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def team(limit_s: float = LIMIT_S) -> Iterator[Team | None]:
    """Has what is tuned inside tuned by all ranks of the job that `torchrun` started, or of the process group that
    there is; gives None, and changes nothing, where there is one rank or none. Nobody waits longer than `limit_s` for
    another.
    """
    if not dist.is_available() or not (dist.is_initialized() or dist.is_torchelastic_launched()):
        yield None
        return
    limit = timedelta(seconds=limit_s)
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo", timeout=limit)
    try:
        if dist.get_world_size() == 1:
            yield None
            return
        made = Team(dist.new_group(backend="gloo", timeout=limit))
        token = _current.set(made)
        try:
            yield made
        finally:
            _current.reset(token)
    finally:
        if ours:
            dist.destroy_process_group()
