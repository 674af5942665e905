"""Every `.mlir` file here is a test: its RUN lines are run, and its CHECK lines matched against what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options

from tessera.cli.main import main

FOLDER = Path(__file__).parent
RUN = re.compile(
    r"^// RUN: (?P<fails>not )?tessera (?P<command>opt .*?)(?P<errors> 2>&1)? \| filecheck (?P<checks>.*)$", re.M
)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.mlir")), ids=lambda path: path.stem)
def test_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = list(RUN.finditer(path.read_text()))
    assert runs, f"{path} has no RUN line that this driver reads"
    assert len(runs) == path.read_text().count("RUN:"), f"{path} has a RUN line that this driver does not read"
    for run in runs:
        with pytest.raises(SystemExit) as end:
            main(shlex.split(run["command"].replace("%s", str(path))))
        captured = capsys.readouterr()
        assert bool(end.value.code) == bool(run["fails"]), captured.err
        printed = tmp_path / "printed"
        printed.write_text(captured.out + (captured.err if run["errors"] else ""))
        arguments = shlex.split(run["checks"].replace("%s", str(path)))
        matched = Matcher.from_opts(parse_argv_options(["filecheck", *arguments, "--input-file", str(printed)])).run()
        assert matched == 0, capsys.readouterr().err
