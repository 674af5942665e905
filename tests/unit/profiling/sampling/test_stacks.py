"""Stacks of another process over a stand-in of py-spy, and over py-spy itself where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.profiling.sampling import sampling, stacks
from tessera.profiling.sampling.stacks import StackSampling

RECORDS = """
import json, signal, sys, time
output = sys.argv[sys.argv.index("--output") + 1]
def stop(*_):
    events = [("B", 0.0, "main"), ("B", 1000.0, "step"), ("E", 4000.0, "step"), ("E", 5000.0, "main")]
    json.dump([{"ph": ph, "ts": at, "name": name, "tid": 7, "pid": 1} for ph, at, name in events], open(output, "w"))
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
open(sys.argv[0] + ".ready", "w").close()
time.sleep(60)
"""
REFUSES = """
import sys
open(sys.argv[0] + ".ready", "w").close()
sys.exit("Error: Permission Denied: Try running again with elevated permissions")
"""


def install(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`program` as the command py-spy; gives the file that it makes when it runs."""
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\n{program}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder / "py-spy.ready"


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_stacks_become_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = install(tmp_path, RECORDS, monkeypatch)
    sampled = sampling.sample_process(os.getpid(), interval_ms=50, activities=["cpu"], stacks=True)
    wait_for(ready)
    sampled.end()
    rows = sampled.take()
    found = rows.filter(rows["backend"] == "py-spy")
    assert found["stack"].to_list() == ["main", "main;step", "main"]
    assert found["dur_ns"].to_list() == [1_000_000, 3_000_000, 1_000_000]
    assert found["value"].sum() == pytest.approx(0.005)
    assert "stack" not in sampled.ended
    assert "cpu_pct" in set(rows["kernel_name"])


def test_what_py_spy_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = install(tmp_path, REFUSES, monkeypatch)
    recording = StackSampling(os.getpid())
    wait_for(ready)
    recording.end()
    recording.end()
    assert "Permission Denied" in str(recording.failure)
    assert recording.take(0).is_empty()


def test_without_py_spy_the_capability_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "pip install py-spy" in str(stacks.unavailable())
    with sampling.sample_process(os.getpid(), interval_ms=50, activities=["cpu"], stacks=True) as sampled:
        pass
    assert "py-spy is not installed" in sampled.capability["stack"]


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_a_real_process_has_real_stacks() -> None:
    program = "def inner():\n    while True: sum(range(1000))\ninner()"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        sampled = sampling.sample_process(child.pid, interval_ms=50, activities=["cpu"], stacks=True)
        time.sleep(1.0)
        sampled.end()
    finally:
        child.kill()
        child.wait()
    rows = sampled.take()
    stack = rows.filter(rows["backend"] == "py-spy")["stack"].to_list()
    assert "stack" in sampled.ended or any("inner" in each for each in stack)
