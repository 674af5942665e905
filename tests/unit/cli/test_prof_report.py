"""What `tessera-prof report` says of traces without kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tessera import profile
from tessera.cli import prof_report
from tessera.cli.main import print_error
from tessera.errors import ArgumentError, ProfileError
from tests.unit.profiling.support import run, two_step_plan


@pytest.mark.parametrize(
    ("mode", "runs", "hint"), [("summary", 3, "keeps sums alone"), ("timeline", 0, "ran no Tessera")]
)
def test_a_trace_without_kernels_says_why(
    tmp_path: Path, mode: Literal["summary", "timeline"], runs: int, hint: str
) -> None:
    path = tmp_path / "trace.parquet"
    with profile.session(mode=mode, exporters=[profile.parquet(path)]) as session:
        run(two_step_plan(), runs)
        session.mark("end")
    with pytest.raises(ArgumentError, match=hint):
        prof_report.report(path)


def test_what_is_told_of_a_file_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ProfileError("there is no trace\x1b[2J\x9b.json", hints=["another line"]))
    told = capsys.readouterr().err
    assert told.splitlines()[0].endswith("there is no trace?[2J?.json")
    assert told.endswith("hint: another line\n")
