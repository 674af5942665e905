"""What a session recorded since somebody last asked, in the form in which it leaves the process.

The native records go as they are, 64 bytes each, with the facts about plans and the few other events as JSON: the
profiled process builds no tables, and needs no library for it. `recording_of` puts them together on the other side.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from tessera.profiling.attach import wire
from tessera.profiling.recording import facts, tracks
from tessera.profiling.recording.attribution import IssuedWork, Moment
from tessera.profiling.recording.events import RecordedEvent
from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.recording.recording import CountedKernel, Recording, distinct
from tessera.profiling.recording.regions import Presence, RegionEvent
from tessera.profiling.recording.tracks import Service, Track
from tessera.profiling.ring.layout import RECORD_FIELDS, RECORD_WORDS
from tessera.profiling.session import sessions
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.sessions import Session

_EVENTS: Final = ("regions", "presences", "marks", "counters", "events", "issued", "counted")
_COUNTS: Final = ("launched", "overwritten", "unfinished")
_PLAN: Final = RECORD_FIELDS.index("plan")
_MOST: Final = {"start": 2**62, "end": 2**62, "plan": 2**31, "step": 2**31, "workers": 2**20, "device": 2**10}
"""What the fields of native records may hold: tables have columns of 32 bits, and lists of the devices' names."""
_WORD: Final = numpy.dtype("<i8")


@dataclass(frozen=True)
class Increment:
    """A part of what a session recorded: native records, and all else as plain JSON values."""

    rows: NDArray[numpy.int64]
    rest: dict[str, Any]

    def pack(self) -> tuple[dict[str, Any], bytes]:
        """The fields of a message's header, and its payload."""
        rows, rest = self.rows.astype(_WORD).tobytes(), json.dumps(self.rest).encode()
        return {"rows": len(self.rows), "json": len(rest)}, rest + rows

    @staticmethod
    def unpack(header: dict[str, Any], payload: bytes) -> Increment:
        """Of a message what `pack` made. Raises ValueError, KeyError or TypeError for anything else."""
        split = int(header["json"])
        if not 0 <= split <= wire.JSON_LIMIT:
            raise ValueError(f"{split} bytes of JSON, of which at most {wire.JSON_LIMIT} are taken")
        rows = numpy.frombuffer(payload, _WORD, offset=split).reshape(int(header["rows"]), RECORD_WORDS)
        for name, most in _MOST.items():
            values = rows[:, RECORD_FIELDS.index(name)]
            if ((values < 0) | (values > most)).any():
                raise ValueError(f"records whose {name} is below 0 or beyond {most}")
        return Increment(rows.astype(numpy.int64), dict(json.loads(payload[:split])))


@dataclass
class Taker:
    """Takes increments of one session. What was taken the session holds no more, so that it stays small."""

    session: Session
    _told: set[int] = field(default_factory=set)
    _counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    _unmeasured: dict[str, int] = field(default_factory=dict)

    def take(self) -> Increment:
        """What came since the last call."""
        if self.session.active:
            sessions.collect()
        recording, rows = self.session.recording, self.session.take_rows()
        rest: dict[str, Any] = {name: _take(getattr(recording, name)) for name in _EVENTS}
        for name in _COUNTS:
            now = getattr(recording, name)
            rest[name], self._counted[name] = now - self._counted[name], now
        before, self._unmeasured = self._unmeasured, dict(recording.unmeasured)
        # Fewer than before where a GPU has told its times meanwhile.
        rest["unmeasured"] = {
            name: self._unmeasured.get(name, 0) - before.get(name, 0) for name in before | self._unmeasured
        }
        rest["plans"] = self._plans(distinct(rows[:, _PLAN]))
        rest["threads"], rest["services"] = dict(recording.thread_names), tracks.known()
        rest["start_ns"], rest["end_ns"] = recording.start_ns, recording.end_ns or time.monotonic_ns()
        rest["start_unix_ns"], rest["pid"] = recording.start_unix_ns, recording.pid
        rest["capability"] = recording.capability
        rest["clock"] = recording.clock_offset_ns, recording.clock_uncertainty_ns  # known when the session has ended
        return Increment(rows, rest)

    def _plans(self, numbers: set[int]) -> dict[int, Any]:
        """The facts of plans that were not told yet, and what they compute."""
        new = numbers - self._told
        self._told |= new
        computed = {**facts.expressions(new - self.session.recording.plans.keys()), **self.session.recording.plans}
        return {
            number: {
                "steps": [asdict(step) for step in self.session.recording.plan_facts(number)],
                "computes": computed[number]() if number in computed else None,
            }
            for number in new
        }


def _take(events: list[Any]) -> list[Any]:
    # Other threads append without a lock: what they add meanwhile stays behind what is taken.
    taken = events[:]
    del events[: len(taken)]
    return taken


def recording_of(increments: Sequence[Increment], plans: Mapping[str, Any], options: SessionOptions) -> Recording:
    """A recording with all that the increments hold. `plans`: what was told of each by any increment; `options`: those
    of the session.
    """
    made = Recording(record_shapes=options.record_shapes)
    made.about = options.about()
    if increments:
        first = increments[0].rest
        made.start_ns, made.end_ns = first["start_ns"], increments[-1].rest["end_ns"]
        made.start_unix_ns, made.pid = first["start_unix_ns"], first["pid"]
        made.capability = dict(increments[-1].rest["capability"])
        made.clock_offset_ns, made.clock_uncertainty_ns = increments[-1].rest["clock"]
    services: dict[int, list[Service]] = {}
    for each in increments:
        rest = each.rest
        made.launched += rest["launched"]
        made.overwritten += rest["overwritten"]
        made.unfinished += rest["unfinished"]
        for device, count in rest["unmeasured"].items():
            made.unmeasured[device] = made.unmeasured.get(device, 0) + count
            if not made.unmeasured[device]:
                del made.unmeasured[device]
        made.regions += [RegionEvent(*event) for event in rest["regions"]]
        made.presences += [Presence(*event) for event in rest["presences"]]
        made.marks += [tuple(event) for event in rest["marks"]]
        made.counters += [tuple(event) for event in rest["counters"]]
        made.events += [RecordedEvent(*event) for event in rest["events"]]
        made.counted += [CountedKernel(*event) for event in rest["counted"]]
        made.issued += [
            IssuedWork(thread, begin, end, Moment(*issued)) for thread, begin, end, issued in rest["issued"]
        ]
        made.thread_names |= {int(thread): name for thread, name in rest["threads"].items()}
        services |= {int(thread): _services(served) for thread, served in rest["services"].items()}
    made.adopt(
        [each.rows for each in increments],
        {int(number): [_step(step) for step in plan["steps"]] for number, plan in plans.items()},
        {
            int(number): partial(dict, plan["computes"])
            for number, plan in plans.items()
            if plan["computes"] is not None
        },
        services,
    )
    return made


def _services(served: list[Any]) -> list[Service]:
    return [Service(thread, since, Track(*track)) for thread, since, track in served]


def _step(values: dict[str, Any]) -> StepFacts:
    pairs = {name: tuple(map(tuple, values[name])) for name in ("shapes", "traffic")}
    return StepFacts(**values | {name: tuple(values[name]) for name in ("fused", "rewrites")} | pairs)
