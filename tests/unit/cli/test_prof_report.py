"""What `tessera-prof` says of traces without kernels, of programs without their `--`, and of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import __version__, profile
from tessera.cli import prof, prof_report
from tessera.cli.main import print_error
from tessera.errors import ProfileError


def test_a_trace_without_kernels_says_why_as_a_session_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.parquet"
    with profile.session(exporters=[profile.parquet(path)]) as session:
        session.mark("end")
    prof_report.report(path)
    assert "no plan of Tessera ran" in capsys.readouterr().out


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
