"""Files of rocprofv3 and Nsight Systems. The fixtures are written by the documented forms, not recorded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars
import pytest

from tessera.errors import ProfileError
from tessera.profiling.export.formats import chrome, rocprof_csv
from tessera.profiling.trace import reading
from tessera.profiling.trace.table import COLUMNS

# ruff: noqa: E501 - headers are as long as rocprofv3 writes them
KERNELS = """\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 2",1,3,70,2,16,"void gemm<float>(float*, int)",12,172352210061004,172352210062686,0,0,4,4,16,1,1,1,1,1,1
"KERNEL_DISPATCH","Agent 2",1,0,70,1,33,"fill",11,172352210005122,172352210008687,0,0,12,4,48,256,1,1,256,1,1
"""
OLD_KERNELS = """\
"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH",1,139690710949888,15,"transpose(float*, int)",0,671599758568,671599825328,0,0,4,4,1,1024,1024,1
"""
COPIES = """\
"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",1,"Agent 0","Agent 2",3,1000,2500
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",1,"Agent 2","Agent 0",4,4000,4800
"""
COUNTERS = """\
"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"
1,1,"Agent 1",2,3260601,3260601,262144,5,"init",256,0,0,12,4,32,"OccupancyPercent",13.25,1000,2000
1,1,"Agent 1",2,3260601,3260601,262144,5,"init",256,0,0,12,4,32,"FetchSize",4.0,1000,2000
1,1,"Agent 1",2,3260601,3260601,262144,5,"init",256,0,0,12,4,32,"SQ_WAVES",64.0,1000,2000
2,2,"Agent 1",2,3260601,3260601,512,3,"step",256,0,0,20,4,32,"OccupancyPercent",4.5e+01,3000,3500
"""


def rows(path: Path, text: str) -> list[dict[str, Any]]:
    path.write_text(text)
    return list(reading.read(path).events.collect().iter_rows(named=True))


def test_kernels_of_rocprofv3(tmp_path: Path) -> None:
    fill, gemm = rows(tmp_path / "1_kernel_trace.csv", KERNELS)
    assert (fill["kernel_name"], fill["start_ns"], fill["dur_ns"]) == ("fill", 0, 3565)
    assert (gemm["kernel_name"], gemm["start_ns"], gemm["dur_ns"]) == ("void gemm<float>(float*, int)", 55_882, 1682)
    assert (gemm["kind"], gemm["device"], gemm["stream_id"], gemm["correlation"]) == ("kernel", "rocm:2", 3, 12)


def test_kernels_of_older_versions_of_rocprofv3(tmp_path: Path) -> None:
    (kernel,) = rows(tmp_path / "199_kernel_trace.csv", OLD_KERNELS)
    assert (kernel["kernel_name"], kernel["dur_ns"], kernel["device"]) == ("transpose(float*, int)", 66_760, "rocm:1")


def test_copies_of_rocprofv3(tmp_path: Path) -> None:
    to_device, to_host = rows(tmp_path / "1_memory_copy_trace.csv", COPIES)
    assert [(each["kind"], each["memcpy_dir"], each["dur_ns"]) for each in (to_device, to_host)] == [
        ("memcpy", "h2d", 1500),
        ("memcpy", "d2h", 800),
    ]


def test_counters_of_rocprofv3_are_columns_of_their_kernels(tmp_path: Path) -> None:
    path = tmp_path / "1_counter_collection.csv"
    init, step = rows(path, COUNTERS)
    assert (init["kernel_name"], step["kernel_name"]) == ("init", "step")
    assert (init["sm_occupancy"], step["sm_occupancy"]) == (pytest.approx(0.1325), pytest.approx(0.45))
    assert (init["dram_read_gbps"], step["dram_read_gbps"]) == (pytest.approx(4.096), None)
    assert (init["pid"], init["dur_ns"]) == (3260601, 1000)
    assert reading.read(path).metadata["unread_counters"] == ["SQ_WAVES"]


def test_what_tessera_writes_for_rocprof_is_read_as_such(tmp_path: Path) -> None:
    rows(tmp_path / "in.csv", KERNELS)
    before = reading.read(tmp_path / "in.csv")
    after = reading.read(rocprof_csv.write(before, tmp_path / "out.csv"))
    wanted = polars.col("kernel_name").cast(polars.String), "start_ns", "dur_ns", "stream_id"
    assert after.events.select(wanted).collect().rows() == before.events.select(wanted).collect().rows()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KERNELS.replace("172352210062686", "soon"), "line 2 has no start and end"),
        (KERNELS + '"KERNEL_DISPATCH","Agent 2",1,3,70,2,16,"cut', "cannot be read|damaged"),
        (COUNTERS.replace("13.25", "many"), "cannot be read"),
    ],
)
def test_damage_in_files_of_rocprofv3_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        rows(tmp_path / "trace.csv", text)


def nsys(path: Path, *, old: bool = False) -> Path:
    """A database as `nsys export --type sqlite` makes it; `old` leaves out what came later."""
    name = "gridX INT" if old else "demangledName INT"
    with closing(sqlite3.connect(path)) as database:
        nvtx = "start INT, end INT, eventType INT, text TEXT, globalTid INT" + ("" if old else ", textId INT")
        database.executescript(
            f"""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT,
                streamId INT, correlationId INT, globalPid INT, shortName INT, {name});
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT,
                streamId INT, correlationId INT, globalPid INT, bytes INT, copyKind INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT NOT NULL, end INT NOT NULL, eventClass INT, globalTid INT,
                correlationId INT, nameId INT, returnValue INT);
            CREATE TABLE NVTX_EVENTS ({nvtx});
            """
        )
        names = [(1, "gemm"), (2, "void gemm<float>(float*)"), (3, "cudaLaunchKernel_v7000"), (4, "step")]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (5, "ncclDevKernel_AllGather_RING_LL(x)")])
        pid, tid = 4711 << 24, (4711 << 24) + 4712
        kernels = [(5000, 7500, 0, 1, 7, 9, pid, 1, 2), (8000, 9000, 1, 1, 20, 10, pid, 5, 5)]
        database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 9)})", kernels)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (3000,4000,0,1,7,8,?,4096,1)", (pid,))
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (2000,2100,0,?,9,3,0)", (tid,))
        texts = ("'old step'", "") if old else ("NULL", ",4")
        database.execute(f"INSERT INTO NVTX_EVENTS VALUES (1000,9500,59,{texts[0]},?{texts[1]})", (tid,))
        database.execute(f"INSERT INTO NVTX_EVENTS VALUES (1000,NULL,34,'a mark',?{texts[1]})", (tid,))
        if not old:
            database.execute(
                "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT, utcTime TEXT, localTime TEXT)"
            )
            database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000, '', '')")
        database.commit()
    return path


def test_a_database_of_nsight_systems(tmp_path: Path) -> None:
    found = reading.read(nsys(tmp_path / "report.sqlite"))
    region, launch, copy, kernel, gathered = found.events.collect().iter_rows(named=True)
    assert (region["kind"], region["kernel_name"], region["start_ns"], region["dur_ns"]) == ("region", "step", 0, 8500)
    assert (region["pid"], region["thread_id"]) == (4711, 4712)
    assert (launch["kind"], launch["kernel_name"]) == ("operator", "cudaLaunchKernel_v7000")
    assert launch["correlation"] == kernel["correlation"] == 9
    assert (copy["memcpy_dir"], copy["bytes"], copy["memcpy_gbps"]) == ("h2d", 4096.0, pytest.approx(4.096))
    assert (kernel["kernel_name"], kernel["device"], kernel["stream_id"]) == ("void gemm<float>(float*)", "cuda:0", 7)
    assert (gathered["kind"], gathered["collective_type"]) == ("collective", "all_gather")
    assert (gathered["collective_algorithm"], gathered["device"]) == ("ring", "cuda:1")
    assert found.metadata["ranks"]["0"]["start_unix_ns"] == 1790000000000001000
    assert dict(found.events.collect_schema()) == dict(COLUMNS)


def test_columns_that_an_older_version_has_not_are_done_without(tmp_path: Path) -> None:
    region, _, _, kernel, _ = reading.read(nsys(tmp_path / "report.sqlite", old=True)).events.collect().rows(named=True)
    assert (region["kernel_name"], kernel["kernel_name"]) == ("old step", "gemm")


def test_a_trace_of_nsight_systems_can_be_shown_in_perfetto(tmp_path: Path) -> None:
    before = reading.read(nsys(tmp_path / "report.sqlite"))
    after = reading.read(chrome.write(before, tmp_path / "trace.json")).events.collect()
    assert after["dur_ns"].to_list() == before.events.collect()["dur_ns"].to_list()
    text = (tmp_path / "trace.json").read_text()
    assert text.count('"ph":"s"') == text.count('"ph":"f"') == 1  # from the launch to the kernel


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'abc', end = 'abd'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9e999",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 99999999999999",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 'seven'",
        "UPDATE StringIds SET value = x'ff00fe'",
        "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 'noon'",
        "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 9e999",
    ],
)
def test_values_that_are_none_of_their_column_are_an_error(tmp_path: Path, damage: str) -> None:
    path = nsys(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(damage).rowcount
        database.commit()
    with pytest.raises(ProfileError, match="cannot be read as a database of Nsight Systems"):
        reading.read(path)


def test_a_schema_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = nsys(tmp_path / "report.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CUPTI_ACTIVITY_KIND_KERNEL", b"CUPTI_ACTIVITY_KIND_KERN\xf0\x28"))
    with pytest.raises(ProfileError, match="cannot be read as a database of Nsight Systems"):
        reading.read(path)


def test_databases_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE notes (text)")
        database.commit()
    with pytest.raises(ProfileError, match="no database of Nsight Systems"):
        reading.read(tmp_path / "other.sqlite")
    whole = nsys(tmp_path / "cut.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ProfileError, match="cannot be read as a database"):
        reading.read(tmp_path / "cut.sqlite")
