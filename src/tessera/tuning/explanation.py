"""Why a schedule was chosen: what `autotune.explain` finds in the database, the log of trials and the cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.scheduling.language.schedule import Schedule
from tessera.system.notebooks import ShownAsText
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.trial import Trial, trial_of
from tessera.tuning.model.outlook import PredictedSchedule, Removed, outlook
from tessera.tuning.store.identity import Identity

_SHOWN_TERMS = 4


@dataclass(frozen=True)
class Contender:
    """A schedule with its seconds per call: predicted, and where it was measured the median and its 95 % interval."""

    schedule: Schedule
    predicted_s: float | None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True)
class Gap:
    """How much longer the runner-up takes, as a fraction of the winner's time, and the interval that it lies in: what
    the ends of both medians' 95 % intervals allow. Predicted gaps have no interval.
    """

    fraction: float
    low: float | None = None
    high: float | None = None

    @property
    def is_noise(self) -> bool:
        """Whether the two cannot be told apart; then an order that is the same everywhere decided between them."""
        return self.low is not None and self.low <= 0

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.fraction:+.1%} predicted"
        told = "cannot be told apart: the canonical order decided" if self.is_noise else "beyond the noise"
        return f"{self.fraction:+.1%} ({self.low:+.1%} to {self.high:+.1%}), {told}"


@dataclass(frozen=True)
class ScheduleExplanation(ShownAsText):
    """What is known of one choice; prints itself. `config` says where it comes from.

    `binding` is the resource that the cost model takes the winner to wait for, and `terms` the seconds that each
    resource would need alone; None, and empty, where `why_unbound` says why. `trials` counts the outcomes of what was
    measured in the tuning that found the winner, and `removed` what rules and the model left of the space.
    """

    identity: Identity
    config: Config
    winner: Contender
    runner_up: Contender | None
    gap: Gap | None
    binding: str | None
    terms: Mapping[str, float]
    removed: Removed
    trials: Mapping[str, int] = field(default_factory=dict)
    why_unbound: str = ""

    def __repr__(self) -> str:
        return f"<explanation of {self.identity}: {self.config.source}>"

    def __str__(self) -> str:
        rows = [
            ("winner", str(self.winner.schedule)),
            ("", _times(self.winner)),
            ("from", self.config.note or self.config.source),
            *self._runner_up(),
            ("bound by", self._bound()),
            ("candidates", self._candidates()),
            *(("", line) for line in self._removals()),
            *([("measured", _counts(self.trials))] if self.trials else []),
        ]
        return "\n".join([str(self.identity), *(f"  {name:<10}  {text}" for name, text in rows if text)])

    def _runner_up(self) -> list[tuple[str, str]]:
        if self.runner_up is None:
            return [("runner-up", "none: no other schedule is known")]
        rows = [("runner-up", _differences(self.runner_up.schedule, self.winner.schedule))]
        return [*rows, ("", _times(self.runner_up)), ("gap", str(self.gap) if self.gap is not None else "")]

    def _bound(self) -> str:
        if self.binding is None:
            return f"not known: {self.why_unbound}"
        longest = sorted(self.terms.items(), key=lambda term: -term[1])[:_SHOWN_TERMS]
        shown = ", ".join(f"{name} {duration(seconds)}" for name, seconds in longest if seconds > 0)
        return f"{self.binding} (alone: {shown})" if shown else self.binding

    def _candidates(self) -> str:
        drawn = " combinations drawn at random from the space" if self.removed.sampled else " combinations of choices"
        return f"{self.removed.looked:,}{drawn}, {self.removed.legal:,} of them legal"

    def _removals(self) -> list[str]:
        """What each rule removed, and the model of what is left; a combination may break several rules."""
        removed = self.removed
        lines = [f"{count:,} rejected by rule {rule}" for rule, count in removed.rules.items()]
        pruned = {"for registers that spill": removed.spilling, "as too slow to be worth a trial": removed.unlikely}
        lines += [f"{count:,} pruned by the cost model {why}" for why, count in pruned.items() if count]
        return [*lines, f"{removed.kept:,} worth measuring"]


def explanation(problem: TuningProblem, config: Config, records: Sequence[Mapping[str, Any]]) -> ScheduleExplanation:
    """Explains `config`, the choice for a problem; `records` are the trials that were logged for its identity.

    Where the choice was measured, the runner-up is the fastest other schedule of the same tuning, among those that were
    timed again in its finals if there are any; else it is the second of the cost model.
    """
    measured = _tuning_of(config, records) if config.measured_s is not None and config.source != "nearest" else {}
    winner = _contender(config.schedule, measured.get(config.schedule, ()), config)
    expected = outlook(problem)
    likely = next((each for each in (expected.favourite, expected.runner_up) if _is_other(each, config.schedule)), None)
    predicted = None if likely is None else Contender(likely.schedule, likely.predicted_s)
    runner_up = _fastest_other(measured, config.schedule) if measured else predicted
    (estimate,) = problem.estimates([config.schedule])
    known = estimate.resource != "unknown"
    outcomes = Counter(str(tries[-1].outcome) for tries in measured.values())
    return ScheduleExplanation(
        identity=problem.identity,
        config=config,
        winner=winner,
        runner_up=runner_up,
        gap=None if runner_up is None else _gap(winner, runner_up),
        binding=estimate.resource if known else None,
        terms=estimate.terms if known else {},
        removed=expected.removed,
        trials=dict(outcomes.most_common()),
        why_unbound="" if known else "the kernel has no cost model that names resources",
    )


Tries = dict[Schedule, list[Trial]]


def _tuning_of(config: Config, records: Sequence[Mapping[str, Any]]) -> Tries:
    """The trials of the tuning that found the winner, as its time tells, else of the latest; by schedule, in the order
    made. All times in it were taken side by side.
    """
    dated = [(_date(record), trial) for record in records if (trial := trial_of(record)) is not None]
    found = [date for date, each in dated if each.schedule == config.schedule and each.seconds == config.measured_s]
    wanted = found[-1] if found else max((date for date, _ in dated), default="")
    tries: Tries = {}
    for date, trial in dated:
        if date == wanted:
            tries.setdefault(trial.schedule, []).append(trial)
    return tries


def _date(record: Mapping[str, Any]) -> str:
    provenance = record.get("provenance")
    return str(provenance.get("date", "")) if isinstance(provenance, Mapping) else ""


def _contender(schedule: Schedule, tries: Sequence[Trial], config: Config) -> Contender:
    """The winner: its last timing in the log, else what the database says of it."""
    timed = [trial for trial in tries if trial.timing is not None]
    if timed:
        return _logged(timed[-1])
    return Contender(schedule, config.predicted_s, config.measured_s)


def _logged(trial: Trial) -> Contender:
    timing = trial.timing
    if timing is None:
        return Contender(trial.schedule, trial.predicted_s)
    return Contender(trial.schedule, trial.predicted_s, timing.median_s, timing.low_s, timing.high_s)


def _fastest_other(tries: Tries, winner: Schedule) -> Contender | None:
    last = [made[-1] for schedule, made in tries.items() if schedule != winner]
    others = [trial for trial in last if trial.outcome == "ok"]
    again = [trial for trial in others if trial.stage == "final"]
    found = [_logged(trial) for trial in again or others]
    return min(found, key=lambda each: (each.measured_s or float("inf"), str(each.schedule)), default=None)


def _is_other(candidate: PredictedSchedule | None, schedule: Schedule) -> bool:
    return candidate is not None and candidate.schedule != schedule


def _gap(winner: Contender, other: Contender) -> Gap | None:
    if winner.measured_s and other.measured_s:
        fraction = other.measured_s / winner.measured_s - 1
        if winner.low_s and winner.high_s and other.low_s and other.high_s:
            return Gap(fraction, other.low_s / winner.high_s - 1, other.high_s / winner.low_s - 1)
        return Gap(fraction)
    if winner.predicted_s and other.predicted_s:
        return Gap(other.predicted_s / winner.predicted_s - 1)
    return None


def duration(seconds: float) -> str:
    """A time for people: "12.3 us", "4.56 ms", "1.23 s"."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _times(contender: Contender) -> str:
    parts = []
    if contender.measured_s is not None:
        interval = ""
        if contender.low_s is not None and contender.high_s is not None:
            interval = f" ({duration(contender.low_s)} to {duration(contender.high_s)})"
        parts.append(f"measured {duration(contender.measured_s)}{interval}")
    if contender.predicted_s is not None:
        parts.append(f"predicted {duration(contender.predicted_s)}")
    return ", ".join(parts)


def _differences(schedule: Schedule, winner: Schedule) -> str:
    """The knobs in which a schedule differs from the winner."""
    changed = {knob: value for knob, value in schedule.items() if winner.get(knob) != value}
    return f"with {Schedule(changed)}" if changed else str(schedule)


def _counts(outcomes: Mapping[str, int]) -> str:
    return f"{sum(outcomes.values())}: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
