"""The GPU bench on the CPU: small cases through the same code, with a clock that counts instead of timing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.gpu import cases, record, results
from bench.gpu.__main__ import main, parse
from bench.gpu.attention import _attention, _backward, attention
from bench.gpu.cases import Case, Made, Place
from bench.gpu.decoding import HEAD, HEADS, _decoding
from bench.gpu.results import OURS, Found
from bench.gpu.running import WrongResultError, built, relative_error, run
from bench.gpu.suites import SUITES
from bench.gpu.timing import Cache, Call, Sample, geomean, interleaved
from tessera import op

CPU = Place("cpu", "cpu")
ROOT = Path(__file__).parent.parent.parent.parent

WITHOUT_TABLES = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rich", "polars", "typer", "matplotlib", "hypothesis"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import bench.gpu.__main__, bench.gpu.contest, bench.gpu.launch, tests.gpu.faulting
sys.exit(bench.gpu.__main__.main([]) - 1)
"""
"""Machines with GPUs are bare: torch, Triton, pytest, and what the compiler itself is built on."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_nothing_but_the_compilers_own_libraries_is_needed() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_TABLES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Counting:
    """A timer whose seconds are how often it was asked, and which really makes each call."""

    def __init__(self) -> None:
        self.asked: list[Cache] = []

    def prepared(self, call: Call, cache: Cache) -> Sample:
        """Samples are the number of questions so far."""

        def sample() -> float:
            call()
            self.asked.append(cache)
            return float(len(self.asked))

        return sample


@pytest.mark.parametrize(
    "make",
    [
        partial(cases._product, 33, 17, 65),
        partial(cases._fused_product, 33, 17, 65),
        *(partial(cases._row_kernel, name, (67, 129), dtype) for name in cases.ROWS for dtype in ("fp32", "bf16")),
    ],
)
def test_our_results_are_right_and_every_case_is_measured_cold_and_warm(make: Callable[[Place], Made]) -> None:
    timer, made = Counting(), make(CPU)
    case = Case("suite", "case", 1e9, "GB/s", 3e-2, lambda place: Made(made.ours, _eager(made), made.reference))
    cold, warm = run(case, CPU, timer)
    assert (cold.cache, warm.cache) == ("cold", "warm")
    for result in (cold, warm):
        assert result.seconds.keys() == {OURS, *_eager(made)}
        assert result.missing == {}
        assert result.error is not None
        assert result.error <= 3e-2
    assert set(timer.asked) == {"cold", "warm"}


def test_products_of_8_bits_are_not_rounded_to_8_bits() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    torch.manual_seed(0)
    made = cases._fp8_product(64, Place("cpu", "interpreter"))
    result = made.ours["default"]()
    assert result.dtype.name == "bf16"
    # Triton's interpreter cuts results off to bf16: 2^-7 of an element at most, where fp8 would lose 2^-4.
    assert relative_error(result.torch(), made.reference()) < 2**-7
    assert "tl.dot(a_tile, b_tile, acc" in made.ours["default"]().inspect("target")  # as they were loaded


@pytest.mark.parametrize("causal", [False, True])
def test_our_attention_is_right(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    monkeypatch.setattr("bench.gpu.attention.WIDTH", 128)
    monkeypatch.setattr("bench.gpu.attention.TOKENS_IN_ALL", 256)
    case = next(case for case in attention() if ("causal" in case.label) == causal)
    made = _attention(96, 64, causal, CPU)
    cold, _ = run(
        Case("s", case.label, 1.0, "TFLOP/s", 3e-2, lambda place: Made(made.ours, {}, made.reference)), CPU, Counting()
    )
    assert cold.error is not None
    assert cold.error < 3e-2


def test_our_backward_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.gpu.attention.WIDTH", 64)
    monkeypatch.setattr("bench.gpu.attention.TOKENS_IN_ALL", 64)
    made = _backward(48, 32, True, CPU)
    cold, _ = run(
        Case("s", "c", 1.0, "TFLOP/s", 3e-2, lambda place: Made(made.ours, {}, made.reference)), CPU, Counting()
    )
    assert cold.error is not None
    assert cold.error < 3e-2


def _eager(made: Made) -> dict[str, Callable[[], cases.Theirs]]:
    """The peers that compile nothing."""
    return {name: build for name, build in made.peers.items() if "compile" not in name}


def test_unwritten_memory_and_wrong_values_are_seen() -> None:
    x = torch.randn(5, 7)
    wrong = Made({"default": lambda: op.tensor(x) * 1.5}, {}, x.double)
    with pytest.raises(WrongResultError, match="error 5"):
        list(run(Case("s", "wrong", 1.0, "GB/s", 1e-3, lambda place: wrong), CPU, Counting()))
    lost = Made({"default": lambda: op.log(op.tensor(-x.abs()))}, {}, x.double)
    with pytest.raises(WrongResultError, match="nan"):
        list(run(Case("s", "nan", 1.0, "GB/s", 1e-3, lambda place: lost), CPU, Counting()))
    with pytest.raises(WrongResultError, match="shape"):
        relative_error(x, torch.zeros(6, 7))


def test_what_cannot_be_measured_has_its_reason() -> None:
    def broken() -> cases.Theirs:
        raise RuntimeError("no such kernel\nmore")

    x = torch.randn(3, 4)
    made = Made({"default": lambda: op.exp(x)}, {"peer": broken}, lambda: x.double().exp())
    cold, _ = run(Case("s", "c", 1.0, "GB/s", 1e-3, lambda place: made, {"peer": 1.0}), CPU, Counting())
    assert cold.missing == {"peer": "RuntimeError: no such kernel"}
    assert cold.ratio("peer") is None
    assert any("not measured" in cells for cells in results.rows(cold))
    (goal,) = [goal for goal in results.goals([cold]) if "peer" in goal.text]
    assert goal.met == "not measured"


def test_schedules_that_are_not_legal_are_left_out_and_the_fastest_is_taken() -> None:
    x = torch.randn(40, 30)
    made = Made(
        {
            "first": lambda: op.exp(x),
            "illegal": lambda: op.exp(x).pin(warps=3),
            "second": lambda: op.exp(x).pin(nontemporal=False),
        },
        {},
        lambda: x.double().exp(),
    )
    cold, _ = run(Case("s", "c", 1.0, "GB/s", 1e-3, lambda place: made), CPU, Counting())
    assert cold.schedule == "first"  # the counting timer calls the one it saw first faster


def test_schedules_are_built_and_peers_left_out() -> None:
    x = torch.randn(40, 30)
    ours = {"first": lambda: op.exp(x), "illegal": lambda: op.exp(x).pin(warps=3)}
    case = Case(
        "s", "c", 1.0, "GB/s", 1e-3, lambda place: Made(ours, {"peer": lambda: x.exp}, lambda: x.double().exp())
    )
    assert built(case, CPU) == 1
    cold, _ = run(case, CPU, Counting(), without=["peer"])
    assert cold.missing == {"peer": "left out"}
    assert set(cold.seconds) == {OURS}


def test_schedules_that_are_legal_are_recorded_and_the_near_ones_sampled_more() -> None:
    x = torch.randn(40, 30)
    calls = record.built(lambda: op.exp(x), [{}, {"warps": 3}, {"nontemporal": False}])
    assert list(calls) == ["default", "nontemporal=False"]
    times = {"near": 1.0, "beside": 1.5, "far": 3.0}

    class Known:
        def prepared(self, call: Call, cache: Cache) -> Sample:
            return lambda: times[str(call())]

    found = record.measured({name: partial(str, name) for name in times}, Known())
    assert {name: len(samples) for name, samples in found.items()} == {"near": 14, "beside": 6, "far": 2}


def test_rates_ratios_and_goals() -> None:
    found = Found("matmul", "bf16 8192 cubed", "warm", 1.5e12, "TFLOP/s", "s", {OURS: 2e-3, "cuBLAS": 1.8e-3}, {}, 0.0)
    assert found.ratio("cuBLAS") == pytest.approx(0.9)
    assert found.rate(OURS) == pytest.approx(750.0)
    text = results.markdown([found], "device")
    assert "| bf16 8192 cubed, TFLOP/s, warm L2 | 710 | 750.00 | yes |" in text
    assert "| bf16 matmul, geomean of cuBLAS's time / ours, warm L2 | 0.95 | 0.90 | NO |" in text
    assert "| bf16 8192 cubed, TFLOP/s, cold L2 | 710 |  | not measured |" in text


def test_contenders_are_timed_in_turn() -> None:
    order: list[str] = []
    calls: dict[str, Call] = {name: partial(order.append, name) for name in "abc"}
    assert interleaved(calls, "cold", Counting(), rounds=3) == {"a": 4.0, "b": 5.0, "c": 6.0}
    assert order == list("abcabcabc")
    assert geomean([1.0, 4.0]) == pytest.approx(2.0)


def test_decoding_is_right() -> None:
    made = _decoding(2, 300, CPU)
    result = torch.empty(2, HEADS, 1, HEAD, dtype=torch.bfloat16)
    made.ours["default"]().eval(result)
    assert relative_error(result, made.reference()) < 3e-2


def test_the_issues_cases_are_there() -> None:
    listed = {suite: [case.label for case in build()] for suite, build in SUITES.items()}
    squares = {f"bf16 {size} cubed" for size in (1024, 2048, 4096, 8192)}
    assert squares <= set(listed["matmul"])
    assert len(listed["matmul"]) - len(squares) == 12
    assert all(case.work > 0 and math.isfinite(case.work) for build in SUITES.values() for case in build())
    assert len(listed["attention"]) == 16
    assert len(listed["backward"]) == 8
    row_bytes = [case.work / 2 for case in SUITES["rows"]()]
    assert min(row_bytes) >= 64e6


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main([]) == 1
    assert "not measured" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["nosuch"])
