"""Recorded tables: every schedule of a problem's space with its raw samples, as gzipped JSON lines.

The first line describes the problem, the machine and how it was recorded (`About`), the second holds the anchors, and
every further line one schedule (`Record`). Schedules are timed in batches, those of one in turn; the same schedule, the
anchor, is part of each, so that times of a slow minute can be told from those of a slow schedule.
"""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bench.tuning import machines
from tessera.errors import CacheFormatError
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.target import Target
from tessera.tuning.measure.trial import Outcome
from tessera.tuning.store.identity import Identity, Provenance
from tessera.tuning.store.processors import arch_of

FORMAT = "tessera-tuning-table"
VERSION = 1
SUFFIX = ".jsonl.gz"
TABLES = Path(__file__).resolve().parent.parent / "tables"
"""Where tables are kept, a folder for each kind of CPU."""
ENOUGH = 3
"""With fewer undisturbed samples than this, a schedule's disturbed ones count as well."""
DRIFT = 0.02
"""What the anchor may differ from its usual time before a batch is corrected by it: few samples err by as much."""
BUSY = 0.1
"""The share of disturbed samples from which on a table counts as recorded on a busy machine."""

Role: TypeAlias = Literal["space", "default", "start", "tuned"]
"""Why a schedule was recorded: as one of the recorded space, or because it is known to be good: the default, another
start, or what the tuner found in the whole space. Of a schedule that is several, the last of these that is."""


@dataclass(frozen=True)
class About:
    """What a table is about, and under which circumstances it was recorded.

    `shapes` is what `autotune` takes. `knobs` are the choices of the recorded space, in which `legal` schedules are;
    `limit` of them at most were to be recorded, drawn with `seed` where there are more. `whole` is the number of
    combinations of the whole space that the compiler gives. `ceilings` are those that estimates rest on, None where
    they were estimated, too. `identity`, `family` and `provenance` are the tuner's.
    """

    name: str
    operator: str
    shapes: Any
    dtype: str
    threads: int
    cpu: str
    cores: int
    versions: Mapping[str, str]
    identity: Identity
    family: str
    provenance: Provenance
    ceilings: Mapping[str, Any] | None
    knobs: Mapping[str, tuple[KnobValue, ...]]
    default: Schedule
    legal: int
    limit: int
    whole: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        record = {one.name: getattr(self, one.name) for one in fields(self)}
        record |= {name: record[name].to_json() for name in ("identity", "provenance", "default")}
        return {"format": FORMAT, "version": VERSION, **record}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> About:
        """What `to_json` wrote. Raises CacheFormatError for a table of another format."""
        if values.get("format") != FORMAT or values.get("version") != VERSION:
            raise CacheFormatError(f"no table of measurements of version {VERSION}")
        known = {one.name: values[one.name] for one in fields(cls)}
        shapes = known["shapes"]
        known["shapes"] = [tuple(one) for one in shapes] if isinstance(shapes[0], list) else tuple(shapes)
        known["knobs"] = {name: tuple(map(_value, choices)) for name, choices in known["knobs"].items()}
        known["identity"] = Identity.from_json(known["identity"])
        known["provenance"] = Provenance.from_json(known["provenance"])
        known["default"] = Schedule.from_json(known["default"])
        return cls(**known)


@dataclass(frozen=True)
class Turns:
    """Seconds per call of one schedule in one batch, in the order taken, and which of them other work disturbed."""

    batch: int
    seconds: tuple[float, ...]
    contended: tuple[bool, ...]


