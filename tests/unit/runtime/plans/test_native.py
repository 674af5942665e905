"""The driver's surroundings: where it is kept, how it says which threads it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tessera import settings
from tessera.backend.llvm.machine_code import engine, library, openmp
from tessera.backend.llvm.machine_code.engine import assembly
from tessera.backend.llvm.machine_code.library import cached_library, compile_text
from tessera.backend.llvm.native.driver_ir import driver_text
from tessera.lazy import threads
from tessera.runtime.plans import native
from tessera.system.private import CacheRefusedWarning
from tessera.target import ARM_CPUS, arm_cpu

ANSWER = "define i64 @answer() {\n  ret i64 42\n}\n"


def test_object_is_kept_and_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cached_library("answer", ANSWER, tmp_path).address("answer")
    assert [path.suffix for path in tmp_path.iterdir()] == [".o"]
    monkeypatch.setattr(library, "compile_text", lambda text: pytest.fail("compiled again"))
    assert cached_library("answer", ANSWER, tmp_path).address("answer")


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_object_is_compiled_again(tmp_path: Path, damage: bytes | None) -> None:
    cached_library("answer", ANSWER, tmp_path)
    (path,) = tmp_path.iterdir()
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]) if damage is None else damage)
    with pytest.warns(CacheRefusedWarning, match="E_CACHE_FORMAT: .*answer-.*cut short or altered"):
        assert cached_library("answer", ANSWER, tmp_path).address("answer")
    assert path.read_bytes() == sound


def test_folder_that_cannot_be_written_costs_only_the_compilation(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert cached_library("answer", ANSWER, blocked / "objects").address("answer")


def test_another_cpu_has_another_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = library.identity(ANSWER)
    monkeypatch.setattr(engine, "host", lambda: ("some-other-cpu", ""))
    assert library.identity(ANSWER) != mine


def test_unknown_symbol_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="question"):
        cached_library("answer", ANSWER, tmp_path).address("question")


@pytest.mark.parametrize("use_openmp", [True, False])
def test_driver_starts_teams_where_it_may(use_openmp: bool) -> None:
    text = driver_text(openmp=use_openmp)
    assert ("GOMP_parallel" in text) == use_openmp
    assert compile_text(text)


@pytest.mark.parametrize("name", ARM_CPUS)
def test_driver_reads_the_counter_that_programs_may_read_on_arm(name: str) -> None:
    assert assembly(driver_text(openmp=True), arm_cpu(name)).lower().count("cntvct_el0") == 3


def test_clock_runs_forward() -> None:
    ticks = native.driver().ticks
    assert ticks() < ticks()


def test_threads_are_those_of_the_library_that_torch_loaded() -> None:
    found = openmp.find()
    if not found.available:
        pytest.skip(found.reason)
    assert "torch" in str(found.path)
    assert str(found.path) in native.threading_reason()


def test_reason_is_given_when_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "/nowhere/libgomp.so.1: " in openmp.loaded(["/nowhere/libgomp.so.1"]).reason
    missing = openmp.loaded([])
    assert not missing.available
    monkeypatch.setattr(openmp, "find", lambda: missing)
    assert native.threading_reason() == f"shares run one after the other: {missing.reason}"
    assert "no libgomp is loaded" in missing.reason


def test_switched_off_openmp_is_named_as_the_reason() -> None:
    with settings.override(openmp=False):
        assert "TESSERA_OPENMP" in native.threading_reason()


def test_fork_does_not_wait_for_threads_of_its_parent(tmp_path: Path) -> None:
    """libgomp's threads do not survive a fork; a child that used them would hang, in a kernel or in a call of torch."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, sys, torch\n"
        "torch.set_num_threads(2)\n"
        "from tessera import op\n"
        "from tests.unit.runtime.plans.test_plan import seen_by, witness\n"
        "from tessera.runtime.plans import native\n"
        "plan = witness(2)\n"
        "seen_by(plan, 2)\n"
        "x = torch.ones(16, 40000)\n"
        "def summed():\n"
        "    return op.cumsum(x, 1).torch().numpy()\n"
        "expected = summed()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    good = [row[0] for row in seen_by(plan, 2)] == [0, 1] and 'fork' in native.threading_reason()\n"
        "    good = good and (summed() == expected).all() and torch.get_num_threads() == 2\n"
        "    os._exit(0 if good else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    root = Path(__file__).parents[4]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}", "HOME": str(tmp_path), "TESSERA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environment, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_worker_count_is_the_setting_else_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 5)
    assert threads.worker_count() == 5
    with settings.override(threads=3):
        assert threads.worker_count() == 3
