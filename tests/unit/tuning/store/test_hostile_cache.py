"""Cache files that somebody made to harm: they are data, stay in their folder, and cost a warning at most."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import CacheFormatError
from tessera.scheduling.language.knobs import is_like
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store import untrusted
from tessera.tuning.store.database import CacheWarning, TuningDatabase
from tessera.tuning.store.entry import dump, from_record, parse
from tessera.tuning.store.exchange import collect
from tests.unit.tuning.support import MATMUL, OPTIMUM, SPACE, entry, shaped, timing

DEEP = b"[" * 100_000
SECRET = "what stands outside"


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    database = TuningDatabase(tmp_path / "user", shipped=None)
    database.put(entry())
    return TuningDatabase(tmp_path / "user", shipped=None)


@pytest.fixture
def path(database: TuningDatabase) -> Path:
    """The file of the one entry."""
    return database.user.path(MATMUL, "measured")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the cache folder."""
    file = tmp_path / "outside"
    file.write_text(SECRET)
    return file


def link(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside)


def pipe(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path, _: Path) -> None:
    os.truncate(path, 1 << 40)  # sparse: it takes no room


def deep(path: Path, _: Path) -> None:
    path.write_bytes(DEEP)


def misplaced(path: Path, _: Path) -> None:
    path.write_text(path.read_text().replace('"zen5"', '"zen6"'))


@pytest.mark.parametrize("attack", [link, pipe, folder, huge, deep, misplaced])
def test_a_file_that_is_no_entry_is_a_miss_that_is_said(
    database: TuningDatabase, path: Path, outside: Path, attack: Callable[[Path, Path], None]
) -> None:
    attack(path, outside)
    with pytest.warns(CacheWarning, match="E_CACHE_FORMAT"):
        assert database.lookup(MATMUL) is None
    assert outside.read_text() == SECRET


@pytest.mark.parametrize("attack", [link, pipe, huge, deep])
def test_a_winner_takes_its_place_and_loses_nothing(
    database: TuningDatabase, path: Path, outside: Path, attack: Callable[[Path, Path], None]
) -> None:
    attack(path, outside)
    with pytest.warns(CacheWarning, match="kept as"):
        assert database.put(entry(kc=512))
    found = database.lookup(MATMUL)
    assert found is not None
    assert found.entry.schedule["kc"] == 512
    assert outside.read_text() == SECRET
    assert len(list(path.parent.glob("*.kept-*"))) == 1


def test_a_folder_that_leads_elsewhere_is_neither_read_nor_written(database: TuningDatabase, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    inside = database.user.folder / MATMUL.family()
    inside.rename(elsewhere)
    inside.symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    with pytest.warns(CacheWarning, match="is a link"):
        assert database.lookup(MATMUL) is None
    with pytest.warns(CacheWarning, match="E_CACHE_IO"):
        assert not database.put(entry(kc=512))
    assert not database.log(MATMUL, [Trial(OPTIMUM, "ok", timing(1e-3))], {})
    assert sorted(elsewhere.iterdir()) == before


def test_logs_are_not_written_through_a_link(database: TuningDatabase, outside: Path) -> None:
    trial = Trial(OPTIMUM, "ok", timing(1e-3))
    database.log(MATMUL, [trial], {})
    (log,) = database.user.logs(MATMUL)
    link(log, outside)
    with pytest.warns(CacheWarning, match="cannot write"):
        assert not database.log(MATMUL, [trial], {})
    with pytest.warns(CacheWarning, match="is a link"):
        assert database.trials(MATMUL) == []
    assert outside.read_text() == SECRET


def test_spoiled_lines_of_a_log_cost_only_themselves(database: TuningDatabase) -> None:
    trial = Trial(OPTIMUM, "ok", timing(1e-3))
    database.log(MATMUL, [trial], {"run": 1})
    (log,) = database.user.logs(MATMUL)
    with log.open("ab") as stream:
        stream.write(b"x" * (3 * untrusted.ENTRY_BYTES) + b"\n" + DEEP + b'\n{"run": NaN}\n[]\n\xff\xfe\n')
    database.log(MATMUL, [trial], {"run": 2})
    assert [record["run"] for record in database.trials(MATMUL)] == [1, 2]


def test_names_that_are_not_of_this_package_are_passed_over(database: TuningDatabase, path: Path) -> None:
    for name in ("\x1b[2J.json", "a b.json", "..json", ".hidden.json", "Üß.json"):
        (path.parent / name).write_text("{")
    (database.user.folder / "\x1b[31m").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(database.entries()) == [entry()]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["identity", "schedule", "origin", "measured_s", "predicted_s", "trials", "provenance", "version"]
)
IDENTITY_FIELDS = st.sampled_from(sorted(MATMUL.to_json()))


