"""What is measured of cores comes back from disk as it was, and a target says it, or what is usual without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.errors import CacheFormatError
from tessera.target import CoreFacts, detect
from tessera.target.stored_ceilings import store_core, stored_ceilings, stored_core
from tests.unit.scheduling.problems import AVX512

FACTS = CoreFacts(
    2, 4, 2, 5, 2, 3e-10, 96, 16, 2e-6, (("bf16", 0.5),), (("L3", 4 << 20),), date="2026-11-26T06:00:00+00:00"
)


def test_facts_come_back_as_they_were_written() -> None:
    assert CoreFacts.from_json(FACTS.to_json()) == FACTS


@pytest.mark.parametrize(
    "changed",
    [
        {"fma_per_cycle": 0},
        {"fma_latency": 4.5},
        {"cycle_s": 0.0},
        {"wake_s": -1.0},
        {"tlb_pages": True},
        {"streams": -1},
        {"caches": [["L3", "many"]]},
        {"source": 3},
        {"in_doubt": 1},
        {"version": 1},
        {"unknown": 1},
    ],
)
def test_what_are_no_facts_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(CacheFormatError):
        CoreFacts.from_json(json.dumps(json.loads(FACTS.to_json()) | changed))


def test_facts_are_kept_beside_the_ceilings_and_are_none(cache_dir: Path) -> None:
    machine = detect()
    assert stored_core(machine) is None
    store_core(machine, FACTS)
    assert stored_core(machine) == FACTS
    assert stored_core(machine.with_core(FACTS)) == FACTS  # what was measured does not say which machine it is
    assert stored_core(replace(machine, cores=machine.cores + 1)) is None
    assert stored_ceilings(machine) is None
    (file,) = (cache_dir / "ceilings").iterdir()
    file.write_text(file.read_text()[:-10])
    assert stored_core(machine) is None


def test_of_two_measurements_the_better_figures_count() -> None:
    busy = replace(
        FACTS, fma_per_cycle=1, fma_latency=9, tlb_pages=32, streams=8, wake_s=1e-3, caches=(), in_doubt=True
    )
    assert FACTS.joined(busy) == busy.joined(FACTS) == FACTS
    smaller = replace(FACTS, caches=(("L2", 1 << 18), ("L3", 2 << 20)))
    assert FACTS.joined(smaller).caches == (("L3", 4 << 20),)
    assert busy.joined(busy) == busy


def test_a_target_says_what_was_measured_or_what_is_usual() -> None:
    usual = (
        AVX512.fma_per_cycle,
        AVX512.fma_latency,
        AVX512.tlb_pages,
        AVX512.streams,
        AVX512.wake_s,
        AVX512.cache_bytes("L3"),
    )
    assert usual == (2, 4, 64, 16, 1.1e-6, 32 << 20)
    found = AVX512.with_core(replace(FACTS, fma_per_cycle=1))
    assert (found.fma_per_cycle, found.tlb_pages, found.wake_s, found.cache_bytes("L3")) == (1, 96, 2e-6, 4 << 20)
    assert (found.cache_bytes("L2"), found.cache_bytes("L4")) == (1 << 20, 0)
    assert found.with_core(None) == AVX512
    unseen = AVX512.with_core(replace(FACTS, tlb_pages=0, streams=0, wake_s=0.0))
    assert (unseen.tlb_pages, unseen.streams, unseen.wake_s) == (64, 16, 1.1e-6)
    assert (FACTS.dot_rate("bf16"), FACTS.dot_rate("int8")) == (0.5, None)
