"""Points, bounds and the picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tessera import analyze, profile
from tessera.analyze import Roofline, RooflinePoint
from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.export.formats import parquet
from tessera.profiling.report import report
from tessera.profiling.trace.schema import Record
from tessera.profiling.trace.table import Trace
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, MemoryLevel, Target, detect
from tessera.target.stored_ceilings import store_ceilings
from tests.unit.profiling.analyses.traces import kernel, trace

CEILINGS = Ceilings(
    arch="test",
    name="a machine",
    source="measured",
    compute=(ComputeCeiling("fp32", 2, 200e9), ComputeCeiling("bf16", 2, 400e9)),
    memory=(
        MemoryCeiling("L2", 2, 300e9),
        MemoryCeiling("DRAM", 2, 20e9),
        MemoryCeiling("DRAM", 2, 25e9, "copy"),
        MemoryCeiling("DRAM", 2, 70e9, "write_nt"),
    ),
)
TARGET = Target(
    kind="cpu",
    arch="test",
    name="a machine",
    features=frozenset(),
    vector_bits=512,
    vector_registers=32,
    cores=2,
    processors=2,
    memory=(MemoryLevel("L2", 1 << 20, 64, 1), MemoryLevel("DRAM", 1 << 34, 64, 2)),
    ceilings=CEILINGS,
)
PRODUCT = RooflinePoint("matmul", flops=2e9, bytes=12e6, seconds=0.0125, dtype="fp32", workers=2)
COPY = RooflinePoint("softmax", flops=1e8, bytes=1e8, seconds=0.008, dtype="fp32", workers=2)


def event(**changes: Any) -> dict[str, Any]:
    counts = {"flops": 2e9, "bytes": 12e6, "dtype": "fp32", "workers": 2}
    return {"ph": "X", "name": "matmul", "ts": 0.0, "dur": 12500.0, "args": counts, **changes}


def write_trace(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_arithmetic_binds_a_product_and_memory_a_copy() -> None:
    model = Roofline((PRODUCT, COPY), TARGET)
    product, copy = model.bound(PRODUCT), model.bound(COPY)
    assert product is not None
    assert copy is not None
    assert [product.binding, copy.binding] == ["compute", "DRAM"]
    assert [product.seconds, copy.seconds] == pytest.approx([0.01, 0.004])
    assert model.efficiency_pct(PRODUCT) == pytest.approx(80.0)
    assert model.efficiency_pct(COPY) == pytest.approx(50.0)


def test_without_ceilings_there_is_no_bound() -> None:
    bare = Target(**{**vars(TARGET), "ceilings": None})
    assert Roofline((PRODUCT,), bare).efficiency_pct(PRODUCT) is None


def test_rates_are_work_over_time() -> None:
    assert PRODUCT.flop_per_s == pytest.approx(160e9)
    assert COPY.byte_per_s == pytest.approx(12.5e9)
    assert COPY.intensity == pytest.approx(1.0)


def test_a_trace_gives_one_point_per_kernel_with_the_median_time(tmp_path: Path) -> None:
    slow, slower = event(dur=20000.0), event(dur=90000.0)
    region = {"ph": "X", "name": "forward", "dur": 5.0, "args": {}}
    (point,) = analyze.roofline(write_trace(tmp_path, region, event(), slower, slow), target=TARGET).points
    assert point.seconds == pytest.approx(0.02)
    assert point == RooflinePoint("matmul", 2e9, 12e6, point.seconds, "fp32", 2, calls=3)


def test_a_record_of_a_kernel_is_a_point_and_a_region_is_none() -> None:
    kernel = Record("kernel", "k", 0, 10.0, 30.0, operator="exp", workers=2, flops=8.0, bytes=64.0, dtype="fp32")
    point = analyze.point_of(kernel)
    assert point is not None
    assert (point.name, point.flops, point.bytes, point.workers) == ("exp", 8.0, 64.0, 2)
    assert point.seconds == pytest.approx(20e-6)
    assert analyze.point_of(Record("region", "forward", 0, 0.0, 5.0)) is None


def test_the_picture_is_written_where_asked(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, event())
    model = analyze.roofline(trace, target=TARGET, output=tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert [point.name for point in model.points] == ["matmul"]


def test_the_picture_names_kernels_ceilings_and_efficiency(tmp_path: Path) -> None:
    text = Roofline((PRODUCT, COPY), TARGET).plot(tmp_path / "roofline.svg").read_text()
    assert "mathdefault" not in text
    assert "<!-- 100 -->" in text
    for label in (
        "matmul fp32, 2 GFLOP, 12 MB, 80 %",
        "softmax fp32, 100 MFLOP, 100 MB, 50 %",
        "fp32 200 GFLOP/s",
        "DRAM 25 GB/s",
        "a machine, 2 workers",
    ):
        assert label in text


def test_a_gpu_by_name_is_held_against_its_data_sheet(tmp_path: Path) -> None:
    model = analyze.roofline(write_trace(tmp_path, event()), arch="sm90")
    assert model.target.arch == "sm_90"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"traceEvents": 3}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=r"trace\.json"):
        analyze.roofline(path, target=TARGET)


def test_a_trace_without_kernels_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="holds no kernel") as failure:
        analyze.roofline(write_trace(tmp_path), target=TARGET)
    assert "profile.session()" in str(failure.value)


def test_a_bandwidth_is_the_highest_of_the_accesses_that_kernels_make() -> None:
    assert analyze.bandwidth(CEILINGS, "DRAM", 2) == 25e9
    with pytest.raises(ValueError, match="empty"):
        analyze.bandwidth(CEILINGS, "DRAM", 1)


def test_a_trace_of_another_machine_is_not_held_against_this_one() -> None:
    elsewhere = trace(kernel("exp", 0, 9, flops=1.0, bytes=8.0), metadata={"target": {"arch": "z", "name": "Another"}})
    with pytest.raises(ArgumentError, match="recorded on Another"):
        analyze.roofline(elsewhere)
    on_gpu = trace(kernel("exp", 0, 9, flops=1.0, bytes=8.0, device="cuda:0"))
    with pytest.raises(ArgumentError, match="ran on cuda:0") as failure:
        analyze.roofline(on_gpu)
    assert "arch=" in failure.value.hints[0]
    assert "memory-bound: not judged: no ceilings of the device" in str(analyze.advise(on_gpu))


def elsewhere(**metadata: Any) -> Trace:
    """A trace of a CPU that this is not."""
    about = {name: getattr(TARGET, name) for name in ("arch", "name", "cores", "processors")}
    levels = [asdict(level) for level in TARGET.memory]
    product = kernel("matmul", 0, 12500, flops=2e9, bytes=12e6, dtype="fp32", workers=2, device="cpu")
    return trace(product, metadata={"target": {**about, "memory": levels}, **metadata})


def test_a_trace_that_holds_ceilings_is_held_against_them_on_any_machine(tmp_path: Path) -> None:
    recorded = elsewhere(ceilings=json.loads(CEILINGS.to_json()))
    for own in (recorded, profile.read(parquet.write(recorded, tmp_path / "trace.parquet"))):
        model = analyze.roofline(own)
        assert (model.target.name, model.target.ceilings) == ("a machine", CEILINGS)
        assert [row.efficiency_pct for row in model] == pytest.approx([80.0])
        (row,) = report.operator_rows(own)
        assert row.efficiency_pct == pytest.approx(80.0)
        assert row.binding == "compute"


@pytest.mark.parametrize("ceilings", [None, 3, {"version": 99}, {"version": 1, "arch": "test"}])
def test_damaged_ceilings_of_another_machine_are_none(ceilings: object) -> None:
    with pytest.raises(ArgumentError, match="holds no ceilings"):
        analyze.roofline(elsewhere(ceilings=ceilings))


def test_the_report_does_not_hold_a_trace_of_another_machine_against_this_one(cache_dir: Path) -> None:
    store_ceilings(detect(), CEILINGS)
    (row,) = report.operator_rows(elsewhere())
    assert row.efficiency_pct is None
    console = Console(record=True, width=200)
    console.print(report.of_trace(elsewhere()))
    assert "the trace holds no ceilings of a machine" in console.export_text()


def test_a_session_keeps_the_ceilings_that_are_known(cache_dir: Path) -> None:
    with profile.session() as unknown:
        pass
    assert "ceilings" not in unknown.metadata()
    store_ceilings(detect(), CEILINGS)
    with profile.session() as known:
        pass
    assert Ceilings.from_json(json.dumps(known.metadata()["ceilings"])) == CEILINGS
    assert [level["name"] for level in known.metadata()["target"]["memory"]] == [each.name for each in detect().memory]


def test_the_model_prints_and_iterates_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # tests in several processes have 80
    model = Roofline((PRODUCT, COPY), TARGET)
    product, copy = model
    assert (product.kernel, product.binding, product.efficiency_pct) == ("matmul", "compute", pytest.approx(80.0))
    assert (copy.kernel, copy.binding) == ("softmax", "DRAM")
    assert product.share_pct + copy.share_pct == pytest.approx(100)
    assert len(model) == len(model.to_polars()) == 2
    assert "Of the bound(%)" in str(model)
    bare = Roofline((PRODUCT,), Target(**{**vars(TARGET), "ceilings": None}))
    assert "efficiency_pct: not measured: the ceilings of this device are not known" in str(bare)
