"""Parquet files: what is written is what is read, whole or not at all; folders of ranks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import polars
import pytest

from tessera import analyze, profile
from tessera.errors import ProfileError
from tessera.profiling.export.formats import parquet
from tessera.profiling.trace import reading
from tessera.profiling.trace.schema import FORMAT_VERSION
from tessera.profiling.trace.table import Trace, frame
from tests.unit.profiling.support import run, two_step_plan


def one(rank: int, start_unix_ns: int | None, *starts: int) -> Trace:
    """A trace of kernels of one rank."""
    events = frame({"kind": ["kernel"] * len(starts), "start_ns": list(starts), "rank": [rank] * len(starts)})
    about = {"ranks": {str(rank): {"start_unix_ns": start_unix_ns}}, "launched": len(starts), "recorded": len(starts)}
    return Trace(events.lazy(), {**about, "dropped_reasons": {"overwritten": 1}}, {"power_w": "no sensor", "unit": "-"})


def test_what_the_exporter_wrote_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with profile.session(record_shapes=True, exporters=[profile.parquet(path)]) as session, profile.region("r"):
        run(two_step_plan(), 5)
    written = session.trace()
    found = reading.read(path)
    assert found.events.collect().equals(written.events.collect())
    assert (found.metadata, found.capability) == (written.metadata, written.capability)
    assert found.events.select("schedule_source").collect().to_series().drop_nulls().unique().to_list() == ["shipped"]


def test_a_file_of_a_version_without_a_column_is_read(tmp_path: Path) -> None:
    path = profile.parquet(tmp_path / "new.parquet").export(one(0, None, 1, 2))
    about = polars.read_parquet_metadata(path)
    old = polars.read_parquet(path).drop("schedule_source", strict=False)
    old.write_parquet(tmp_path / "old.parquet", metadata={parquet.KEY: about[parquet.KEY]})
    found = reading.read(tmp_path / "old.parquet").events.collect()
    assert found["schedule_source"].null_count() == len(found) == 2


@pytest.mark.parametrize(
    ("devices", "written"),
    [
        (["cpu", "cpu"], polars.Enum(["cpu"])),
        (["cpu", "cuda:0"], polars.Categorical()),
        (["cpu", None], polars.Categorical()),
        (["", ""], polars.Enum([""])),
    ],
)
def test_a_text_that_is_the_same_in_every_row_is_an_enum_of_one(
    tmp_path: Path, devices: list[str | None], written: polars.DataType
) -> None:
    events = frame({"kind": ["kernel"] * 2, "start_ns": [1, 2], "dur_ns": [1, 1], "device": devices})
    path = parquet.write(Trace(events.lazy(), {}, {}), tmp_path / "x.parquet")
    assert polars.read_parquet_schema(path)["device"] == written
    assert reading.read(path).events.collect().equals(events)


def test_an_enum_of_one_with_gaps_keeps_its_gaps(tmp_path: Path) -> None:
    gaps = polars.Series("device", ["cpu", None], polars.Enum(["cpu"]))
    events = frame({"kind": ["kernel"] * 2, "start_ns": [1, 2], "dur_ns": [1, 1]}).select("kind", "start_ns", "dur_ns")
    about = {"format": FORMAT_VERSION, "metadata": {}, "capability": {}}
    events.with_columns(gaps).write_parquet(tmp_path / "x.parquet", metadata={parquet.KEY: json.dumps(about)})
    assert reading.read(tmp_path / "x.parquet").events.collect()["device"].to_list() == ["cpu", None]


def test_any_reader_of_parquet_sees_the_columns(tmp_path: Path) -> None:
    parquet.write(one(0, None, 5, 9), tmp_path / "x.parquet")
    assert polars.read_parquet(tmp_path / "x.parquet")["start_ns"].to_list() == [5, 9]


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "here" / "x.parquet"
    with pytest.raises(ProfileError, match="could not be written"):
        parquet.write(one(0, None, 1), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_a_clear_error() -> None:
    with pytest.raises(ProfileError, match="could not be written to /dev/full"):
        parquet.write(one(0, None, *range(1000)), Path("/dev/full"))


@pytest.mark.parametrize("keep", [4, 100, 900])
def test_a_damaged_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = parquet.write(one(0, None, *range(100)), tmp_path / "x.parquet")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ProfileError, match=r"x\.parquet is no whole Parquet file"):
        reading.read(path)


def test_parquet_of_others_is_refused(tmp_path: Path) -> None:
    polars.DataFrame({"a": [1]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(ProfileError, match="no trace of Tessera"):
        reading.read(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "told",
    [
        *("", "{", "3", "[]", "{}", "[" * 100_000),
        '{"format": "x", "metadata": {}, "capability": {}}',
        '{"format": 1, "metadata": {}}',
        '{"format": 1, "metadata": 3, "capability": {}}',
    ],
)
def test_metadata_of_another_shape_are_damage(tmp_path: Path, told: str) -> None:
    frame({"start_ns": [1]}).write_parquet(tmp_path / "x.parquet", metadata={parquet.KEY: told})
    with pytest.raises(ProfileError, match="what it tells of its trace cannot be read"):
        reading.read(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["kind", "start_ns", "flops", "operator"])
def test_columns_of_other_types_are_damage(tmp_path: Path, name: str) -> None:
    wrong = 3.5 if name == "operator" else "text"
    about = '{"format": 1, "metadata": {}, "capability": {}}'
    events = frame({"start_ns": [1]}).with_columns(polars.lit(wrong).alias(name))
    events.write_parquet(tmp_path / "x.parquet", metadata={parquet.KEY: about})
    with pytest.raises(ProfileError, match="its columns are not those of a trace"):
        reading.read(tmp_path / "x.parquet")


def test_damage_among_the_events_is_an_error_of_every_analysis(tmp_path: Path) -> None:
    path = parquet.write(one(0, None, *range(100)), tmp_path / "x.parquet")
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)  # the pages follow the first four bytes
    path.write_bytes(data)
    for analysis in (analyze.stalls, analyze.memory, analyze.power, analyze.advise, analyze.collectives):
        with pytest.raises(ProfileError, match=r"x\.parquet is damaged"):
            analysis(path)


def test_mistakes_of_the_reading_block_are_no_damage(tmp_path: Path) -> None:
    path = parquet.write(one(0, None, 1), tmp_path / "x.parquet")
    with pytest.raises(polars.exceptions.ColumnNotFoundError), reading.reading(path) as found:
        found.events.select("no such column").collect()


def test_a_pipe_is_no_trace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileError, match="pipe is no file"):
        reading.read(tmp_path / "pipe")


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FORMAT_VERSION", FORMAT_VERSION + 1)
    path = parquet.write(one(0, None, 1), tmp_path / "x.parquet")
    monkeypatch.undo()
    with pytest.raises(ProfileError, match=f"has format {FORMAT_VERSION + 1}"):
        reading.read(path)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    for name, says in (("notes.txt", "no format"), ("none", "there is no"), (".", "no traces")):
        with pytest.raises(ProfileError, match=says):
            reading.read(tmp_path / name)


def test_a_folder_of_ranks_is_one_trace_on_one_clock(tmp_path: Path) -> None:
    parquet.write(one(0, 1_000_000, 10, 30), tmp_path / "a.parquet")
    parquet.write(one(1, 1_000_015, 5, 6), tmp_path / "b.parquet")
    joined = reading.read(tmp_path)
    events = joined.events.collect()
    assert events.select("start_ns", "rank").rows() == [(10, 0), (20, 1), (21, 1), (30, 0)]
    assert joined.metadata["launched"] == 4
    assert joined.metadata["dropped_reasons"] == {"overwritten": 2}
    assert set(joined.metadata["ranks"]) == {"0", "1"}
    assert joined.metadata["aligned"]
    assert joined.capability == {"power_w": "no sensor", "unit": "-"}


def test_files_that_claim_one_rank_are_numbered(tmp_path: Path) -> None:
    parquet.write(one(0, None, 1), tmp_path / "a.parquet")
    shutil.copy(tmp_path / "a.parquet", tmp_path / "b.parquet")
    joined = reading.read(tmp_path)
    assert joined.events.collect()["rank"].to_list() == [0, 1]
    assert not joined.metadata["aligned"]
