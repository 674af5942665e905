"""The steps of `bench/gpu.sh` without a GPU: each is run, whatever became of the others, and the table says so."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.gpu.__main__ import main
from bench.gpu.cases import Case, Made, Place
from bench.gpu.stages import _COUNTERS, _TESTS, STAGES, Outcome, Step, markdown, run_all
from tessera.errors import DeviceFaultError, MemoryLimitError

ROOT = Path(__file__).parent.parent.parent.parent


def test_a_step_that_fails_dies_or_hangs_keeps_no_other_from_being_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {
        "good": "echo fine",
        "bad": "echo wrong; exit 3",
        "dead": "echo before; kill -9 $$",
        "slow": "echo begun; exec sleep 60",
        "skipped": "echo 2 skipped in 0.1s",
        "last": "echo 1 passed, 2 skipped",
    }
    steps = [Step(name, ["sh", "-c", program]) for name, program in programs.items()]
    assert run_all(steps, tmp_path / "table.md", limit_s=5.0) == 1
    results = [line.split(" | ")[1] for line in (tmp_path / "table.md").read_text().splitlines()[2:]]
    assert results == ["passed", "FAILED (3)", "killed by signal 9", "not done within 5 s", "skipped", "passed"]
    assert "begun" in capsys.readouterr().out
    assert run_all(steps[:1], tmp_path / "table.md", limit_s=5.0) == 0


def test_every_test_of_gpus_is_a_step_and_every_step_is_there(tmp_path: Path) -> None:
    assert sorted((*_TESTS, *_COUNTERS)) == sorted(path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    for name in (*_TESTS, *_COUNTERS):
        assert hasattr(importlib.import_module(f"tests.gpu.{name}"), "pytestmark")  # what it imports is still there
    steps = [step for stage in STAGES.values() for step in stage(tmp_path)]
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        named = [word for word in step.command if word.startswith("tests/gpu/")]
        assert all((ROOT / word.partition("::")[0]).is_file() for word in named)
        assert step.command[0] == sys.executable


def test_the_table_holds_one_line_a_step() -> None:
    text = markdown([Outcome(Step("a", []), "passed", 1.4, "x | y")])
    assert text.splitlines()[-1] == "| a | passed | 1 | x / y |"


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_the_script_runs_what_it_is_told_to(tmp_path: Path) -> None:
    text = (ROOT / "bench" / "gpu.sh").read_text()
    assert 'python3 -m bench.gpu.stages --out "$out" "$@"' in text
    assert subprocess.run(["bash", "-n", str(ROOT / "bench" / "gpu.sh")], check=False).returncode == 0


class Untimed:
    """A timer that calls, and times nothing."""

    def prepared(self, call: object, cache: object) -> Callable[[], float]:
        """Samples of one second."""
        assert callable(call)
        call()
        return lambda: 1.0


@pytest.mark.parametrize(
    ("problem", "said", "run_after"),
    [
        (MemoryLimitError("too much"), "not measured: first", True),
        (DeviceFaultError("lost"), "LOST at first", False),
    ],
)
def test_a_case_without_memory_is_passed_over_and_a_lost_gpu_ends_the_run(
    problem: Exception,
    said: str,
    run_after: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[str] = []

    def case(name: str) -> Case:
        def make(place: Place) -> Made:
            made.append(name)
            if name == "first":
                raise problem
            x = torch.ones(4)
            return Made({}, {"peer": lambda: x.clone}, x.double)

        return Case("rows", name, 1.0, "GB/s", 1e-3, make)

    monkeypatch.setattr("bench.gpu.__main__.SUITES", {"rows": lambda: iter([case("first"), case("second")])})
    monkeypatch.setattr("bench.gpu.__main__.CudaTimer", Untimed)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "pretended")
    assert main(["rows", "--markdown", str(tmp_path / "found.md")]) == 1
    assert made == (["first", "second"] if run_after else ["first"])
    assert said in capsys.readouterr().err
    assert (tmp_path / "found.md").exists() is run_after
