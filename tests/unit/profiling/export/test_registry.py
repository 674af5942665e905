"""Formats are found where they lie: one that is added is a file, and no table names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import profile
from tessera.cli.profiling import export as prof_export
from tessera.errors import ArgumentError
from tessera.profiling.export import formats
from tessera.profiling.export.registry import exporter_to, known_formats
from tests.unit.profiling.support import FACTS, run, two_step_plan


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The format of the folder `toys`, as if it stood beside the others."""
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(Path(__file__).parent / "toys")])


def test_every_module_has_a_format_with_endings_of_its_own() -> None:
    found = known_formats()
    assert list(found) == ["chrome", "html", "otlp", "parquet", "prometheus", "rocprof_csv", "summary"]
    endings = [ending for each in found.values() for ending in each.endings]
    assert endings == [".json", ".json.gz", ".html", ".parquet", ".prom", ".csv"]


@pytest.mark.parametrize(
    "name", ["trace.json", "trace.json.gz", "trace.html", "trace.parquet", "trace.prom", "trace.csv"]
)
def test_a_file_is_written_in_the_format_of_its_ending(tmp_path: Path, name: str) -> None:
    with profile.session() as session:
        run(two_step_plan())
    exporter_to(tmp_path / name).export(session.trace())
    assert (tmp_path / name).stat().st_size


def test_an_ending_that_is_none_of_a_format_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the format is not known") as raised:
        exporter_to(Path("trace.toy"))
    assert raised.value.hints == ("endings are .json, .json.gz, .html, .parquet, .prom, .csv",)


def test_an_exporter_is_one_file(toy: None, tmp_path: Path) -> None:
    assert "toy" in known_formats()
    names = [facts.kernel_name for facts in FACTS]
    with profile.session(exporters=[exporter_to(tmp_path / "session.toy")]) as session:
        run(two_step_plan())
    assert (tmp_path / "session.toy").read_text().split() == names
    prof_export.write(session.trace(), [tmp_path / "command.toy"], None)
    assert (tmp_path / "command.toy").read_text().split() == names
