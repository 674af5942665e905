"""How many samples `tessera quickstart` takes of a call."""

from __future__ import annotations

import time

from tessera.cli.quickstart.timing import FEWEST_QUIET, compare

CALL_S = 0.005


def test_one_sample_is_enough_of_what_takes_longer_than_all_should() -> None:
    calls: list[float] = []

    def slow() -> None:
        calls.append(time.perf_counter())
        time.sleep(CALL_S)

    seconds, _ = compare({"slow": slow}, seconds=CALL_S / 5)["slow"]
    assert len(calls) == 2  # to warm up, and the sample
    assert seconds >= CALL_S


def test_what_is_short_is_sampled_until_a_median_means_something() -> None:
    calls: list[float] = []
    compare({"short": lambda: calls.append(time.perf_counter())}, seconds=0.02)
    assert len(calls) >= 2 * FEWEST_QUIET
