"""Ranges for Nsight, rocprof and VTune, received by a collector that a compiler makes of `range_collector.c`."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import settings
from tessera.errors import ProfileError
from tessera.profiling.recording import ranges

ITT: Any = torch.profiler.itt  # whose functions have no types
PROGRAM = """
import torch
from tessera import op, profile
x = torch.ones(4, 4)
with profile.region("forward"):
    y = op.softmax(op.exp(x)).numpy()
"""


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collector under the names by which libraries of ranges are looked for."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: there is nothing to make the collector with")
    folder = tmp_path_factory.mktemp("collector")
    library = folder / "libcollector.so"
    source = Path(__file__).with_name("range_collector.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    for name in ("libnvToolsExt.so.1", "libroctx64.so"):
        (folder / name).symlink_to(library)
    return folder


def emitted(folder: Path, log: Path, **environment: str) -> list[str]:
    """What a program with a region and two operators emits."""
    asked = {"RANGES_LOG": str(log), "LD_LIBRARY_PATH": str(folder), **environment}
    subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | asked, check=True, capture_output=True, timeout=120
    )
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("kind", ["nvtx", "roctx", "itt"])
def test_regions_and_plans_are_ranges(collector: Path, tmp_path: Path, kind: str) -> None:
    if kind == "nvtx" and torch.version.cuda is not None:
        pytest.skip("this build of torch emits NVTX itself, which needs NVIDIA's own collector")
    if kind == "itt" and not ITT.is_available():
        pytest.skip("this build of torch has no ITT")
    found = emitted(
        collector,
        tmp_path / "log",
        TESSERA_PROFILE_RANGES=kind,
        **({"INTEL_LIBITTNOTIFY64": str(collector / "libcollector.so")} if kind == "itt" else {}),
    )
    assert found[0] == "push forward"
    assert found[-1] == "pop "
    assert found[1].startswith("push tessera: ")
    assert "softmax" in " ".join(found)
    assert sum(line.startswith("push") for line in found) == sum(line == "pop " for line in found) >= 2


def test_a_tool_that_is_attached_gets_ranges_unasked(collector: Path, tmp_path: Path) -> None:
    found = emitted(collector, tmp_path / "log", ROCP_TOOL_LIBRARIES="tool.so")
    assert found[0] == "push forward"
    assert emitted(collector, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("asked", "environment", "kind"),
    [
        ("auto", {}, None),
        ("auto", {"NVTX_INJECTION64_PATH": "x"}, "nvtx"),
        ("auto", {"NVTX_INJECTION64_PATH": ""}, None),
        ("auto", {"INTEL_LIBITTNOTIFY64": "x"}, "itt"),
        ("off", {"INTEL_LIBITTNOTIFY64": "x"}, None),
        ("roctx", {}, "roctx"),
    ],
)
def test_ranges_are_those_asked_for_or_those_of_the_tool(
    asked: str, environment: dict[str, str], kind: str | None
) -> None:
    assert ranges.wanted(asked, environment) == kind


def test_ranges_that_cannot_be_had_are_an_error_only_where_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with settings.override(profile_ranges="roctx"), pytest.raises(ProfileError, match="no library of roctx ranges"):
        ranges.emitter.__wrapped__()
    monkeypatch.setenv("ROCP_TOOL_LIBRARIES", "tool.so")
    with settings.override(profile_ranges="auto"):
        assert ranges.emitter.__wrapped__() is None


def test_without_a_tool_plans_run_as_they_are() -> None:
    def run(frame: int) -> None:
        raise AssertionError(frame)

    if ranges.emitter() is None:
        assert ranges.around(run, 1) is run


def test_a_label_names_a_few_operators() -> None:
    assert ranges.label(["matmul", "exp", "matmul"]) == "tessera: matmul, exp"
    assert ranges.label(["a", "b", "c", "d", "e", "f"]) == "tessera: a, b, c, d, 2 more"
