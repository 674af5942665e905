"""Sockets to attach to: where they lie, who can reach them, and what becomes of those that were left behind."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.profiling.attach import places
from tessera.profiling.attach.places import Process
from tessera.system.files import host_name

GONE = Process(2**22 + 1, 12)
"""No process has such a number: the kernel's largest is 2**22."""


@pytest.fixture
def runtime(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of sockets in a runtime folder of the test's own, whose path is short, as sockets need."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder) / "tessera"


def own() -> Process:
    found = places.process(os.getpid())
    assert found is not None
    return found


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    mine = own()
    assert mine.alive
    assert not Process(mine.pid, mine.start - 1).alive
    assert not GONE.alive
    assert places.process(GONE.pid) is None
    assert places.owner(mine.pid) == os.geteuid()


def test_a_process_with_an_odd_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    after = "S 1 7 7 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 4242 1000"
    (tmp_path / "7" / "stat").write_text(f"7 (a ) S (b) {after}")
    monkeypatch.setattr(places, "PROC", tmp_path)
    assert places.process(7) == Process(7, 4242)


def test_one_that_has_ended_and_is_not_asked_for_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        found = places.process(child.pid)
        child.stdout.read()  # until it has closed its end
        while found is not None and found.alive:
            pass
        assert places.process(child.pid) is None
        assert child.returncode is None


def test_the_runtime_folder_comes_before_the_cache_and_the_temporary_folder(runtime: Path, cache_dir: Path) -> None:
    temporary = tempfile.gettempdir()
    assert list(places.folders()) == [
        runtime,
        cache_dir / "attach" / host_name(),
        Path(temporary) / f"tessera-{os.geteuid()}",
    ]


def test_the_folder_is_made_for_the_user_alone(runtime: Path) -> None:
    assert places.folder_for("s") == runtime
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    runtime.chmod(0o755)
    places.folder_for("s")
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


def test_a_link_in_place_of_the_folder_is_not_followed(runtime: Path, cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    runtime.symlink_to(tmp_path / "elsewhere")
    assert places.folder_for("s") == cache_dir / "attach" / host_name()


def test_a_path_too_long_for_a_socket_is_passed_over(
    runtime: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tempfile.gettempdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp/" + "long" * 50)
    assert places.folder_for("s") in (cache_dir / "attach" / host_name(), Path(short) / f"tessera-{os.geteuid()}")
    assert not runtime.exists()


def test_sockets_of_the_dead_are_removed_and_others_are_not(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = places.folder_for("s")
    monkeypatch.chdir(folder)  # paths of sockets are short
    names = [GONE.socket_name, own().socket_name, "tessera-1.sock", "other.sock"]
    for name in names[:2]:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    for name in names[2:]:
        (folder / name).touch()
    places.clean(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(names[1:])


def test_a_socket_on_which_another_container_listens_is_left_alone(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = places.folder_for("s")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(GONE.socket_name)
        made.listen()
        monkeypatch.setattr(Path, "glob", lambda self, _: iter([Path(GONE.socket_name)]))
        places.clean(folder)
        assert (folder / GONE.socket_name).exists()


def test_a_socket_is_found_in_a_folder_that_this_process_does_not_know(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Process(os.getpid(), 99)
    assert places.sockets(wanted) == []
    (tmp_path / "net").mkdir()
    folder = runtime / "a b"
    folder.mkdir(parents=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / wanted.socket_name))
    listening.close()
    table = f"Num RefCount\n0000: 00000002 00000000 00010000 0001 01 2 {folder}/{wanted.socket_name}\n"
    (tmp_path / str(wanted.pid) / "net").mkdir(parents=True)
    (tmp_path / str(wanted.pid) / "net" / "unix").write_text(table)
    (tmp_path / str(wanted.pid) / "status").write_text(f"Name:\tpython\nUid:\t{os.getuid()}\t{os.geteuid()}\t0\t0\n")
    monkeypatch.setattr(places, "PROC", tmp_path)
    assert places.sockets(wanted) == [folder / wanted.socket_name]
