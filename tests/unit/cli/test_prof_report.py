"""What `tessera-prof` says of traces, with and without kernels, of programs without their `--`, and of itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera import __version__, analyze, profile
from tessera.analyze import Analysis
from tessera.cli import prof
from tessera.cli.main import print_error
from tessera.cli.profiling import report as prof_report
from tessera.errors import ProfileError
from tessera.profiling.export.formats import parquet
from tessera.profiling.trace.table import Trace
from tessera.target.cpu import machine_name
from tests.unit.profiling.analyses.traces import collective, kernel, trace
from tests.unit.viewer.made import whole_run

MEASURED = trace(
    kernel("matmul", 0, 30, bytes=3e6, flops=1e6, warp_divergence_pct=60.0),
    collective(40, 10, 8192),
    collective(60, 10, 1024),
    {"kind": "sample", "kernel_name": "power_w", "start_ns": 0, "value": 10.0, "device": "package-0"},
    {"kind": "sample", "kernel_name": "power_w", "start_ns": 10**6, "value": 30.0, "device": "package-0"},
)
"""A trace with something for each analysis."""


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A trace in which nothing but a mark was recorded."""
    path = tmp_path / "trace.parquet"
    with profile.session(exporters=[profile.parquet(path)]) as session:
        session.mark("end")
    return path


def test_a_trace_without_kernels_says_why_as_a_session_does(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prof_report.report(empty)
    assert "no plan of Tessera ran" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("stalls", "no kernel with a duration in this trace"),
        ("memory", "no kernel with a duration in this trace"),
        ("collectives", "no collective ran while this was recorded"),
        ("power", "no sample of power, temperature or throttling in this trace"),
        ("divergence", "no kernel with a duration in this trace"),
    ],
)
def test_an_analysis_of_an_empty_trace_says_why_printed_and_drawn(
    empty: Path, capsys: pytest.CaptureFixture[str], command: str, reason: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        prof.main([command, str(empty)])
    assert ended.value.code == 0
    assert reason in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        prof.main([command, str(empty), "--plot", str(empty.with_suffix(".png"))])
    assert ended.value.code == 1
    assert reason in capsys.readouterr().err
    assert not empty.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("words", "analysis"),
    [
        (["memory"], analyze.memory),
        (["collectives"], analyze.collectives),
        (["collectives", "--min-bytes", "4096"], lambda trace: analyze.collectives(trace, 4096)),
        (["power"], analyze.power),
        (["divergence"], analyze.divergence),
        (["divergence", "--threshold", "0.5"], lambda trace: analyze.divergence(trace, 0.5)),
    ],
)
def test_a_command_prints_what_its_analysis_says_and_draws_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], analysis: Callable[[Trace], Analysis]
) -> None:
    path, picture = tmp_path / "trace.parquet", tmp_path / "picture.svg"
    parquet.write(MEASURED, path)
    found = analysis(MEASURED)
    assert len(found)
    with pytest.raises(SystemExit) as ended:
        prof.main([words[0], str(path), *words[1:], "--plot", str(picture)])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{found}\nwrote {picture}\n"
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize("words", [["collectives", "--min-bytes", "-1"], ["divergence", "--threshold", "3"]])
def test_a_limit_that_makes_no_sense_is_refused(
    empty: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        prof.main([words[0], str(empty), *words[1:]])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("E_ARGUMENT")


@pytest.mark.parametrize("options", [[], ["--duration", "1"]])
def test_a_program_without_its_dashes_is_told_of_them(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        prof.main([*options, "python", "my train.py"])
    assert ended.value.code == 1
    assert "tessera-prof -- python 'my train.py'" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        prof.main(["--version"])
    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out


def test_what_is_told_of_a_file_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ProfileError("there is no trace\x1b[2J\x9b.json", hints=["another line"]))
    told = capsys.readouterr().err
    assert told.splitlines()[0].endswith("there is no trace?[2J?.json")
    assert told.endswith("hint: another line\n")


def test_reports_load_neither_torch_nor_llvm(tmp_path: Path, cache_dir: Path) -> None:
    run = whole_run()
    profile.parquet(tmp_path / "told.parquet").export(run)
    here = {**run.metadata["target"], "name": machine_name()}
    untold = {name: value for name, value in run.metadata.items() if name != "ceilings"} | {"target": here}
    profile.parquet(tmp_path / "untold.parquet").export(Trace(run.events, untold, run.capability))
    program = (
        "import sys\n"
        "from tessera.cli.prof import main\n"
        "for words in (['report', 'told.parquet'], ['roofline', 'told.parquet'], ['report', 'untold.parquet']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: print('status', end.code)\n"
        "print(*sorted({'torch', 'llvmlite'} & sys.modules.keys()))\n"
    )
    asked = [sys.executable, "-c", program]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
    *tables, heavy = done.stdout.split("\n")[:-1]
    assert heavy == "", done.stdout
    assert done.stdout.count("softmax") == 3
    assert sum(line == "status 0" for line in tables) == 3, done.stdout
