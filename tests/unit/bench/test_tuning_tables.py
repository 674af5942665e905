"""Recorded tables: what a file holds, what a recording that was cut short keeps, and how samples are handed out."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tuning.journal import Journal
from bench.tuning.replay import TableMeasurer
from bench.tuning.table import Record, Table, Turns, read, write
from tessera.errors import CacheFormatError
from tessera.tuning.measure.measurement import Effort
from tests.unit.bench.recorded import about, record, table
from tests.unit.tuning.support import OPTIMUM, PROVENANCE, SPACE, synthetic_seconds

TWICE = Effort(rounds=2, sample_s=1e-3, lag=1.3, limit_s=1.0)
LONG = replace(TWICE, rounds=6)
OTHER = OPTIMUM.replace(kc=128)


def of(*records: Record, anchors: tuple[float | None, ...] = (1.0,)) -> Table:
    return Table(about(), records, anchors)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_table_is_what_was_written(tmp_path: Path) -> None:
    failed = Record(OTHER, "crashed", code="c", detail="killed by SIGSEGV")
    lagging = record(OPTIMUM, [2e-3], lagged=True, role="tuned", terms={"L2": 1e-3}, estimated_s=1.5e-3)
    written = of(failed, lagging)
    write(written, tmp_path / "one.jsonl.gz")
    write(written, tmp_path / "two.jsonl.gz")
    assert read(tmp_path / "one.jsonl.gz") == written
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()


@given(st.lists(st.tuples(st.floats(1e-7, 10.0), st.booleans()), min_size=1, max_size=8))
def test_samples_keep_five_digits_and_their_marks(samples: list[tuple[float, bool]]) -> None:
    turns = Turns(0, tuple(s for s, _ in samples), tuple(bad for _, bad in samples))
    again = Record.from_json(json.loads(json.dumps(Record(OPTIMUM, "ok", (turns,)).to_json(OPTIMUM))), OPTIMUM)
    assert again.turns[0].contended == turns.contended
    assert again.turns[0].seconds == pytest.approx(turns.seconds, rel=1e-4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x1f\x8b torn",
        gzip.compress(b"no json"),
        gzip.compress(b'{"format": "other"}\n{}'),
        gzip.compress(b"1\n2"),
    ],
    ids=["empty", "torn", "no JSON", "another format", "no objects"],
)
def test_what_is_no_table_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(CacheFormatError):
        read(path)


# -- what the samples say ---------------------------------------------------------------------------------------------


def test_a_slow_minute_is_taken_out_by_the_anchor() -> None:
    slow = replace(record(OTHER, [3.0, 3.0, 3.0]), turns=(Turns(2, (3.0,) * 3, (False,) * 3),))
    found = of(record(OPTIMUM, [1.0, 1.0, 1.0]), slow, anchors=(1.0, 1.0, 2.0))
    assert found.median(OPTIMUM) == 1.0
    assert found.median(OTHER) == 1.5
    for anchor_s in (None, 1.01):  # one that is not known, and one that errs by no more than few samples do
        assert of(slow, anchors=(1.0, 1.0, anchor_s)).median(OTHER) == 3.0


def test_disturbed_samples_count_only_where_there_are_few_others() -> None:
    clean = Record(OPTIMUM, "ok", (Turns(0, (1.0, 1.0, 1.0, 9.0), (False, False, False, True)),), "a")
    few = Record(OTHER, "ok", (Turns(0, (1.0, 9.0, 9.0), (False, True, True)),), "b")
    found = of(clean, few)
    assert found.samples(OPTIMUM) == (1.0, 1.0, 1.0)
    assert found.samples(OTHER) == (1.0, 9.0, 9.0)
    assert found.busy_share == pytest.approx(3 / 7)


def test_a_half_of_the_samples_judges_by_itself() -> None:
    found = of(record(OPTIMUM, [1.0, 3.0] * 3), record(OTHER, [1.5] * 6))
    assert (found.samples(OPTIMUM, 0), found.samples(OPTIMUM, 1)) == ((1.0,) * 3, (3.0,) * 3)
    assert (found.share(OPTIMUM), found.share(OPTIMUM, 0), found.share(OPTIMUM, 1)) == (0.75, 1.5, 0.5)
    assert of(record(OPTIMUM, [2.0])).samples(OPTIMUM, 1) == (2.0,)


def test_schedules_of_the_same_code_share_their_samples() -> None:
    found = of(record(OPTIMUM, [1.0, 2.0, 3.0], code="same"), record(OTHER, [], code="same"))
    assert found.median(OTHER) == found.median(OPTIMUM) == 2.0


def test_known_schedules_outside_the_space_are_no_part_of_it() -> None:
    outside = OPTIMUM.replace(kc=4096)
    found = of(record(OPTIMUM, [1.0]), record(outside, [0.9], role="default"))
    assert set(found.seconds) == {OPTIMUM}
    assert (found.best_s, found.known_s) == (1.0, 0.9)
    assert found.space.violations(outside) == ("recorded",)
    assert found.share(outside) == 0.0


def test_a_table_of_all_legal_schedules_is_exhaustive() -> None:
    whole = table()
    assert whole.exhaustive
    assert not replace(whole, records=whole.records[1:]).exhaustive
    assert list(whole.space.candidates()) == list(SPACE.candidates())


# -- a recording that was cut short -----------------------------------------------------------------------------------


def test_a_torn_batch_is_lost_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "one.part"
    first = Journal(path, about())
    first.append(1.0, [record(OPTIMUM, [1.0])])
    first.append(1.0, [record(OTHER, [2.0], batch=1)])
    text = path.read_text()
    path.write_text(text[:-20])
    again = Journal(path, about())
    assert set(again.records) == {OPTIMUM}
    again.append(1.0, [record(OTHER, [2.0], batch=1)])
    assert path.read_text() == text


def test_batches_of_one_schedule_add_up_and_one_failure_is_final(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "one.part", about())
    journal.append(1.0, [record(OPTIMUM, [1.0], role="default"), record(OTHER, [2.0])])
    journal.append(1.0, [record(OPTIMUM, [3.0], batch=1), Record(OTHER, "timeout")])
    assert journal.table().samples(OPTIMUM) == (1.0, 3.0)
    assert journal.records[OPTIMUM].role == "default"
    assert journal.records[OTHER].outcome == "timeout"
    assert journal.table().samples(OTHER) == ()


def test_what_another_generator_recorded_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "one.part"
    Journal(path, about()).append(1.0, [record(OPTIMUM, [1.0])])
    later = replace(about(), provenance=replace(PROVENANCE, date="2030-01-01T00:00:00+00:00"))
    assert Journal(path, later).records
    changed = replace(about(), provenance=replace(PROVENANCE, generator="gen2"))
    assert not Journal(path, changed).records


# -- replay -----------------------------------------------------------------------------------------------------------


def test_samples_are_handed_out_one_by_one_and_all_before_any_twice() -> None:
    found = of(record(OPTIMUM, [1.0, 2.0, 3.0, 4.0]))
    measurer = TableMeasurer(found)
    drawn = [measurer.measure([(OPTIMUM, None)], TWICE)[0].timing for _ in range(2)]
    assert sorted(x for one in drawn if one is not None for x in (one.low_s, one.high_s)) == [1.0, 2.0, 3.0, 4.0]


def test_the_same_seed_is_the_same_noise_and_two_halves_have_none_in_common() -> None:
    noisy = table(noise=0.1)
    schedules = [(schedule, None) for schedule in SPACE.candidates()]
    assert TableMeasurer(noisy, 3).measure(schedules, LONG) == TableMeasurer(noisy, 3).measure(schedules, LONG)
    halves = [TableMeasurer(noisy, half, half).measure([(OPTIMUM, None)], replace(LONG, rounds=10)) for half in (0, 1)]
    ends = [{trial.timing.low_s, trial.timing.high_s, trial.timing.median_s} for (trial,) in halves if trial.timing]
    assert not ends[0] & ends[1]


def test_laggards_are_timed_no_further() -> None:
    trials = TableMeasurer(table()).measure([(OPTIMUM, None), (SPACE.default, None)], LONG)
    assert [trial.timing.taken for trial in trials if trial.timing] == [6, 2]
    assert synthetic_seconds(SPACE.default) > 1.3 * synthetic_seconds(OPTIMUM)


def test_failures_and_strangers_have_their_outcomes() -> None:
    found = of(Record(OPTIMUM, "wrong", detail="element (0, 0)"))
    trials = TableMeasurer(found).measure([(OPTIMUM, None), (OTHER, None)], TWICE)
    assert [(trial.outcome, trial.detail) for trial in trials] == [
        ("wrong", "element (0, 0)"),
        ("compile_error", "not in the recorded table"),
    ]
