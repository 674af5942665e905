"""Analyses that are called as statements of their own print themselves, as the profiling guide writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera import analyze, op, profile


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of one product."""
    path = tmp_path_factory.mktemp("bare") / "trace.json"
    with profile.session(exporters=[profile.chrome(path)]):
        op.matmul(torch.randn(32, 32), torch.randn(32, 32)).eval()
    return path


def test_a_statement_prints_its_table_and_where_the_picture_is(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze.roofline(trace=trace, arch="sm90")
    said = capsys.readouterr().out
    assert said.startswith("Roofline, ")
    assert said.splitlines()[-1] == 'picture: none was drawn; output="roofline.png" draws it'
    assert "these kernels ran on a CPU (" in said

    picture = tmp_path / "roofline.png"
    analyze.roofline(trace=trace, arch="sm90", output=picture)
    assert capsys.readouterr().out.splitlines()[-1] == f"picture: {picture}"
    assert picture.exists()


@pytest.mark.parametrize("name", ["stalls", "divergence", "collectives", "memory", "power", "advise"])
def test_its_siblings_do(trace: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    getattr(analyze, name)(trace)
    assert capsys.readouterr().out.splitlines()[-1] == 'picture: none was drawn; .plot("picture.png") draws it'


def test_a_result_that_somebody_takes_is_not_printed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = analyze.memory(trace)
    assert str(analyze.memory(trace)) == str(result)
    assert capsys.readouterr().out == ""


def test_bounds_of_this_machine_are_no_caveat(trace: Path) -> None:
    assert "these kernels ran on" not in str(analyze.roofline(trace))


def test_a_pending_loss_is_a_value() -> None:
    with profile.session() as session:
        loss = op.mean(op.tensor(torch.tensor([0.25, 0.75])))
        profile.counter("loss", loss)
        profile.counter("again", float(loss))
    values = {record.kernel_name: record.value for record in session.records() if record.kind == "counter"}
    assert values == {"loss": 0.5, "again": 0.5}
