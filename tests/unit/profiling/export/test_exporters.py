"""Text for Prometheus, kernels as rocprofv3 writes them, and what all files that are exported have in common."""

from __future__ import annotations

import csv
import gzip
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera import profile
from tessera.errors import ProfileError
from tessera.profiling.export.formats import prometheus
from tessera.profiling.trace.table import Trace, frame
from tests.unit.profiling.support import run, two_step_plan


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus' own parser reads."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def recorded() -> profile.Session:
    with profile.session() as session:
        run(two_step_plan(), 4)
        profile.counter("loss", 3.0)
        profile.counter("loss", 1.5)
        profile.counter('odd "name"\\\n', math.inf, "a/b")
    return session


def test_prometheus_reads_totals_and_last_values(tmp_path: Path) -> None:
    exporter = profile.prometheus(tmp_path / "tessera.prom")
    exporter.export(recorded().trace())
    read = samples((tmp_path / "tessera.prom").read_text())
    assert read["tessera_kernels_launched_total", ()] == 8
    assert read["tessera_kernels_recorded_total", ()] == 8
    assert read["tessera_kernels_dropped_total", (("reason", "overwritten"),)] == 0
    add = (("dtype", "fp32"), ("operator", "add"))
    assert read["tessera_operator_calls_total", add] == 4
    assert read["tessera_operator_flops_total", add] == 4 * 16
    assert read["tessera_operator_bytes_total", add] == 4 * 128
    assert 0 < read["tessera_operator_seconds_total", add] < 60
    values = {dict(labels)["name"]: value for (name, labels), value in read.items() if name == "tessera_counter"}
    assert values == {"loss": 1.5, 'odd "name"\\\n': math.inf}
    assert exporter.latest == (tmp_path / "tessera.prom").read_text()


def test_prometheus_text_can_be_had_without_a_file() -> None:
    exporter = profile.prometheus()
    with profile.session(exporters=[exporter]):
        run(two_step_plan(), 2)
    assert samples(exporter.latest)["tessera_kernels_launched_total", ()] == 2 * 2


def test_sensors_are_told_apart_by_device() -> None:
    rows: dict[str, Any] = {
        "kind": ["sample"] * 3,
        "kernel_name": ["power_w"] * 3,
        "device": ["cuda:0", "cuda:1", "cuda:0"],
        "unit": ["W"] * 3,
        "start_ns": [0, 1, 2],
        "value": [100.0, 300.0, 200.0],
    }
    read = samples(prometheus.text(Trace(frame(rows).lazy(), {}, {})))
    watts = {dict(labels)["device"]: value for (name, labels), value in read.items() if name == "tessera_sample"}
    assert watts == {"cuda:0": 200.0, "cuda:1": 300.0}


def test_kernels_are_written_as_rocprofv3_writes_them(tmp_path: Path) -> None:
    session = recorded()
    profile.rocprof_csv(tmp_path / "kernel_trace.csv").export(session.trace())
    with (tmp_path / "kernel_trace.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [record.kernel_name for record in session.records() if record.kind == "kernel"]
    assert [row["Kernel_Name"] for row in rows] == names
    assert {row["Kind"] for row in rows} == {"KERNEL_DISPATCH"}
    assert [int(row["Dispatch_Id"]) for row in rows] == list(range(1, 9))
    spans = [int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows]
    durations = [record.duration_us for record in session.records() if record.kind == "kernel"]
    assert spans == pytest.approx([1000 * each for each in durations], abs=1)


WRITERS: list[Callable[[Path], Any]] = [profile.chrome, profile.summary, profile.prometheus, profile.rocprof_csv]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_files_are_whole_or_as_they_were(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    session, path = recorded(), tmp_path / "file"
    path.write_text("as it was")
    missing = tmp_path / "no such folder" / "file"
    with pytest.raises(ProfileError, match="could not be written"):
        writer(missing).export(session.trace())
    writer(path).export(session.trace())
    assert path.read_text() != "as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_a_full_disk_is_an_error_that_says_so(writer: Callable[[Path], Any]) -> None:
    with pytest.raises(ProfileError, match="No space left on device"):
        writer(Path("/dev/full")).export(recorded().trace())


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_files_are_packed_where_their_name_says_so(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    session = recorded()
    writer(tmp_path / "plain").export(session.trace())
    writer(tmp_path / "packed.gz").export(session.trace())
    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == (tmp_path / "plain").read_bytes()


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    profile.chrome(tmp_path / "link.json").export(recorded().trace())
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text().startswith('{"traceEvents"')


def test_sessions_that_export_to_one_file_never_tear_it(tmp_path: Path) -> None:
    sessions = [recorded(), recorded()]
    wholes = []
    for number, session in enumerate(sessions):
        profile.chrome(tmp_path / f"{number}.json").export(session.trace())
        wholes.append((tmp_path / f"{number}.json").read_text())
    path = tmp_path / "shared.json"
    profile.chrome(path).export(sessions[0].trace())
    ended = threading.Event()
    seen = set()

    def look() -> None:
        while not ended.is_set():
            seen.add(path.read_text())

    watcher = threading.Thread(target=look)
    writers = [
        threading.Thread(target=lambda s=session: [profile.chrome(path).export(s.trace()) for _ in range(20)])
        for session in sessions
    ]
    watcher.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    watcher.join()
    assert seen <= set(wholes)
    assert os.listdir(tmp_path).count("shared.json") == 1
    assert len(os.listdir(tmp_path)) == 3
