"""Corrupt, foreign, unwritable and full: each is said once, costs only itself, and loses nothing that is there."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path
from typing import IO, Any

import pytest

from tessera.system import files
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store.database import CacheWarning, TuningDatabase
from tests.unit.tuning.support import MATMUL, OPTIMUM, entry, shaped, timing


@pytest.fixture
def root(tmp_path: Path) -> Path:
    database = TuningDatabase(tmp_path / "user", shipped=None)
    database.put(entry())
    database.put(entry(identity=shaped(64, 64, 64)))
    return database.user.root


def fresh(root: Path) -> TuningDatabase:
    return TuningDatabase(root, shipped=None)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\x00\xff",
        b"[]",
        b'{"format": "tessera-autotune", "version": 1}',
        b'{"format": "another"}',
    ],
)
def test_corrupt_file_is_a_miss_and_kept_when_replaced(root: Path, damage: bytes) -> None:
    database = fresh(root)
    path = database.user.path(MATMUL, "measured")
    path.write_bytes(damage)
    with pytest.warns(CacheWarning, match="E_CACHE_FORMAT"):
        assert database.lookup(MATMUL) is None
    assert path.read_bytes() == damage, "reading must not touch the file"
    assert database.lookup(shaped(64, 64, 64)) is not None
    with pytest.warns(CacheWarning, match="kept as"):
        assert database.put(entry(kc=512))
    assert [kept.read_bytes() for kept in path.parent.glob("*.kept-*")] == [damage]
    found = fresh(root).lookup(MATMUL)
    assert found is not None
    assert found.entry.schedule["kc"] == 512


@pytest.mark.parametrize("field", ["measured_s", "schedule", "identity", "origin"])
@pytest.mark.parametrize("value", [-1, "?", None, [], {"kc": {}}])
def test_entry_with_a_wrong_field_is_reported_not_raised(root: Path, field: str, value: object) -> None:
    database = fresh(root)
    path = database.user.path(MATMUL, "measured")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, field: value}))
    with pytest.warns(CacheWarning, match="damaged"):
        assert database.lookup(MATMUL) is None


def test_file_of_another_version_is_left_alone(root: Path) -> None:
    database = fresh(root)
    path = database.user.path(MATMUL, "measured")
    newer = json.dumps({**json.loads(path.read_text()), "version": 7}).encode()
    path.write_bytes(newer)
    with pytest.warns(CacheWarning, match=r"version 7.*reads 1"):
        assert database.lookup(MATMUL) is None
    assert path.read_bytes() == newer
    with pytest.warns(CacheWarning, match="kept as"):
        database.put(entry())
    assert [kept.read_bytes() for kept in path.parent.glob("*.kept-*")] == [newer]


def test_a_folder_with_winners_of_other_versions_only_is_said(tmp_path: Path) -> None:
    (tmp_path / "user" / "v7" / "family").mkdir(parents=True)
    database = fresh(tmp_path / "user")
    with pytest.warns(CacheWarning, match=r"winners in v7, this Tessera reads v1 only"):
        assert not database.has_entries()
    database.put(entry())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh(tmp_path / "user").has_entries(), "two versions may share a home"


def test_a_problem_is_said_once(root: Path) -> None:
    database = fresh(root)
    database.user.path(MATMUL, "measured").write_bytes(b"{")
    with pytest.warns(CacheWarning):
        database.lookup(MATMUL)
    database.user.forget(MATMUL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        database.lookup(MATMUL)
    assert [problem.code for problem in database.problems] == ["E_CACHE_FORMAT"]


def fail_with(code: int, monkeypatch: pytest.MonkeyPatch, name: str = "write") -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(f"{files.__name__}.os.{name}", refuse)
    if name == "write":  # files are written through buffers, logs by os.write
        monkeypatch.setattr(files, "open", _on_a_full_disk, raising=False)


def _on_a_full_disk(descriptor: int, mode: str) -> IO[Any]:
    os.close(descriptor)
    return Path("/dev/full").open(mode)


@pytest.mark.parametrize(("call", "code"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EROFS)])
def test_full_or_failing_disk_keeps_old_entry_and_holds_the_new_one_in_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    database = fresh(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    fail_with(code, monkeypatch, call)
    with pytest.warns(CacheWarning, match="E_CACHE_IO"):
        assert not database.put(entry(kc=512))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not database.put(entry(kc=1024)), "said once is enough"
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    found = database.lookup(MATMUL)
    assert found is not None
    assert (found.layer, found.entry.schedule["kc"]) == ("memory", 1024)
    assert entry(kc=1024) in list(database.entries())
    assert database.put(entry(kc=64)), "the disk has room again"
    found = database.lookup(MATMUL)
    assert found is not None
    assert (found.layer, found.entry.schedule["kc"]) == ("user", 64)


def test_folder_that_is_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("a file")
    database = fresh(tmp_path / "user")
    assert database.lookup(MATMUL) is None
    assert not database.writable()
    with pytest.warns(CacheWarning, match="TESSERA_CACHE_DIR"):
        assert not database.put(entry())
    assert database.nearest(MATMUL) is not None
    assert database.counts() == {"memory": 1, "user": 0}
    assert (tmp_path / "user").read_text() == "a file"


def test_log_on_a_full_disk_is_said_and_the_next_line_starts_afresh(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh(root)
    trial = Trial(OPTIMUM, "ok", timing(1e-3))
    original = os.write
    monkeypatch.setattr(f"{files.__name__}.os.write", lambda fd, data: original(fd, data[: len(data) // 2 + 1]))
    with pytest.warns(CacheWarning, match="E_CACHE_IO"):
        assert not database.log(MATMUL, [trial], {"run": 1})
    monkeypatch.undo()
    assert database.log(MATMUL, [trial], {"run": 2})
    assert [record["run"] for record in database.trials(MATMUL)] == [2]


def test_half_written_temporary_of_a_killed_process_is_ignored(root: Path) -> None:
    path = fresh(root).user.path(MATMUL, "measured")
    path.with_name(f".{path.name}.123.abc.tmp").write_bytes(b"{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(fresh(root).entries())) == 2
