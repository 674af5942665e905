"""Caches amid what others and a poor machine do to files: full disks, no descriptors, pipes and links in the way."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

import pytest

from tessera import profile, settings
from tessera.backend.llvm.machine_code.library import cached_library
from tessera.backend.llvm.machine_code.objects import CacheUnwritableWarning, ObjectCache
from tessera.errors import ProfileError
from tessera.profiling.export.output import exported
from tessera.system.files import append_lines, write_atomically
from tessera.system.private import PrivateFolder
from tessera.target.ceilings import read_ceilings
from tessera.tuning.store.database import CacheWarning, TuningDatabase
from tests.hostile.test_objects import GENUINE, cached, kernel  # noqa: F401
from tests.hostile.users import KINDS, few_descriptors, give, largest_file, needs_root, put, small_disk
from tests.unit.tuning.support import MATMUL, entry

FULL = {"nothing": 0, "a part of a file": 100}


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(512))
    assert os.statvfs(disk).f_bavail == 0


@pytest.mark.parametrize("room", FULL)
def test_where_files_cannot_grow_kernels_are_compiled_and_nothing_is_left(tmp_path: Path, room: str) -> None:
    with largest_file(FULL[room]), pytest.warns(CacheUnwritableWarning, match="E_CACHE_IO"):
        made = cached(tmp_path)
    assert not list(tmp_path.iterdir())
    assert cached(tmp_path) == made
    assert len(list(tmp_path.iterdir())) == 1


def test_a_winner_on_a_full_disk_stays_in_memory_and_the_old_one_on_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        database = TuningDatabase(disk, shipped=None)
        assert database.put(entry(2e-3))
        before = {path: path.read_bytes() for path in disk.rglob("*.json")}
        fill(disk)
        with pytest.warns(CacheWarning, match="E_CACHE_IO"):
            assert not database.put(entry(1e-3))
        assert {path: path.read_bytes() for path in disk.rglob("*.json")} == before
        assert not list(disk.rglob("*.tmp"))
        found = database.lookup(MATMUL)
        assert found is not None
        assert found.layer == "memory"
        with pytest.warns(CacheUnwritableWarning, match="E_CACHE_IO"):
            cached(disk / "objects")


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_without_descriptors_caches_are_done_without(tmp_path: Path, spare: int) -> None:
    folder = tmp_path / "objects"
    made = cached(folder)
    database = TuningDatabase(tmp_path / "winners", shipped=None)
    database.put(entry())
    cache = ObjectCache(folder)
    (name,) = [file.stem for file in folder.iterdir()]
    with few_descriptors(spare), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.find(name) == (made if spare >= 2 else None)
        cache.keep(name, made)
        assert cached_library("answer", GENUINE, folder).address("answer")
        TuningDatabase(tmp_path / "winners", shipped=None).lookup(MATMUL)
    assert cache.find(name) == made
    assert not [file for file in folder.iterdir() if file.suffix == ".tmp"]


@pytest.mark.parametrize("kind", KINDS)
def test_winners_logs_and_ceilings_are_files_or_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = TuningDatabase(tmp_path / "winners", shipped=None)
    database.put(entry())
    (winner,) = tmp_path.rglob("*.json")
    put(winner, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert TuningDatabase(tmp_path / "winners", shipped=None).lookup(MATMUL) is None
    put(tmp_path / "ceilings.json", kind)
    assert read_ceilings(tmp_path / "ceilings.json") is None
    put(tmp_path / "log.jsonl", kind)
    with pytest.raises(OSError, match=r".*"):
        append_lines(tmp_path / "log.jsonl", b"{}\n")


def test_a_log_that_is_also_another_file_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    os.link(tmp_path / "precious", tmp_path / "log.jsonl")
    with pytest.raises(OSError, match="another name"):
        append_lines(tmp_path / "log.jsonl", b"{}\n")
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 100_000, b"[]", b'{"version": 1}', b"NaN"])
def test_ceilings_that_are_none_are_not_used(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "ceilings.json").write_bytes(text)
    assert read_ceilings(tmp_path / "ceilings.json") is None


def test_ceilings_without_end_are_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "ceilings.json", "wb") as file:
        file.truncate(1 << 42)
    assert read_ceilings(tmp_path / "ceilings.json") is None


@needs_root
def test_a_trace_does_not_replace_what_another_users_link_points_to(meeting_place: Path) -> None:
    precious = meeting_place / "precious"
    precious.write_text("kept")
    link = meeting_place / "trace.json"
    link.symlink_to(precious)
    give(link)
    with pytest.raises(ProfileError, match="link of another user's"), exported(link, "trace") as file:
        file.write(b"lost")
    assert precious.read_text() == "kept"
    own = meeting_place / "own.json"
    own.symlink_to(precious)
    with exported(own, "trace") as file:
        file.write(b"replaced")
    assert precious.read_text() == "replaced"


@needs_root
def test_records_are_not_spilled_into_a_strangers_folder(meeting_place: Path) -> None:
    for name in ("profiles", "profiles-0"):
        (meeting_place / name).mkdir(mode=0o777)
        give(meeting_place / name)
    with settings.override(cache_dir=meeting_place), profile.session(spill=True) as session:
        assert session.spill is not None
        with pytest.raises(PermissionError, match="E_CACHE_UNTRUSTED"):
            PrivateFolder(session.spill.folder.parent).make()
    assert not [path for folder in meeting_place.iterdir() for path in folder.iterdir()]


def test_files_of_code_survive_a_write_that_fails_midway(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path / "objects")
    folder.write("kernel", b"sound")
    with largest_file(3), pytest.raises(OSError, match="File too large"):
        folder.write("kernel", b"another")
    assert folder.read("kernel", 100) == b"sound"
    with largest_file(3), pytest.raises(OSError, match="File too large"):
        write_atomically(folder.path / "winner", b"another")
    assert [path.name for path in folder.path.iterdir()] == ["kernel"]
