"""Comparing traces: medians, intervals, verdicts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import analyze
from tessera.errors import ArgumentError
from tessera.profiling.analyses.durations import Histogram, histograms, rank_test, ratio_of
from tests.unit.profiling.analyses.traces import repeated, trace


def jittered(middle_us: float, calls: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [middle_us * draw.lognormvariate(0, 0.05) for _ in range(calls)]


def histogram(durations_us: list[float]) -> Histogram:
    events = trace(*repeated("exp", durations_us)).events
    (found,) = histograms(events, ["operator"]).values()
    return found


def test_a_kernel_that_takes_a_tenth_longer_is_slower_and_another_within_noise() -> None:
    before = trace(*repeated("matmul", jittered(100, 200, 1)), *repeated("exp", jittered(50, 200, 2)))
    after = trace(*repeated("matmul", jittered(110, 200, 3)), *repeated("exp", jittered(50, 200, 4)))
    slower, same = analyze.compare(before, after)
    assert (slower.name, slower.verdict) == ("matmul", "slower")
    assert slower.low < 1.1 < slower.high
    assert slower.ratio == pytest.approx(1.1, rel=0.03)
    assert slower.p_value < 1e-6
    assert slower.lost_ms == pytest.approx(200 * 0.01, rel=0.2)
    assert (same.name, same.verdict) == ("exp", "within noise")


def test_a_trace_against_itself_is_noise_throughout() -> None:
    one = trace(*repeated("matmul", jittered(100, 100, 1)), *repeated("exp", jittered(5, 100, 2)))
    assert {row.verdict for row in analyze.compare(one, one)} == {"within noise"}


def test_kernels_of_one_trace_and_of_other_work_are_not_compared() -> None:
    before = trace(*repeated("matmul", [1.0] * 20, flops=1e6), *repeated("exp", [1.0] * 20))
    after = trace(*repeated("matmul", [9.0] * 20, flops=9e6), *repeated("exp", [1.0] * 20))
    found = {(row.name, row.work): row.verdict for row in analyze.compare(before, after)}
    assert found == {
        ("exp", ""): "within noise",
        ("matmul", "1 MFLOP"): "only in a",
        ("matmul", "9 MFLOP"): "only in b",
    }


def test_a_few_calls_decide_nothing() -> None:
    before, after = trace(*repeated("exp", [1.0, 1.1])), trace(*repeated("exp", [9.0, 9.1]))
    (row,) = analyze.compare(before, after)
    assert (row.verdict, row.low) == ("too few calls", None)
    assert row.ratio == pytest.approx(9.05 / 1.05)


def test_a_change_below_the_least_one_is_noise() -> None:
    before, after = trace(*repeated("exp", [100.0] * 50)), trace(*repeated("exp", [100.5] * 50))
    (row,) = analyze.compare(before, after)
    assert row.verdict == "within noise"
    (row,) = analyze.compare(before, after, min_change_pct=0.1)
    assert row.verdict == "slower"


def test_operators_of_torch_from_its_own_profiler_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "kineto.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(20):
            torch.exp(torch.ones(8))
    recorded.export_chrome_trace(str(path))
    (row,) = [row for row in analyze.compare(path, path) if row.name == "aten::exp"]
    assert (row.calls_a, row.calls_b, row.ratio, row.verdict) == (20, 20, pytest.approx(1.0, rel=0.01), "within noise")
    assert "no kernel with a duration" in str(analyze.stalls(path))


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"confidence": 0.2}, {"min_change_pct": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        analyze.compare(trace(), trace(), **options)


def test_the_picture_shows_the_intervals(tmp_path: Path) -> None:
    before, after = trace(*repeated("exp", jittered(9, 50, 1))), trace(*repeated("exp", jittered(12, 50, 2)))
    assert "exp" in analyze.compare(before, after).plot(tmp_path / "compare.svg").read_text()


@given(st.lists(st.integers(1, 10_000_000), min_size=1, max_size=60))
def test_medians_of_histograms_are_medians_within_a_bin(durations_ns: list[int]) -> None:
    ordered = sorted(durations_ns)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    found = histogram([each / 1000 for each in durations_ns])
    assert found.calls == len(durations_ns)
    assert found.median_ns == pytest.approx(middle, rel=1 / 250)


def test_the_interval_of_a_ratio_holds_it_as_often_as_it_says() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(200):
        first, second = (histogram([scale * draw.lognormvariate(0, 0.3) for _ in range(25)]) for scale in (1000, 1200))
        ratio = ratio_of(second, first, 0.95)
        assert ratio is not None
        held += ratio.low <= 1.2 <= ratio.high
    assert 0.9 * 200 <= held < 200


def test_an_interval_needs_calls() -> None:
    one, four = histogram([1.0, 2.0]), histogram([1.0, 2, 3, 4])
    assert ratio_of(one, one, 0.95) is None
    ratio = ratio_of(four, four, 0.9)
    assert ratio is not None
    assert [ratio.low, ratio.estimate, ratio.high] == pytest.approx([1 / 3, 1.0, 3.0])


def test_thousands_of_distinct_durations_give_the_ratio_within_a_percent() -> None:
    first = histogram([float(number) for number in range(1_000, 9_000)])
    second = histogram([1.5 * number for number in range(1_000, 9_000)])
    ratio = ratio_of(second, first, 0.95)
    assert ratio is not None
    assert ratio.estimate == pytest.approx(1.5, rel=0.01)
    assert ratio.high - ratio.low < 0.1


def test_the_rank_test_agrees_with_a_published_example() -> None:
    # The tortoise and hare example with U = 11 of 6 and 6: z = 1.04 with the correction for continuity.
    tortoise, hare = histogram([1.0, 7, 8, 9, 10, 11]), histogram([2.0, 3, 4, 5, 6, 12])
    assert rank_test(tortoise, hare) == pytest.approx(0.298, abs=0.002)
    assert rank_test(tortoise, tortoise) == 1.0