@dataclass(frozen=True)
class Record:
    """One schedule: what became of it, its samples, and what the analytical cost model expected.

    `code` is a digest of its kernels and how they are launched: schedules that differ in a knob without effect share
    it, and one of them has the samples of all. `lagged` says that it was timed no further because it was several times
    slower than the best. `terms` are the seconds of each resource alone (`scheduling.estimate.Estimate`).
    """

    schedule: Schedule
    outcome: Outcome
    turns: tuple[Turns, ...] = ()
    code: str = ""
    lagged: bool = False
    role: Role = "space"
    detail: str = ""
    estimated_s: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)

    def to_json(self, knobs: Iterable[str]) -> dict[str, Any]:
        """Plain JSON values without those that are as by default; `knobs` is the order of a schedule's values, as in
        `from_json`, the inverse.
        """
        record: dict[str, Any] = {"schedule": [self.schedule[knob] for knob in knobs], "outcome": self.outcome}
        record |= {"code": self.code} if self.code else {}
        if self.turns:
            record["turns"] = [
                [turns.batch, list(map(_rounded, turns.seconds)), [i for i, bad in enumerate(turns.contended) if bad]]
                for turns in self.turns
            ]
        record |= {"lagged": True} if self.lagged else {}
        record |= {"role": self.role} if self.role != "space" else {}
        record |= {"detail": self.detail} if self.detail else {}
        record |= {"estimated_s": _rounded(self.estimated_s)} if self.estimated_s is not None else {}
        record |= {"terms": {name: _rounded(value) for name, value in self.terms.items()}} if self.terms else {}
        return record

    @classmethod
    def from_json(cls, values: Mapping[str, Any], knobs: Iterable[str]) -> Record:
        """What `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        known = dict(values)
        known["schedule"] = Schedule(dict(zip(knobs, map(_value, known["schedule"]), strict=True)))
        known["turns"] = tuple(
            Turns(batch, tuple(seconds), tuple(i in disturbed for i in range(len(seconds))))
            for batch, seconds, disturbed in known.get("turns", ())
        )
        return cls(**known)


def _value(value: Any) -> KnobValue:
    return tuple(value) if isinstance(value, list) else value


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.5g}")


@dataclass(frozen=True)
class Table:
    """A recorded table. `anchors` is the median of the anchor, in seconds a call, by batch; None for one in which too
    few of its samples were undisturbed. `target` is the CPU that recorded it, None where that is not known.
    """

    about: About
    records: tuple[Record, ...]
    anchors: tuple[float | None, ...]
    target: Target | None = None

    @cached_property
    def by_schedule(self) -> Mapping[Schedule, Record]:
        """The records by their schedules."""
        return {record.schedule: record for record in self.records}

    @cached_property
    def space(self) -> Space[Any]:
        """The schedules recorded for their own sake, as a space to search: all others are illegal in it."""
        return self.space_from(self.about.default)

    def space_from(self, default: Schedule) -> Space[Any]:
        """`space` with another default, where the table has it: today's, where it is not the recorded one any more."""
        recorded = frozenset(record.schedule for record in self.records if self.in_space(record.schedule))
        rule: Rule[Any] = Rule("recorded", "the table has it", lambda schedule, problem: schedule in recorded)
        knobs = tuple(Knob(name, choices, "as recorded") for name, choices in self.about.knobs.items())
        return Space(knobs, (rule,), None, default if default in recorded else self.about.default)

    def in_space(self, schedule: Schedule) -> bool:
        """Whether a schedule is made of the recorded space's choices."""
        return all(schedule[name] in choices for name, choices in self.about.knobs.items())

    @cached_property
    def _pooled(self) -> Mapping[str, tuple[tuple[float, bool], ...]]:
        """(seconds, disturbed) by code. Seconds are corrected by how fast the anchor was in their batch."""
        known = [anchor_s for anchor_s in self.anchors if anchor_s is not None]
        usual = statistics.median(known) if known else 0.0
        pooled: dict[str, list[tuple[float, bool]]] = {}
        for record in self.records:
            samples = pooled.setdefault(record.code, [])
            for turns in record.turns:
                anchor_s = self.anchors[turns.batch]
                factor = usual / anchor_s if anchor_s is not None else 1.0
                factor = factor if abs(factor - 1) > DRIFT else 1.0
                samples += [(s * factor, bad) for s, bad in zip(turns.seconds, turns.contended, strict=True)]
        return {code: tuple(samples) for code, samples in pooled.items()}

    def samples(self, schedule: Schedule, half: int | None = None) -> tuple[float, ...]:
        """The undisturbed samples of a schedule, seconds a call; all of them where these are too few. Empty for one
        that failed, and one that the table lacks. With `half` 0 or 1 every other one: two halves have no sample in
        common. Of few samples, those of schedules that lag behind, both halves have all.
        """
        record = self.by_schedule.get(schedule)
        if record is None or record.outcome != "ok":
            return ()
        pooled = self._pooled[record.code]
        clean = tuple(seconds for seconds, disturbed in pooled if not disturbed)
        kept = clean if len(clean) >= min(ENOUGH, len(pooled)) else tuple(seconds for seconds, _ in pooled)
        return kept if half is None or len(kept) < 2 * ENOUGH else kept[half::2]

    @cached_property
    def seconds(self) -> Mapping[Schedule, float]:
        """The median of every schedule of the space that runs."""
        return {schedule: self.median(schedule) for schedule in self.space.candidates() if self.samples(schedule)}

    def median(self, schedule: Schedule, half: int | None = None) -> float:
        """The median seconds a call of a schedule, of all its samples or of a half. Raises `statistics.StatisticsError`
        where it has none.
        """
        return statistics.median(self.samples(schedule, half))

    @cached_property
    def best_s(self) -> float:
        """The least median of the space, seconds a call. Raises ValueError where none of its schedules runs."""
        return min(self.seconds.values())

    def share(self, schedule: Schedule, half: int | None = None) -> float:
        """The best time divided by that of a schedule of the space: 1 for the best; 0 for one that does not run. With
        `half` the schedule is judged by these samples alone, and may come out a little above 1.
        """
        found = self.seconds.get(schedule)
        if found is None:
            return 0.0
        return self.best_s / (found if half is None else self.median(schedule, half))

    @cached_property
    def known_s(self) -> float | None:
        """The least median of the schedules that were known to be good beforehand; None where there are none."""
        known = [record.schedule for record in self.records if record.role != "space"]
        return min((self.median(schedule) for schedule in known if self.samples(schedule)), default=None)

    @property
    def exhaustive(self) -> bool:
        """Whether every legal schedule of the recorded space was measured."""
        return sum(self.in_space(record.schedule) for record in self.records) >= self.about.legal

    @property
    def busy_share(self) -> float:
        """The share of all samples that other work disturbed."""
        marks = [bad for record in self.records for turns in record.turns for bad in turns.contended]
        return sum(marks) / len(marks) if marks else 0.0


def write(table: Table, path: Path) -> None:
    """Writes a table; the same bytes for the same table."""
    anchors = [None if anchor_s is None else _rounded(anchor_s) for anchor_s in table.anchors]
    lines = [table.about.to_json(), {"anchors": anchors}]
    lines += [record.to_json(table.about.knobs) for record in table.records]
    text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> Table:
    """The table in a file. Raises CacheFormatError (E_CACHE_FORMAT) for a file that is none."""
    try:
        head, anchors, *lines = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
        about, target = About.from_json(head), machines.load(path.parent)
        if target is not None and about.identity.arch == target.arch:  # as tables were written before
            about = replace(about, identity=replace(about.identity, arch=arch_of(target)))
        records = tuple(Record.from_json(line, about.knobs) for line in lines)
        return Table(about, records, tuple(anchors["anchors"]), target)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, CacheFormatError):
            raise
        raise CacheFormatError(f"{path.name} is no table of measurements: {type(error).__name__} {error}") from error
