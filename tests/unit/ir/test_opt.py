"""`tessera opt`: reads a file or the standard input, runs passes, writes to a file or the standard output."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tessera.cli.main import main
from tessera.cli.run_passes import PASSES
from tessera.ir.parsing import parse, print_module

TEXT = "func.func @f(%x: i64) -> i64 {\n  %y = arith.addi %x, %x : i64\n  func.return %y : i64\n}\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["opt", *arguments])
    return int(end.value.code or 0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "f.mlir"
    path.write_text(TEXT)
    return path


def test_prints_the_module(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(source)) == 0
    assert capsys.readouterr().out == print_module(parse(TEXT))


def test_reads_the_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    assert run("-") == 0
    assert "@f" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("func.func @f("))
    assert run() == 1
    assert "E_IR: <stdin>:1:14: " in capsys.readouterr().err


def test_writes_a_file_that_it_reads_back(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.mlir"
    assert run(str(source), "--pass-pipeline", "strip-names", "-o", str(target)) == 0
    assert capsys.readouterr().out == ""
    assert run(str(target)) == 0
    assert capsys.readouterr().out == target.read_text()


def test_prints_the_module_after_each_pass(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(source), "--pass-pipeline", "verify,strip-names", "--print-after-each") == 0
    before, after = capsys.readouterr().err.split("// after strip-names\n")
    assert before.startswith("// after verify\nbuiltin.module")
    assert "%y = arith.addi %x, %x" in before
    assert "%1 = arith.addi %0, %0" in after


@pytest.mark.parametrize("where", ["missing.mlir", "."])
def test_a_file_that_cannot_be_read_or_written_is_an_error(
    where: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path / where)) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert run(str(source), "-o", str(tmp_path / where / "..." / "out.mlir")) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_passes_are_listed_with_options_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list-passes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0].partition("{")[0] for line in lines} == set(PASSES)
    assert "fuse-kernels{limit depth products} Graph operations become schedule kernels" in "\n".join(lines)


def test_an_error_of_a_command_names_no_line_of_the_command_line_library(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(source), "--pass-pipeline", "nope") == 1
    assert run(str(source), "--kernel", "nope") == 1
    first, hint, second = capsys.readouterr().err.splitlines()
    assert first == "E_ARGUMENT: there is no pass 'nope'"
    assert hint.startswith("hint: passes are ")
    assert second == "E_ARGUMENT: there is no kernel 'nope'"
