"""`op.all_reduce`: two real ranks over gloo, one process without a group, and what is refused."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import analyze, op, profile, stream
from tessera.errors import ArgumentError, DTypeError, ValueControlFlowError
from tessera.typing import ArrayLike
from tests import forked
from tests.unit.sharding.exchange.rank_job import DTYPES, LATE_S, REDUCTIONS, values

SECONDS = 300.0
"""Much longer than two processes take to start."""

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks put their traces: a folder that is read like a file."""
    folder = tmp_path_factory.mktemp("ranks") / "trace.json"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Seen]:
    """What two ranks of one job saw."""
    program = "from tests.unit.sharding.exchange.rank_job import main; main()"
    imports = forked.importing_tests()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(forked.run, program, [str(rank), str(folder)], imports, SECONDS, True) for rank in (0, 1)]
    ended = [each.result() for each in asked]
    assert [each.returncode for each in ended] == [0, 0], [each.stderr for each in ended]
    return [json.loads(each.stdout) for each in ended]


COMBINED: dict[str, Callable[[float, float], float]] = {
    "sum": operator.add,
    "avg": lambda a, b: (a + b) / 2,
    "min": min,
    "max": max,
    "product": operator.mul,
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_both_ranks_get_the_reduction_of_every_dtype(ranks: list[Seen], reduction: str) -> None:
    for dtype in DTYPES:
        if reduction == "avg" and not dtype.is_floating_point:
            continue
        own = [values(rank, dtype).tolist() for rank in range(2)]
        expected = [[COMBINED[reduction](*pair) for pair in zip(*rows, strict=True)] for rows in zip(*own, strict=True)]
        for seen in ranks:
            assert seen["reductions"][f"{reduction} {dtype}"] == expected


def test_operands_are_computed_and_stay_as_they_are(ranks: list[Seen]) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    for seen in ranks:
        found = seen["shapes"]
        assert found["pending"] == (4 * x.T + 1).tolist()
        assert (found["number"], found["empty"]) == (1.0, [0, 3])
        assert found["complex"] == [[2.0], [2.0]]
        assert found["operand"] == x.tolist()
        assert found["used"] == (3 * x).tolist()


def test_collectives_of_several_streams_come_in_the_order_of_the_program(ranks: list[Seen]) -> None:
    for seen in ranks:
        assert seen["streams"]["results"] == [[3.0 * number] * 4 for number in range(9)]
        assert seen["streams"]["product"] == [30.0] * 4


def test_threads_may_take_turns(ranks: list[Seen]) -> None:
    assert [seen["threads"]["found"] for seen in ranks] == [[1, 3] * 3] * 2


def test_what_is_refused_is_refused_on_every_rank_before_anything_is_sent(ranks: list[Seen]) -> None:
    assert [seen["refused"] for seen in ranks] == ["E_DTYPE", "E_DTYPE"]


def test_a_rank_that_has_ended_is_not_waited_for(ranks: list[Seen]) -> None:
    assert ranks[0]["lost"] == {"stream": "E_COLLECTIVE_STALLED", "program": "E_COLLECTIVE_STALLED"}


def test_collectives_are_recorded_with_type_and_bytes(ranks: list[Seen]) -> None:
    for seen in ranks:
        large, small = seen["profiled"]["records"]
        assert large == ["all_reduce", float(64 << 20), "communication"]
        assert small[:2] == ["all_reduce", 64.0]


def test_clocks_of_one_machine_agree_within_the_uncertainty(ranks: list[Seen]) -> None:
    first, second = (seen["offsets"] for seen in ranks)
    assert len(first) == len(second) >= 2
    assert all((offset, uncertainty) == (0, 0) for _, offset, uncertainty, _ in first)
    # The processes share one clock.
    assert all((offset, uncertainty) == (0, 0) for _, offset, uncertainty, _ in second)


@pytest.mark.usefixtures("ranks")
def test_spec_003_8_4_the_overlap_of_a_job_of_two_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    result = analyze.collectives(trace="trace.json", min_bytes=64 << 20)
    (row,) = result
    assert (row.collective, row.bytes, row.ranks, row.calls) == ("all_reduce", float(64 << 20), 2, 2)
    assert 0 < row.overlap_pct <= 100
    assert row.algorithm == "shared, two-phase"
    assert row.exposed_ms + row.total_ms * row.overlap_pct / 100 == pytest.approx(row.total_ms)
    assert "clocks of the ranks agree within" in str(result)


@pytest.mark.usefixtures("ranks")
def test_a_rank_that_comes_late_shows_as_skew(folder: Path) -> None:
    small = next(row for row in analyze.collectives(folder) if row.bytes == 64)
    assert small.skew_us >= 0.5e6 * LATE_S
    assert "late-ranks" in {row.rule for row in analyze.advise(folder)}


def test_without_a_group_it_is_the_identity_and_is_recorded() -> None:
    x = torch.randn(3, 5)
    with profile.session(activities=["cpu", "collective"]) as session:
        same = op.all_reduce(op.tensor(x) * 2)
        beside = stream.create(name="communication")
        later = op.all_reduce(x, op="max", stream=beside)
    assert torch.equal(same.torch(), 2 * x)
    assert torch.equal(later.torch(), x)
    records = [record for record in session.records() if record.kind == "collective"]
    assert [record.collective_bytes for record in records] == [60.0, 60.0]
    assert {record.collective_algorithm for record in records} == {"identity"}
    assert {record.stream_name for record in records} == {"", "communication"}


def test_another_reduction_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ArgumentError, match="op='mean'") as failure:
        op.all_reduce(torch.ones(2), op="mean")
    assert "sum, avg" in failure.value.hints[0]


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        (torch.bool, "sum"),
        (torch.float8_e4m3fn, "sum"),
        (torch.int64, "avg"),
        (torch.complex64, "max"),
    ],
)
def test_dtypes_without_the_reduction_are_refused(dtype: torch.dtype, reduction: str) -> None:
    with pytest.raises(DTypeError, match="all_reduce"):
        op.all_reduce(torch.ones(2).to(dtype), op=reduction)


def test_inside_a_traced_function_it_is_refused() -> None:
    @op.kernel
    def reduced(x: ArrayLike) -> object:
        return op.all_reduce(x)

    with pytest.raises(ValueControlFlowError):
        reduced(torch.ones(2)).eval()  # type: ignore[attr-defined]
