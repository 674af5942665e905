"""Tables at the width of the terminal: no word is broken, what has no room is named, and pipes get all."""

from __future__ import annotations

import os
from collections.abc import Callable

import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import analyze
from tessera.profiling.analyses.presentation import layout
from tessera.profiling.analyses.presentation.result import Analysis
from tests.unit.profiling.analyses.test_power import BURST
from tests.unit.profiling.analyses.traces import collective, kernel, repeated, trace

EVERYTHING = trace(
    *repeated("flash_attention", [1000.0 + number for number in range(20)], flops=6.7e10, bytes=1.05e9, dtype="bf16"),
    *repeated("depthwise_conv2d+gelu", [70.0] * 20, flops=2.6e6, bytes=1.3e5, workers=2, mem_stall_pct=20.0),
    kernel("gather", 0, 5, warp_divergence_pct=40.0, dram_read_gbps=100.0, dram_write_gbps=50.0, l2_hit_rate=0.5),
    collective(0, 60, 6e6, collective_algorithm="ring"),
)
ANALYSES: dict[str, Callable[[], object]] = {
    "stalls": lambda: analyze.stalls(EVERYTHING),
    "divergence": lambda: analyze.divergence(EVERYTHING),
    "collectives": lambda: analyze.collectives(EVERYTHING),
    "memory": lambda: analyze.memory(EVERYTHING),
    "power": lambda: analyze.power(BURST),
    "compare": lambda: analyze.compare(EVERYTHING, EVERYTHING),
    "advise": lambda: analyze.advise(EVERYTHING),
    "advise-by-a-bound": lambda: analyze.advise(EVERYTHING, arch="sm90"),
    "roofline": lambda: analyze.roofline(EVERYTHING, arch="sm90"),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_no_line_is_wider_than_the_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = str(ANALYSES[name]())
    assert max(map(len, shown.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "200")
    assert "no room for" not in str(ANALYSES[name]())


def test_what_has_no_room_is_named_and_words_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = str(ANALYSES["compare"]())
    assert "no room for: " in shown
    assert "depthwise_conv2d+gelu" in shown
    assert "within noise" in " ".join(shown.split())
    assert "GFLOP," in shown


def test_pipes_have_all_columns_and_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", os.terminal_size)
    why = "a reason of many words that stands on a line of its own however long it is, " * 4
    table = polars.DataFrame({"kernel": ["matmul"], "l2_hit_rate": [None]})
    shown = str(Analysis("Bytes", table, {"kernel": "Kernel", "l2_hit_rate": "L2"}, missing={"l2_hit_rate": why}))
    assert f"l2_hit_rate: not measured: {why}".rstrip() in shown.splitlines()
    assert "no room for" not in str(ANALYSES["compare"]())


_TEXTS = st.lists(st.text("ab ", max_size=40), min_size=1, max_size=4)


@given(st.lists(_TEXTS, min_size=1, max_size=6), st.integers(10, 120), st.integers(0, 6))
def test_columns_fit_or_have_just_their_words(columns: list[list[str]], line: int, optional: int) -> None:
    given_columns = {str(number): texts for number, texts in enumerate(columns)}
    may_go = list(given_columns)[:optional]
    found = layout.widths(given_columns, line, may_go)
    words = {
        name: min(max((len(word) for text in texts for word in text.split()), default=1), layout.LONGEST_WORD)
        for name, texts in given_columns.items()
    }
    assert all(found[name] >= words[name] for name in found)
    assert given_columns.keys() - found.keys() <= set(may_go)
    if (
        sum(found.values()) + 3 * len(found) + 1 > line
    ):  # nothing is left to leave out, and nothing is wider than needed
        assert found == {name: words[name] for name in given_columns if name not in may_go}