@given(FIELDS, IDENTITY_FIELDS, VALUES, st.booleans())
def test_any_value_in_any_field_gives_an_entry_or_an_error(field: str, inner: str, value: Any, nested: bool) -> None:
    record = json.loads(json.dumps(entry().to_json()))
    if nested:
        record["identity"][inner] = value
    else:
        record[field] = value
    try:
        found = from_record(record, "it")
    except CacheFormatError:
        return
    assert str(found.identity).isprintable()
    assert parse(dump(found.to_json()), "again") == found


@given(st.binary(max_size=200))
def test_any_bytes_give_an_entry_or_an_error(data: bytes) -> None:
    with pytest.raises(CacheFormatError):
        parse(data, "it")


@given(st.integers(0, len(json.dumps(entry().to_json())) - 1))
def test_an_entry_cut_short_is_an_error(length: int) -> None:
    with pytest.raises(CacheFormatError):
        parse(json.dumps(entry().to_json())[:length].encode(), "it")


@pytest.mark.parametrize(
    "content",
    [DEEP, b'{"format": NaN}', b'{"format": "tessera-autotune-export", "version": 1, "entries": ' + DEEP, b"\x80\x04."],
)
def test_a_hostile_export_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "export.json").write_bytes(content)
    with pytest.raises(CacheFormatError, match="damaged"):
        collect(tmp_path / "export.json")


def test_an_export_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(CacheFormatError, match="more than"):
        collect(path)


def test_a_name_that_is_a_path_stays_in_the_folder(tmp_path: Path) -> None:
    record = entry().to_json()
    record["identity"] |= {"operator": "../../../../evil", "arch": "/etc/passwd", "dtypes": ["../x"]}
    found = from_record(json.loads(json.dumps(record)), "it")
    database = TuningDatabase(tmp_path / "a" / "b" / "user", shipped=None)
    database.put(found)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.parents[2] for path in files] == [database.user.root]


@pytest.mark.parametrize(
    "values",
    [
        {"tile": (0, 0)},
        {"tile": (-4, 16)},
        {"tile": (4, 1 << 40)},
        {"tile": (4,)},
        {"tile": ()},
        {"tile": "4x16"},
        {"kc": -64},
        {"kc": 1 << 30},
        {"kc": "64"},
        {"prefetch": "yes"},
        {"prefetch": 7},
    ],
)
def test_values_of_another_kind_are_objected_to_before_a_rule_sees_them(values: dict[str, Any]) -> None:
    (knob,) = values
    assert SPACE.objections(Schedule(OPTIMUM, **values)) == (f"knob {knob}",)
    assert SPACE.objections(OPTIMUM) == ()
    assert SPACE.objections(shaped_schedule()) == ("panel_fits",)


def shaped_schedule() -> Schedule:
    """A schedule of the right kind that breaks a rule."""
    return OPTIMUM.replace(kc=1024, tile=(14, 32))


def test_a_read_only_home_is_read_and_written_to_memory(database: TuningDatabase, path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    path.parent.chmod(0o500)
    try:
        with pytest.warns(CacheWarning, match="E_CACHE_IO"):
            assert not database.put(entry(identity=shaped(1, 1, 1)))
        assert database.lookup(MATMUL) is not None
        assert database.lookup(shaped(1, 1, 1)) is not None
    finally:
        path.parent.chmod(0o700)


@given(st.dictionaries(st.sampled_from(["tile", "kc", "prefetch"]), VALUES | st.tuples(st.integers(), st.integers())))
def test_what_is_like_a_proven_schedule_may_be_judged_by_rules(values: dict[str, Any]) -> None:
    try:
        schedule = Schedule({**OPTIMUM, **values})
    except TypeError:  # a value that cannot be hashed, which `schedule_of` does not let in
        return
    if is_like(schedule, OPTIMUM):
        assert all(type(schedule[name]) is type(OPTIMUM[name]) or schedule[name] == OPTIMUM[name] for name in schedule)
        assert 0 <= schedule.integer("kc") <= 1024
        assert all(0 < size <= 256 for size in schedule.integers("tile"))


def test_schedules_of_other_knobs_or_kinds_are_not_like_a_proven_one() -> None:
    assert is_like(OPTIMUM.replace(kc=512, tile=(8, 16), prefetch=False), OPTIMUM)
    for values in ({"kc": True}, {"kc": 1 << 20}, {"prefetch": 3}, {"tile": (8,)}, {"tile": (0, 16)}, {"more": 1}):
        assert not is_like(Schedule(OPTIMUM, **values), OPTIMUM)
