"""The specification's snippets, as they are written there, run and do what the text around them says."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tessera import Tensor, autotune, dist, grad, graph, memcpy, op, profile, schedule, stream
from tessera.compiler.explain.inspection import choices_of
from tessera.typing import ArrayLike
from tests.docs.snippets import SPEC, run_all, snippets

PROFILING = snippets(SPEC / "000_profiling_and_autotuning.md")
AUTOTUNING = snippets(SPEC / "001_autotuning_strategies.md")
TILES = snippets(SPEC / "002_tile_abstraction.md")
SESSION, STREAMS, REGION, FIELDS, COUNTERS, MARKS, OVERLAP = snippets(SPEC / "003_profiling_tools.md")
PERFORMANCE = snippets(SPEC / "004_performance_guidelines.md")


def test_5_2_a_session_reports_latency_work_bandwidth_and_efficiency(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_all(PROFILING[:1])
    shown = capsys.readouterr().out
    for text in ("Op", "Latency(ms)", "FLOPs(G)", "Bandwidth(GB/s)", "Efficiency(%)", "matmul", "softmax"):
        assert text in shown
    x = names["X"].torch().double()
    torch.testing.assert_close(names["Y"].torch().double(), torch.softmax(x @ x, -1), atol=1e-4, rtol=1e-4)


def test_5_4_autotune_prints_the_best_config(capsys: pytest.CaptureFixture[str]) -> None:
    run_all(PROFILING[1:2])
    shown = capsys.readouterr().out  # the knobs of the specification, then those of this machine
    assert re.match(r"Best config: tile=\(\d+,\d+,\d+\), pipeline_depth=\d+, fusion=(True|False)(, \w+=.*)?$", shown)


def test_5_5_load_finds_what_was_tuned() -> None:
    tuned = run_all(PROFILING[1:2])["cfg"]
    loaded = run_all(PROFILING[2:3], {"autotune": autotune, "op": op})["cfg"]
    assert loaded.source == "cache"
    assert loaded.schedule == tuned.schedule


def test_5_6_candidates_are_measured_and_the_best_performer_is_kept() -> None:
    # At a smaller size: on a GPU tests/gpu/test_tuning.py runs it as it is written.
    small = replace(PROFILING[3], code=PROFILING[3].code.replace("8192", "192"))
    config = run_all([small], {"autotune": autotune, "op": op})["cfg"]
    assert config.source == "measured"
    timed = {trial.schedule: trial.seconds for trial in config.trials if trial.outcome == "ok"}
    assert len(timed) > 1
    assert timed[config.schedule] == config.measured_s
    loaded = autotune.load(op.matmul, (192, 192, 192))
    assert (loaded.source, loaded.schedule) == ("cache", config.schedule)


def test_5_7_a_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    run_all([PROFILING[0], PROFILING[4]])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"matmul", "softmax"} <= names


def test_4_3_a_kernel_tunes_at_its_first_call_and_its_schedule_travels(tmp_path: Path) -> None:
    x, w = torch.randn(64, 96), torch.randn(96, 80)
    names = run_all(AUTOTUNING[:1], {"X": x, "W": w})
    torch.testing.assert_close(names["Y"].torch().double(), x.double() @ w.double(), atol=1e-4, rtol=1e-4)
    assert (tmp_path / "nvlink72_cache.json").stat().st_size > 0


def test_4_5_a_depthwise_convolution_is_tuned_in_the_space_that_is_asked_for() -> None:
    @op.kernel
    def depthwise(image: ArrayLike, weight: ArrayLike) -> Tensor:
        return op.depthwise_conv2d(image, weight, padding=1)

    run_all(AUTOTUNING[1:], {"schedule": schedule})
    x, w = torch.randn(1, 32, 56, 56), torch.randn(32, 1, 3, 3)
    result = depthwise(x, w)
    (config,) = schedule.search_space(depthwise).configs
    assert config.schedule["tile"] in [(32, 32), (64, 64), (128, 64)]
    assert config.schedule["vectorize"] in [1, 2, 4]
    assert config.schedule["pipeline_depth"] in [2, 3]
    assert config.source == "measured"
    assert len(config.trials) <= 50
    assert depthwise.schedule == config.schedule
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1, groups=32)
    torch.testing.assert_close(result.torch().double(), expected, atol=1e-4, rtol=1e-4)


def test_6_6_the_first_run_explores_and_later_runs_use_what_it_recorded(cache_dir: Path) -> None:
    a, b = torch.randn(64, 96), torch.randn(96, 80)
    tuned = run_all(TILES[:1], {"op": op})["matmul_autotuned"]
    torch.testing.assert_close(tuned(a, b).torch().double(), a.double() @ b.double(), atol=1e-4, rtol=1e-4)
    (config,) = schedule.search_space(tuned).configs
    assert config.source == "measured"
    assert list((cache_dir / "caches" / "h100_configs").rglob("*.json"))
    again = run_all(TILES[:1], {"op": op})["matmul_autotuned"]
    again(a, b).eval()
    (known,) = schedule.search_space(again).configs
    assert (known.source, known.schedule) == ("cache", config.schedule)
    assert again.schedule == config.schedule


def test_6_7_operands_of_two_precisions_meet_in_fp32_sums() -> None:
    names = run_all(TILES[1:], {"dist": dist, "op": op, "B": 33, "D": 129, "H": 65})
    a, b, c = (names[name] for name in "ABC")
    assert [tensor.dtype.name for tensor in (a, b, c)] == ["fp8_e4m3", "bf16", "bf16"]
    expected = a.torch().double() @ b.torch().double()
    # One rounding to bf16: the sums of 129 products are exact to 2^-24 each.
    torch.testing.assert_close(c.torch().double(), expected, rtol=2.0**-8, atol=1e-4)


@pytest.mark.parametrize("copied", ["A", "another"])
def test_3_2_compute_waits_for_a_copy(copied: str) -> None:
    # `memcpy.async` is no Python: the function is `memcpy.async_`, and all else is as it is written there.
    a, b, host = torch.zeros(65, 33), torch.randn(33, 17), torch.randn(65, 33)
    target = a if copied == "A" else torch.zeros(65, 33)
    names = run_all([STREAMS], {"op": op, "A": a, "B": b, "X_dev": target, "X_host": host})
    expected = (host if copied == "A" else a).double() @ b.double()
    torch.testing.assert_close(names["y"].torch().double(), expected, atol=1e-4, rtol=1e-4)
    assert names["ev"].query()
    assert torch.equal(target, host)
    assert (names["s0"].name, names["s1"].name) == ("compute", "h2d")


def test_3_1_a_session_records_attention(tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 4, 70, 64) for _ in range(3))
    given = {"A": torch.randn(40, 30), "B": torch.randn(30, 20), "Q": q, "K": k, "V": v}
    names = run_all([SESSION], given)
    attention = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(names["y"].torch().double(), attention, atol=1e-4, rtol=1e-4)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"matmul", "flash_attention"} <= {event["name"] for event in events if event["ph"] == "X"}
    assert "post_attention" in {event["name"] for event in events}
    (record,) = [record for record in names["sess"].records() if record.operator == "flash_attention"]
    assert record.flops == 4 * 2 * 4 * 70 * 70 * 64
    assert record.shapes[0] == (2, 4, 70, 64)
    assert record.stack[-1].split()[0].endswith(f"{SPEC.name}/003_profiling_tools.md:14")
    assert names["sess"].trace().metadata["sampling"]["interval_ms"] == 5
    assert "flash_attention" in (tmp_path / "summary.csv").read_text()


def test_3_3_a_region_names_what_runs_in_it() -> None:
    q, k, v = (torch.randn(2, 7, 16) for _ in range(3))
    with profile.session() as session:
        run_all([REGION], {"op": op, "Q": q, "K": k, "V": v})
    regions = {record.operator: record.region for record in session.records() if record.operator}
    assert regions["flash_attention"] == "forward/attention"


def test_5_counters_that_nobody_has_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with profile.session() as session:
        op.matmul(torch.ones(3, 3), torch.ones(3, 3)).eval()
    run_all([FIELDS], {"sess": session})
    (record,) = session.records()
    assert capsys.readouterr().out == f"{record.kernel_name} None None\n"
    assert record.capability["sm_occupancy"]


def test_5_the_portable_fields_are_there() -> None:
    listed = """kernel_name stream_id start_us end_us sm_occupancy warp_divergence_pct inst_issue_eff_pct dram_read_gbps
        dram_write_gbps l2_hit_rate smem_bank_conflicts tc_util_pct alu_util_pct cp_async_inflight memcpy_dir
        memcpy_gbps collective_type collective_bytes collective_overlap_pct power_w temp_c throttle_reason"""
    assert set(listed.split()) <= {field.name for field in fields(profile.Record)}


def test_10_counters_and_marks_stand_in_the_records() -> None:
    with profile.session() as session:
        run_all([COUNTERS, MARKS], {"profile": profile, "sess": session, "loss": torch.tensor(0.25), "tps": 1e4})
    shown = [(each.kind, each.kernel_name, each.value, each.unit) for each in session.records()]
    assert shown == [
        ("counter", "loss", 0.25, "scalar"),
        ("counter", "tokens_per_s", 1e4, "token/s"),
        ("mark", "start/step_1200", None, ""),
        ("mark", "end/step_1200", None, ""),
    ]


def test_11_copies_and_kernels_overlap_in_a_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, host = torch.randn(40, 30), torch.randn(30, 20), torch.randn(50, 50)
    q, k, v = (torch.randn(1, 2, 7, 32) for _ in range(3))
    given = {"A": a, "B": b, "X_dev": torch.zeros(50, 50), "X_host": host, "Q": q, "K": k, "V": v}
    given["grad"] = torch.randn(30)
    streams = {f"s_{name[:4]}": stream.create(name=name) for name in ("load", "compute", "communicate")}
    names = run_all([OVERLAP], given | streams | {"memcpy": memcpy})
    assert "step.json" in capsys.readouterr().out
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    shown = {(tracks[event["tid"]], event["name"]) for event in events if event["ph"] == "X"}
    assert {("load", "memcpy h2h"), ("compute", "gemm"), ("compute", "flash_attention")} <= shown
    assert torch.equal(names["G"].torch(), given["grad"])
    (collective,) = [record for record in names["sess"].records() if record.kind == "collective"]
    assert (collective.collective_type, collective.collective_bytes) == ("all_reduce", 120.0)
    assert (collective.stream_name, collective.collective_algorithm) == ("communicate", "identity")
    assert (tmp_path / "step.csv").read_text().count("\n") >= 3
    assert sorted(path.suffix for path in (tmp_path / "runs" / "exp2").iterdir()) == [".parquet"]
    torch.testing.assert_close(names["Y"].torch().double(), a.double() @ b.double(), atol=1e-4, rtol=1e-4)
    attention = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(names["Z"].torch().double(), attention, atol=1e-4, rtol=1e-4)
    assert torch.equal(names["X_dev"], host)


def test_7_2_a_tile_shape_is_taken() -> None:
    a, b = torch.randn(256, 192), torch.randn(192, 320)
    product = run_all(PERFORMANCE[:1], {"op": op, "A": a, "B": b})["Y"]
    torch.testing.assert_close(product.torch().double(), a.double() @ b.double(), atol=1e-4, rtol=1e-4)


def test_7_4_a_softmax_between_two_products_is_one_kernel() -> None:
    q, k, v = (torch.randn(2, 4, 70, 64) for _ in range(3))
    result = op.softmax(op.matmul(q, k.transpose(-1, -2)), axis=-1) @ v
    assert result.inspect("rewrites").splitlines()[0].startswith("recognize-attention: matmul(softmax(")
    assert [choice.subject.item.family for choice in choices_of(result.structure)] == ["attention"]
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=1.0)
    torch.testing.assert_close(result.torch().double(), expected, atol=1e-4, rtol=1e-4)


def test_7_4_a_gradient_is_reduced_where_it_is_computed() -> None:
    x, bias, cotangent = torch.randn(50, 64), torch.randn(64), torch.randn(50, 64)
    offset = op.tensor(bias)
    (found,) = grad.vjp(op.gelu(op.tensor(x) + offset), [offset], cotangent)
    assert "fuse-column: sum . mul" in found.inspect("rewrites")
    assert len(choices_of(found.structure)) == 1
    wanted = bias.double().requires_grad_()
    (expected,) = torch.autograd.grad(torch.nn.functional.gelu(x.double() + wanted), (wanted,), cotangent.double())
    torch.testing.assert_close(found.torch().double(), expected, atol=1e-4, rtol=1e-4)


def test_7_4_a_convolution_with_a_large_window_is_a_product_of_spectra() -> None:
    x, w = torch.randn(1, 8, 112, 112), torch.randn(8, 8, 31, 31)
    result = run_all(PERFORMANCE[1:2], {"op": op, "X": x, "W": w})["Y"]
    assert "ifft . pointwise_mul . fft" in result.inspect("rewrites").splitlines()[0]
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=15)
    torch.testing.assert_close(result.torch().double(), expected, atol=1e-3, rtol=1e-3)


def test_7_5_a_tensor_over_72_devices_is_described_before_it_is_anywhere() -> None:
    names = run_all(PERFORMANCE[3:4], {"dist": dist})
    assert names["mesh"].state == "abstract"
    assert dict(names["mesh"].shape) == {"tp": 6, "pp": 4, "dp": 3}
    assert "166.7 GB for each of 6 x 4 shards" in repr(names["W"])


def test_7_7_a_profile_of_a_step_shows_operators_and_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = torch.randn(256, 192), torch.randn(192, 256)
    q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))

    def step_fn() -> None:
        op.matmul(a, b, tile_shape=(128, 128, 64)).eval()
        op.flash_attention(q, k, v).eval()

    run_all(PERFORMANCE[4:5], {"graph": graph, "step_fn": step_fn})
    product, attention = capsys.readouterr().out.splitlines()[:2]
    assert re.match(r"MatMul\[128x128x64\] +latency=[\d.e+]+µs +occupancy=\d+% +tiles=\d+", product)
    assert re.match(r"FusedOp\[FlashAttn\] +latency=[\d.e+]+µs +occupancy=\d+% +tiles=\d+", attention)


def test_7_4_transforms_are_operators_too() -> None:
    x, kernel = torch.randn(3, 40, 40, dtype=torch.float64), torch.randn(9, 9, dtype=torch.float64)
    found = run_all(PERFORMANCE[2:3], {"op": op, "X": x, "K": kernel})["Z"]
    expected = torch.nn.functional.conv2d(x[:, None], kernel.flip(0, 1)[None, None], padding=8)[:, 0]
    torch.testing.assert_close(op.real(found).torch()[:, :48, :48], expected)
