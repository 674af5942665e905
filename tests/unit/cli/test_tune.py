"""`tessera tune`: an operator, a trace or a script; what it prints, draws and keeps, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tessera import autotune, op, profile, settings
from tessera.cli.main import main
from tessera.cli.tune_progress import TuningBar
from tessera.tuning.interfaces import Progress
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store.database import CacheWarning
from tests.unit.tuning.support import OPTIMUM, timing


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with settings.override(tune_budget_s=2.0):
        yield


def run(*arguments: str) -> int:
    """The exit status of `tessera tune`."""
    with pytest.raises(SystemExit) as end:
        main(["tune", *arguments])
    return int(end.value.code or 0)


def test_an_operator_is_tuned_explained_drawn_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("softmax", "--shape", "96,300", "--trials", "4", "--plot") == 0
    shown = capsys.readouterr().out
    for text in ("Best config: ", "winner", "bound by", "candidates", "kept in", "wrote tuning.png"):
        assert text in shown
    assert (tmp_path / "tuning.png").stat().st_size > 1000
    known = autotune.load(op.softmax, (96, 300))
    assert known.source == "cache"
    assert known.measured_s is not None


def test_winners_that_cannot_be_kept_are_not_said_to_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with settings.override(cache_dir=tmp_path / "file" / "cache"), pytest.warns(CacheWarning, match="E_CACHE_IO"):
        assert run("softmax", "--shape", "96,300", "--trials", "2") == 1
    said = capsys.readouterr()
    assert "Best config: " in said.out
    assert "kept in" not in said.out
    assert "E_CACHE_IO: 1 of the winners could not be kept" in said.err


def test_the_model_alone_measures_nothing_and_needs_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("matmul", "--shape", "64x48x32", "--method", "model") == 0
    assert "predicted" in capsys.readouterr().out
    assert run("matmul", "--shape", "1024,1024,1024", "--dtype", "bf16", "--target", "H200", "--method", "model") == 0
    assert "on sm_90 H200" in capsys.readouterr().out
    assert run("matmul", "--shape", "1024,1024,1024", "--target", "H200") == 1
    assert "E_DEVICE: nothing can be measured for sm_90 H200" in capsys.readouterr().err


def test_what_a_trace_used_is_tuned_hottest_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = torch.randn(96, 64), torch.randn(64, 80)
    with profile.session(exporters=[profile.chrome(tmp_path / "trace.json")]):
        for _ in range(3):
            op.gelu(op.matmul(a, b)).eval()
        op.rfft(a).eval()
    assert run("--from-trace", "trace.json", "--trials", "3", "--budget", "3") == 0
    shown = capsys.readouterr().out
    assert "matmul+gelu" in shown
    assert "96x80x64" in shown
    assert "of the run cannot be tuned: calls of libraries" in shown
    entries = [json.loads(path.read_text()) for path in settings.current().autotune_dir.glob("v1/*/*.json")]
    assert [entry["origin"] for entry in entries] == ["measured"]


SCRIPT = """
import sys
import torch
from tessera import op

rows = int(sys.argv[1])
y = op.softmax(op.tensor(torch.ones(rows, 300)), axis=-1)
print("sum", float(y.torch().sum()))
"""


def test_the_kernels_of_a_script_are_tuned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run("--model", "script.py", "40", "--trials", "3") == 0
    shown = capsys.readouterr().out
    assert "sum 40.0" in shown
    assert "softmax" in shown
    assert "40x300" in shown
    assert autotune.load(op.softmax, (40, 300)).source == "cache"


def test_a_script_that_fails_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; sys.exit(3)")
    assert run("--model", "script.py") == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["matmull", "--shape", "8,8,8"], "E_ARGUMENT: no operator is called 'matmull'"),
        (["matmul", "--shape", "8,8,8", "--dtype", "fp31"], "E_DTYPE"),
        (["matmul", "--shape", "8,8,8", "--trials", "0"], "E_ARGUMENT: max_trials=0"),
        (["matmul", "--shape", "8,8,8", "--budget", "0"], "E_ARGUMENT: budget_s=0"),
        (["matmul", "--shape", "8,8,8", "--budget", "nan"], "E_ARGUMENT: budget_s=nan"),
        (["matmul", "--shape", "8,y"], "E_ARGUMENT: --shape 8,y is no list of extents"),
        (["matmul", "--shape", "8,8"], "E_ARGUMENT"),
        (["matmul", "--shape", "8,8,8", "--target", "abacus"], "E_UNSUPPORTED_TARGET"),
        (["matmul", "--shape", "8,8,8", "--method", "guess"], "E_ARGUMENT: method 'guess'"),
        (["matmul"], "E_ARGUMENT: what to tune is not said"),
        ([], "E_ARGUMENT: what to tune is not said"),
        (["matmul", "--from-trace", "trace.json"], "three ways"),
        (["--from-trace", "missing.json"], "E_PROFILE: there is no missing.json"),
        (["--model", "missing.py"], "E_ARGUMENT: --model missing.py: no such file"),
    ],
)
def test_what_cannot_be_is_refused_by_code(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 1
    assert said in capsys.readouterr().err


def test_the_bar_shows_best_trials_time_left_and_what_is_tried() -> None:
    now = 0.0
    console = Console(file=StringIO(), force_terminal=True, width=160)
    with TuningBar(console, 10.0, clock=lambda: now) as bar:
        trial = Trial(OPTIMUM, "ok", timing(1.5e-3))
        now = 2.0
        bar.show(Progress("matmul 64", 4, 16, 1.5e-3, trial, OPTIMUM))
        assert bar.left_s(4, 16) == 6.0
        assert bar.left_s(4, 1000) == 8.0
        now = 20.0
        assert bar.left_s(5, 16) == 0.0
        bar._bar.refresh()
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("matmul 64", "4/16", "best 1.5 ms", "6 s left", f"trying {OPTIMUM}"):
        assert text in drawn
